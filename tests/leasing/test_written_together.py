"""Many rows in one value of a statement are the rows that the query builder would have written."""

from typing import Any

import pytest
from django.db import IntegrityError, transaction
from django.db.backends.postgresql.psycopg_any import DateTimeTZRange, NumericRange
from django.db.models import Model

from agents.models import Device
from apikit import statements
from leasing.models import Allocation, LeaseEvent
from outbox.models import Message
from tests.factories import NOON, after, make_host, make_lease, make_tenant, price

pytestmark = pytest.mark.django_db
FACTS: dict[str, Any] = {
    "text": "it's \"so\" \\ %s \t\n 中文 \U0001f600", "none": None, "deep": [{"a": [1, 2.5, True, []]}, {}], "": 10**15,
}  # fmt: skip


def values(row: Model) -> dict[str, Any]:
    found = type(row)._default_manager.get(pk=row.pk)
    fields = found._meta.concrete_fields
    return {field.attname: getattr(found, field.attname) for field in fields if not field.primary_key}


def test_rows_are_those_of_the_query_builder() -> None:
    tenant, device = make_tenant(), Device.objects.filter(host=make_host(gpus=1)).get()
    price()
    lease = make_lease(tenant, "A100_80G")

    def made(shift: int) -> list[Model]:
        ranges = [
            (after(1000 * shift + 10), after(1000 * shift + 20)),
            (after(1000 * shift + 500), after(1000 * shift + 900)),
        ]
        return [
            *(
                Allocation(
                    device=device, lease=lease, organization_id=tenant.pk, rank=n, epoch=2**40, mode="mig",
                    units=NumericRange(n, 4), during=DateTimeTZRange(*ends),
                )
                for n, ends in enumerate(ranges)
            ),
            LeaseEvent(lease=lease, seq=100 + shift, at=NOON, to_state="pending", reason="x", detail=FACTS["text"],
                       facts=FACTS),
        ]  # fmt: skip

    usual, together = made(0), made(3)
    for rows in (slice(0, 2), slice(2, 3)):
        type(usual[rows][0])._default_manager.bulk_create(usual[rows])
        assert statements.insert_all(together[rows]) == together[rows]
    for one, other in zip(usual, together, strict=True):
        assert other.pk not in (None, one.pk)
        assert not other._state.adding
        left, right = values(one), values(other)
        for name in left.keys() - {"during", "seq"}:
            assert left[name] == right[name]
        if isinstance(other, Allocation):
            assert right["during"] == other.during
            assert right["units"] == other.units
    assert values(together[2])["facts"] == FACTS


def test_an_open_end_stays_open_and_the_constraint_speaks_as_before() -> None:
    tenant, device = make_tenant(), Device.objects.filter(host=make_host(gpus=1)).get()
    price()
    lease = make_lease(tenant, "A100_80G")
    row = {"device": device, "lease": lease, "organization_id": tenant.pk, "units": NumericRange(0, 8)}
    [open_end] = statements.insert_all([Allocation(**row, during=DateTimeTZRange(NOON, None))])
    assert values(open_end)["during"] == DateTimeTZRange(NOON, None)
    with pytest.raises(IntegrityError, match="at_a_time"), transaction.atomic():
        statements.insert_all([Allocation(**row, during=DateTimeTZRange(after(60), after(70)))])
    assert statements.insert_all([]) == []


def test_what_is_there_already_stays_and_the_table_gives_what_rows_do_not_say() -> None:
    first = Message(topic="a", key="same", payload={"n": 1}, available_at=NOON)
    statements.insert_all([first])
    again = Message(topic="b", key="same", payload={"n": 2}, available_at=NOON)
    other = Message(topic="b", key="other", payload={"n": 3}, available_at=NOON)
    statements.insert_all([again, other], on_conflict="ON CONFLICT DO NOTHING")
    assert sorted(Message.objects.values_list("topic", "key", "payload__n")) == [("a", "same", 1), ("b", "other", 3)]
    assert Message.objects.get(key="other").created_at is not None


def test_a_column_is_said_by_all_rows_or_by_none() -> None:
    said = Message(topic="a", key="1", payload={}, available_at=NOON, created_at=NOON)
    with pytest.raises(ValueError, match="created_at"):
        statements.insert_all([said, Message(topic="a", key="2", payload={}, available_at=NOON)])
