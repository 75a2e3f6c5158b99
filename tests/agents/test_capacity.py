from datetime import timedelta

import psycopg
import pytest
from django.db import connection, transaction

from agents import capacity
from agents.models import CapacityChange
from tests.factories import make_host


@pytest.mark.django_db(transaction=True)
def test_a_reader_sees_each_change_once() -> None:
    host, other = make_host(), make_host()
    start = capacity.changed_since(None)

    with transaction.atomic():
        capacity.changed([host.pk, host.pk])
    seen = capacity.changed_since(start.cursor)

    assert start.everything
    assert seen.hosts == {host.pk}
    assert other.pk not in seen.hosts
    assert capacity.changed_since(seen.cursor).hosts == frozenset()


@pytest.mark.django_db(transaction=True)
def test_a_transaction_that_commits_late_is_not_skipped() -> None:
    late, early = make_host(), make_host()
    cursor = capacity.changed_since(None).cursor
    parameters = connection.get_connection_params()
    with psycopg.connect(**{k: parameters[k] for k in ("dbname", "user", "host", "port") if k in parameters}) as slow:
        slow.execute("INSERT INTO agents_capacitychange (host_id) VALUES (%s)", [late.pk])
        with transaction.atomic():
            capacity.changed([early.pk])
        before = capacity.changed_since(cursor)
        slow.commit()

    after_commit = capacity.changed_since(before.cursor)

    # The early one has a higher number and is committed, but lies above what is still open: it waits for it.
    assert before.hosts == frozenset()
    assert after_commit.hosts == {late.pk, early.pk}


@pytest.mark.django_db(transaction=True)
def test_a_reader_who_was_away_for_too_long_reloads_everything() -> None:
    host = make_host()
    old = capacity.changed_since(None)
    with transaction.atomic():
        capacity.changed([host.pk])
    written = CapacityChange.objects.get().at

    forgotten = capacity.forget(at=written + capacity.KEPT + timedelta(seconds=1))

    assert forgotten == 1
    assert capacity.changed_since(old.cursor).everything
    assert not capacity.changed_since(capacity.changed_since(None).cursor).everything
