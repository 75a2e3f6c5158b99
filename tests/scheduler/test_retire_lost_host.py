"""A host that died for good: what nobody will ever acknowledge is settled, when it is safe, and by a person."""

from datetime import timedelta
from typing import Any

import pytest

from agents import host_life, silence
from agents.models import Device, Host, Workload
from audit.models import Entry
from billing import metering, reconcile
from leasing.models import Allocation, Lease
from leasing.states import EndReason, State
from scheduler import converging
from tests.factories import NOON, after, make_active_lease, make_host, make_tenant, price

pytestmark = pytest.mark.django_db
BY: dict[str, Any] = {"reason": "burnt", "by": "user:1"}


def lose(lease: Lease, *, at: float) -> Host:
    """Its host says nothing after NOON + 2 s, is declared lost at `at`, and the lease is looked at."""
    host = Host.objects.get()
    Host.objects.update(last_heard_at=after(12), last_answered_at=after(12))
    Workload.objects.update(last_valid_until=after(72), reported_at=after(12))
    Host.objects.update(state=Host.State.SUSPECT)
    silence.declare_lost(host_id=host.pk, reason="dead", by="user:1", at=after(at))
    converging.converge(at=after(at))
    lease.refresh_from_db()
    return host


def test_a_lost_host_is_retired_when_the_fence_is_safe_and_its_books_end_where_it_was_last_heard() -> None:
    host, tenant = make_host(), make_tenant()
    price()
    lease = make_active_lease(tenant)
    lose(lease, at=45)
    assert lease.state == State.PENDING  # it goes elsewhere; this host has acknowledged nothing

    with pytest.raises(host_life.HostIsBusy) as early:
        host_life.retire(host_id=host.pk, at=after(100), **BY)
    assert early.value.facts["safe_at"] == (NOON + timedelta(seconds=72 + 30 + 30)).strftime("%Y-%m-%dT%H:%M:%SZ")

    host_life.retire(host_id=host.pk, at=after(140), **BY)
    converging.converge(at=after(141))

    host.refresh_from_db()
    assert (host.state, host.key_id) == ("retired", "")
    assert not Allocation.objects.filter(released_at=None).exists()
    assert Workload.objects.get().gone_at == after(140)
    assert Entry.objects.filter(action="host.retired", why="burnt").exists()
    assert metering.cost(reference=lease.public_id, at=after(9_000)).seconds == 10  # ready at 2, last heard at 12
    assert reconcile.findings() == []


def test_a_host_that_is_heard_is_never_retired_over_what_runs_there() -> None:
    host = make_host()
    price()
    make_active_lease()

    with pytest.raises(host_life.HostIsBusy, match="drain it first"):
        host_life.retire(host_id=host.pk, at=after(9_000), **BY)


def test_a_lease_that_waits_for_its_host_stands_in_the_way_until_the_host_is_drained() -> None:
    host = make_host()
    price()
    lease = make_active_lease(on_interrupt="wait_for_host")
    lose(lease, at=45)
    assert lease.state == State.INTERRUPTED
    with pytest.raises(host_life.HostIsBusy, match="wait for this host"):
        host_life.retire(host_id=host.pk, at=after(400), **BY)

    host_life.drain(host_id=host.pk, deadline=after(400), at=after(400), **BY)
    converging.converge(at=after(401))
    lease.refresh_from_db()
    assert lease.ending_reason == EndReason.HOST_LOST
    host_life.retire(host_id=host.pk, at=after(30_000), **BY)
    converging.converge(at=after(30_001))

    lease.refresh_from_db()
    assert lease.state == State.ENDED
    assert lease.charged_micros == 10 * 1000
    assert Device.objects.get().allocations.filter(released_at=None).count() == 0
    assert reconcile.findings() == []
