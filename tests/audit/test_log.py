"""The log is append-only, and a change of it that gets past the triggers is found."""

from uuid import UUID

import pytest
from django.db import IntegrityError, connection, transaction

from audit import ids, log
from audit.models import Entry
from tests.factories import NOON, after

pytestmark = pytest.mark.django_db


def record(organization: UUID | None = None, action: str = "thing.done") -> Entry:
    return log.record(
        actor="user_1", organization=organization, action=action, target="t", after={"n": 1.5, "ö": None}, at=NOON
    )


@pytest.mark.parametrize(
    "statement", ["UPDATE audit_entry SET why = 'x'", "DELETE FROM audit_entry", "TRUNCATE audit_entry"]
)
def test_the_database_refuses_change(statement: str) -> None:
    record()

    with pytest.raises(IntegrityError, match="append-only"), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(statement)

    assert Entry.objects.count() == 1


def test_each_organization_has_its_own_chain() -> None:
    one, two = ids.new(), ids.new()
    entries = [record(one), record(two), record(one), record(None)]

    assert [entry.position for entry in entries] == [1, 1, 2, 1]
    assert bytes(entries[2].previous_sha256) == bytes(entries[0].sha256)
    assert log.verify() == []
    assert {(chain, position) for chain, position, _ in log.heads()} == {(one, 2), (two, 1), (None, 1)}


@pytest.mark.parametrize(
    ("tampering", "position", "why"),
    [
        ("UPDATE audit_entry SET actor = 'user_2' WHERE position = 2", 2, "it was changed"),
        ("UPDATE audit_entry SET after = '{\"n\": 2}' WHERE position = 2", 2, "it was changed"),
        ("UPDATE audit_entry SET at = at + interval '1 microsecond' WHERE position = 3", 3, "it was changed"),
        ("DELETE FROM audit_entry WHERE position = 2", 2, "the next entry is number 3"),
    ],
)
def test_tampering_is_found_where_it_was_done(tampering: str, position: int, why: str) -> None:
    organization = ids.new()
    for n in range(4):
        record(organization, action=f"thing.{n}")
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")
        cursor.execute(tampering)
        cursor.execute("SET LOCAL session_replication_role = DEFAULT")

    broken = log.verify()

    assert log.Break(organization, position, why) in broken


def test_a_rolled_back_act_leaves_no_entry_and_no_gap() -> None:
    record()
    with transaction.atomic():
        log.record(actor="a", organization=None, action="x", target="t", at=after(1))
        transaction.set_rollback(True)

    assert record().position == 2
    assert log.verify() == []
