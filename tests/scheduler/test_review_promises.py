"""Promises across two acts: a term that renews, a place that is held, a start that is certain."""

from datetime import timedelta

import pytest
from django.conf import LazySettings
from django.db.models import F

from agents import host_life
from agents.models import Device, Host, Workload
from apikit.errors import InvalidInput
from billing import metering, price_list
from leasing import parking, requesting, term_changes
from leasing.calendar import HELD_EPOCH
from leasing.models import Allocation, Lease
from leasing.notice_models import LeaseMove
from leasing.states import EndReason, State
from scheduler import announcing, converging, making_room, recovery
from tests.factories import NOON, after, hear, make_active_lease, make_host, make_lease, make_tenant, place, price

pytestmark = pytest.mark.django_db
WEEK_S = 7 * 86_400
RENEWING = {"kind": "reserved", "period": "P1W", "renew": True}


def _renewing() -> Lease:
    make_host()
    price(term="reserved:P1W", micros=1_800_000)
    series = price_list.Series("A100_80G", "sim", "verified", "reserved:P1W", "hold", "XTS")
    price_list.publish(series=series, price_micros_per_hour=360_000, starts_at=NOON, cause="test", at=NOON)
    return make_active_lease(term=RENEWING)


@pytest.mark.parametrize("doing", ["hold", "queue", "restart", "resume"])
def test_a_term_renews_whatever_the_lease_is_doing_at_its_end(doing: str) -> None:
    lease = _renewing()
    assert lease.end_at is not None
    before = lease.end_at - timedelta(seconds=20)
    hear(lease, at=before)
    if doing == "restart":
        parking.restart(lease_id=lease.pk, at=before)
    else:
        parking.park(lease_id=lease.pk, keep="queue" if doing == "queue" else "hold", at=before)
        if doing == "resume":
            parking.resume(lease_id=lease.pk, at=before)
    state = Lease.objects.get(pk=lease.pk).state
    hear(lease, at=lease.end_at)

    converging.converge(at=lease.end_at + timedelta(seconds=1))

    now = Lease.objects.get(pk=lease.pk)
    assert (now.state, now.end_at) == (state, lease.end_at + timedelta(seconds=WEEK_S))


def test_a_term_renews_while_its_lease_waits_for_another_host() -> None:
    lease = _renewing()
    assert lease.end_at is not None
    Host.objects.update(state=Host.State.LOST, last_heard_at=lease.end_at - timedelta(seconds=60))
    converging.converge(at=lease.end_at - timedelta(seconds=20))
    assert Lease.objects.get(pk=lease.pk).state == State.PENDING

    converging.converge(at=lease.end_at + timedelta(seconds=1))

    now = Lease.objects.get(pk=lease.pk)
    assert (now.state, now.end_at) == (State.PENDING, lease.end_at + timedelta(seconds=WEEK_S))


@pytest.mark.parametrize("earlier_s", [0, 86_400])
def test_a_term_that_its_tenant_shortened_ends_there_and_is_told(earlier_s: int) -> None:
    lease = _renewing()
    assert lease.end_at is not None
    end_at = lease.end_at - timedelta(seconds=earlier_s)

    term_changes.shorten(lease_id=lease.pk, end_at=end_at, at=after(100))
    announcing.announce(at=end_at - timedelta(seconds=300))
    hear(lease, at=end_at)
    converging.converge(at=end_at + timedelta(seconds=1))

    now = Lease.objects.get(pk=lease.pk)
    assert (now.ending_reason, now.end_at, now.renew) == (EndReason.EXPIRED, end_at, False)
    assert [notice.cause for notice in now.notices.all()] == ["expiry"]


def test_an_extended_term_goes_on_renewing() -> None:
    lease = _renewing()
    assert lease.end_at is not None

    longer = term_changes.change_end(lease_id=lease.pk, end_at=lease.end_at + timedelta(hours=1), at=after(100))

    assert longer.renew


def test_a_whole_machine_is_not_told_to_start_elsewhere_by_an_edit() -> None:
    make_host()
    price()
    key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ1l0lEMo0cyDSFEQyS7Tq4mMXrHdYvZ0qVQ0YwJ5m4K"
    tenant = make_tenant()
    lease = requesting.request_lease(
        organization_id=tenant.pk, at=NOON,
        wanted=requesting.understand(
            organization=tenant, asked={"request": "A100_80G", "bare": True, "ssh_keys": [key]}, at=NOON
        ),
    )  # fmt: skip

    with pytest.raises(InvalidInput):
        term_changes.edit(lease_id=lease.pk, changes={"on_interrupt": "restart_elsewhere"}, at=after(10))

    changed = term_changes.edit(lease_id=lease.pk, changes={"on_interrupt": "wait_for_host"}, at=after(11))
    assert changed.on_interrupt == "wait_for_host"


def test_an_extension_during_the_notice_of_a_move_holds_the_new_place_as_long(settings: LazySettings) -> None:
    settings.MOVES_ALLOWANCE_BP = 10_000
    making_room._tried.clear()
    first = make_host(gpus=2)
    price(micros=4_000_000)
    term = {"kind": "on_demand", "end_at": after(100_000)}
    make_active_lease(may_move=True, term=term)
    make_host(gpus=2)
    make_active_lease(constraints={"exclude_hosts": [str(first.pk)]}, may_move=True, term=term, at=after(5))
    make_lease(request="A100_80G x2", at=after(1000))
    place(at=after(1001))
    assert making_room.make_room(at=after(1002)) == 1
    small = LeaseMove.objects.get().lease
    (here,) = Allocation.objects.filter(lease=small, epoch=F("lease__epoch"), released_at=None)

    term_changes.change_end(lease_id=small.pk, end_at=after(200_000), at=after(1010))

    (held,) = Allocation.objects.filter(lease=small, epoch=HELD_EPOCH, released_at=None)
    assert held.during.upper == after(200_210)
    (still,) = Allocation.objects.filter(lease=small, epoch=F("lease__epoch"), released_at=None)
    assert still.during.upper == here.during.upper  # these are another's after the notice

    term_changes.change_end(lease_id=small.pk, end_at=after(1060), at=after(1020))
    (held,) = Allocation.objects.filter(lease=small, epoch=HELD_EPOCH, released_at=None)
    assert held.during.lower == after(1122)


def test_what_is_scheduled_on_a_machine_that_left_for_good_looks_for_another_at_once() -> None:
    host = make_host()
    price()
    lease = make_lease(term={"kind": "on_demand", "start_at": after(30 * 86_400), "duration_s": 3600})
    place(at=after(1))
    assert Lease.objects.get(pk=lease.pk).state == State.SCHEDULED
    host_life.retire(host_id=host.pk, reason="sold", by="owner", at=after(100))
    make_host()

    converging.converge(at=after(110))
    place(at=after(111))

    now = Lease.objects.get(pk=lease.pk)
    assert now.state == State.SCHEDULED
    assert now.members.get(epoch=now.epoch).host_id != host.pk


@pytest.mark.parametrize("health", [Device.Health.FAILED, Device.Health.LOST])
def test_a_lease_does_not_begin_on_a_gpu_that_has_failed(health: str) -> None:
    host = make_host()
    price()
    lease = make_lease(term={"kind": "on_demand", "start_at": after(3600), "duration_s": 3600})
    place(at=after(1))
    Device.objects.filter(host=host).update(health=health, health_since=after(100))

    converging.converge(at=after(3601))

    assert Lease.objects.get(pk=lease.pk).state == State.PENDING
    assert not Workload.objects.filter(reference=lease.public_id).exists()


def test_the_fee_for_holding_ends_where_its_host_was_lost_before_the_term() -> None:
    make_host()
    price()
    series = price_list.Series("A100_80G", "sim", "verified", "on_demand", "hold", "XTS")
    price_list.publish(series=series, price_micros_per_hour=3_600_000, starts_at=NOON, cause="test", at=NOON)
    lease = make_active_lease(term={"kind": "on_demand", "end_at": after(3600)})
    hear(lease, at=after(100))
    recovery.park_now(lease=lease, keep="hold", at=after(102))
    Host.objects.update(state=Host.State.LOST, last_heard_at=after(3000))

    converging.converge(at=after(3601))

    now = Lease.objects.get(pk=lease.pk)
    assert now.ending_reason == EndReason.EXPIRED
    assert metering.cost(reference=lease.public_id, at=after(4000)).charged_micros == 1000 * (3000 - 2)
