"""Large requests get through by moving a few small leases: found first, told, held, and counted."""

from datetime import timedelta

import pytest
from django.conf import LazySettings

from agents.models import Host, Workload
from billing import metering, reconcile
from leasing import broken_promises, giving_way, lifecycle
from leasing.calendar import HELD_EPOCH
from leasing.models import Allocation, Lease
from leasing.notice_models import LeaseMove, Notice
from leasing.states import EndReason, State
from scheduler import announcing, converging, making_room, moving, recovery
from tests.factories import after, hear, make_active_lease, make_host, make_lease, place, price, say

pytestmark = pytest.mark.django_db
CLEARING_S = 210


@pytest.fixture(autouse=True)
def _allowance(settings: LazySettings) -> None:
    settings.MOVES_ALLOWANCE_BP = 10_000  # of few requests a small part is nothing
    making_room._tried.clear()


def _two_hosts_with_a_lease_on_each(**asked: object) -> tuple[Lease, Lease]:
    """Two machines of two GPUs, a movable lease on each: no room for two GPUs in one machine."""
    first = make_host(gpus=2)
    price(micros=4_000_000)
    price(term="spot", micros=2_000_000)
    one = make_active_lease(**asked)  # type: ignore[arg-type]
    make_host(gpus=2)
    other = make_active_lease(constraints={"exclude_hosts": [str(first.pk)]}, **asked, at=after(5))  # type: ignore[arg-type]
    return one, other


def _large(at_s: float = 1000) -> Lease:
    lease = make_lease(request="A100_80G x2", at=after(at_s))
    place(at=after(at_s + 1))
    assert Lease.objects.get(pk=lease.pk).state == State.PENDING
    return lease


def _moved() -> tuple[Lease, Lease]:
    """A large request that was refused, and the lease that makes room for it."""
    _two_hosts_with_a_lease_on_each(may_move=True)
    large = _large()
    assert making_room.make_room(at=after(1002)) == 1
    return Lease.objects.get(pk=large.pk), LeaseMove.objects.get().lease


def test_a_lease_that_may_move_makes_room_and_its_new_place_is_held_from_the_end_of_its_notice() -> None:
    large, small = _moved()

    row = LeaseMove.objects.get()
    (held,) = Allocation.objects.filter(lease=small, epoch=HELD_EPOCH)
    assert large.state == State.SCHEDULED
    assert held.device.host_id == row.to_host_id != row.from_host_id
    assert (held.during.lower, held.during.upper) == (after(1122), None)
    assert {a.device.host_id for a in Allocation.objects.filter(lease=large)} == {row.from_host_id}
    assert (row.gpu_milli, row.by, row.done_at) == (1000, "placement", None)
    assert small.notices.get().cause == "move"


def test_who_did_not_allow_it_and_is_no_spot_lease_stays_where_it_is() -> None:
    _two_hosts_with_a_lease_on_each()
    _large()

    assert making_room.make_room(at=after(1002)) == 0


def test_spot_leases_move_rather_than_being_reclaimed() -> None:
    _two_hosts_with_a_lease_on_each(term="spot")
    _large()

    making_room.make_room(at=after(1002))

    assert Notice.objects.get().cause == "move"


def test_where_the_allowance_is_used_up_spot_is_reclaimed_instead(settings: LazySettings) -> None:
    settings.MOVES_ALLOWANCE_BP = 75  # of 4 GPUs asked for in the week: 30 milli
    _two_hosts_with_a_lease_on_each(term="spot")
    _large()

    making_room.make_room(at=after(1002))

    assert moving.allowance_milli(at=after(1002)) == 30
    assert Notice.objects.get().cause == "spot_reclaim"


def test_the_lease_starts_at_its_new_place_once_the_old_is_gone_and_pays_nothing_between() -> None:
    large, small = _moved()
    hear(small, at=after(1123))
    converging.converge(at=after(1123))
    here = Workload.objects.get(reference=small.public_id)
    Workload.objects.filter(pk=here.pk).update(gone_at=None, last_valid_until=after(1124))
    converging.converge(at=after(1126))
    small.refresh_from_db()
    assert small.state == State.SCHEDULED  # nothing starts before nothing runs any more: the fence
    assert Workload.objects.filter(reference=small.public_id).count() == 1

    Workload.objects.filter(pk=here.pk).update(gone_at=after(1130))
    converging.converge(at=after(1132))
    say(small, "ready", at=after(1140))
    say(large, "ready", at=after(1145))
    converging.converge(at=after(1146))

    small.refresh_from_db()
    large.refresh_from_db()
    row = LeaseMove.objects.get()
    assert (small.state, large.state) == (State.ACTIVE, State.ACTIVE)
    assert small.members.get(epoch=small.epoch).host_id == row.to_host_id
    assert row.done_at == after(1123)
    began = broken_promises.running_since([small])[small.pk]
    assert began == after(1140)
    line = metering.cost(reference=small.public_id, at=after(1240)).seconds
    start_s = 2 if small.requested_at == after(0) else 7
    assert line == (1122 - start_s) + 100
    assert "moved" in [event.reason for event in small.events.all()]
    assert reconcile.findings() == []


def test_a_lease_is_moved_at_most_once_a_day() -> None:
    _, small = _moved()

    assert small.pk not in {guest.lease.pk for guest in moving._movable("XTS", at=after(3600))}
    Notice.objects.update(closed_at=after(1200), outcome="withdrawn")
    Lease.objects.filter(pk=small.pk).update(leaves_at=None)
    day = timedelta(days=1)
    assert small.pk not in {guest.lease.pk for guest in moving._movable("XTS", at=after(1001) + day)}
    assert small.pk in {guest.lease.pk for guest in moving._movable("XTS", at=after(1003) + day)}


def test_a_request_that_is_cancelled_leaves_the_lease_where_it_is_and_frees_its_new_place() -> None:
    large, small = _moved()
    lifecycle.end(lease_id=large.pk, reason=EndReason.TENANT, at=after(1050))

    announcing.announce(at=after(1051))

    small.refresh_from_db()
    assert (small.state, small.leaves_at) == (State.ACTIVE, None)
    assert not Allocation.objects.filter(epoch=HELD_EPOCH, released_at=None).exists()
    (mine,) = Allocation.objects.filter(lease=small, released_at=None)
    assert mine.during.upper is None
    assert moving.allowance_milli(at=after(1051)) == 4000  # what did not come about is not counted


def test_a_lease_that_its_tenant_ends_during_the_notice_frees_what_was_held_for_it() -> None:
    _, small = _moved()
    hear(small, at=after(1050))
    recovery.end_now(lease=small, reason=EndReason.TENANT, at=after(1050))
    say(small, "gone", at=after(1051))
    converging.converge(at=after(1052))

    announcing.announce(at=after(1053))

    small.refresh_from_db()
    assert small.state == State.ENDED
    assert not Allocation.objects.filter(lease=small, released_at=None).exists()
    converging.converge(at=after(1300))
    assert not Allocation.objects.filter(lease=small, released_at=None).exists()


def test_a_lease_that_was_parked_during_the_notice_does_not_move_in() -> None:
    large, small = _moved()
    hear(small, at=after(1050))
    recovery.park_now(lease=small, keep="queue", at=after(1050))
    say(small, "gone", at=after(1051))
    converging.converge(at=after(1123))
    announcing.announce(at=after(1124))

    small.refresh_from_db()
    large.refresh_from_db()
    assert small.state == State.PARKED
    assert not Allocation.objects.filter(lease=small, released_at=None).exists()
    assert large.state == State.PROVISIONING


def test_an_operator_moves_a_lease_off_its_host_after_its_notice() -> None:
    one, _ = _two_hosts_with_a_lease_on_each()
    here = one.members.get().host_id

    notice = moving.off_its_host(lease=one, by="user:7", reason="a fan is loud", at=after(100))
    hear(one, at=after(221))
    converging.converge(at=after(221))
    converging.converge(at=after(222))

    row = LeaseMove.objects.get()
    one.refresh_from_db()
    assert (notice.ends_at, row.by, row.reason, row.from_host_id) == (after(220), "user:7", "a fan is loud", here)
    assert one.state == State.PROVISIONING
    assert one.members.get(epoch=one.epoch).host_id == row.to_host_id != here


def test_an_operator_is_told_where_there_is_no_other_place() -> None:
    make_host()
    price()
    lease = make_active_lease()

    with pytest.raises(moving.CannotMove):
        moving.off_its_host(lease=lease, by="user:7", reason="test", at=after(100))
    assert Host.objects.count() == 1


def test_a_move_whose_notice_was_given_twice_is_refused() -> None:
    one, _ = _two_hosts_with_a_lease_on_each()
    moving.off_its_host(lease=one, by="user:7", reason="test", at=after(100))
    one.refresh_from_db()

    with pytest.raises(moving.CannotMove):
        moving.off_its_host(lease=one, by="user:8", reason="test", at=after(101))
    assert giving_way.idle_places() == []


def test_a_lease_whose_new_place_dies_keeps_the_old_bound_until_nothing_of_it_runs_there() -> None:
    _, small = _moved()
    Workload.objects.filter(reference=small.public_id).update(last_valid_until=after(1124))
    hear(small, at=after(1123))
    converging.converge(at=after(1123))
    row = LeaseMove.objects.get()
    Host.objects.filter(pk=row.to_host_id).update(state=Host.State.LOST)

    converging.converge(at=after(1130))

    small.refresh_from_db()
    (left,) = Allocation.objects.filter(lease=small, released_at=None)
    assert (small.state, left.device.host_id) == (State.PENDING, row.from_host_id)
