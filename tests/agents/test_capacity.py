import time
from collections.abc import Callable
from datetime import timedelta
from uuid import UUID

import psycopg
import pytest
from django.db import connection, transaction

from agents import capacity
from agents.models import CapacityChange
from tests.factories import make_host


def until(condition: Callable[[], object], within_s: float = 60) -> None:
    """Wait for what other databases of this server may hold back: their open transactions count too."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def read_until(wanted: set[UUID], cursor: int) -> tuple[list[UUID], int]:
    """Read on from the cursor until all of `wanted` were seen; return every host as often as it was seen."""
    seen: list[UUID] = []
    position = [cursor]

    def look() -> bool:
        changes = capacity.changed_since(position[0])
        seen.extend(changes.hosts)
        position[0] = changes.cursor
        return wanted <= set(seen)

    until(look)
    return seen, position[0]


@pytest.mark.django_db(transaction=True)
def test_a_reader_sees_each_change_once() -> None:
    host, other = make_host(), make_host()
    CapacityChange.objects.all().delete()  # that they are new is told too
    start = capacity.changed_since(None)

    with transaction.atomic():
        capacity.changed([host.pk, host.pk])
    seen, cursor = read_until({host.pk}, start.cursor)

    assert start.everything
    assert seen == [host.pk]
    assert other.pk not in seen
    assert capacity.changed_since(cursor).hosts == frozenset()


@pytest.mark.django_db(transaction=True)
def test_a_transaction_that_commits_late_is_not_skipped() -> None:
    late, early = make_host(), make_host()
    CapacityChange.objects.all().delete()  # that they are new is told too
    cursor = capacity.changed_since(None).cursor
    parameters = connection.get_connection_params()
    names = ("dbname", "user", "password", "host", "port")
    with psycopg.connect(**{name: parameters[name] for name in names if name in parameters}) as slow:
        slow.execute("INSERT INTO agents_capacitychange (host_id) VALUES (%s)", [late.pk])
        with transaction.atomic():
            capacity.changed([early.pk])
        before = capacity.changed_since(cursor)
        at_once = capacity.changed_since(cursor, unsettled=True)
        slow.commit()

    after_commit, _ = read_until({late.pk, early.pk}, before.cursor)

    # The early one has a higher number and is committed, but lies above what is still open: it waits for it.
    assert before.hosts == frozenset()
    assert at_once.hosts == at_once.unsettled == {early.pk}
    assert sorted(after_commit) == sorted([late.pk, early.pk])


@pytest.mark.django_db(transaction=True)
def test_a_reader_who_was_away_for_too_long_reloads_everything() -> None:
    host = make_host()
    CapacityChange.objects.all().delete()
    old = capacity.changed_since(None)
    with transaction.atomic():
        capacity.changed([host.pk])
    lines = CapacityChange.objects.count()
    written = CapacityChange.objects.latest("at").at

    forgotten = capacity.forget(at=written + capacity.KEPT + timedelta(seconds=1))

    assert forgotten == lines
    assert capacity.changed_since(old.cursor).everything
    fresh = capacity.changed_since(None).cursor
    until(lambda: not capacity.changed_since(capacity.changed_since(None).cursor).everything)
    assert capacity.changed_since(None).cursor >= fresh
