"""Defer, renew by hand, edit: what a tenant may change of a lease without moving it."""

from datetime import UTC, datetime, timedelta

import pytest

from agents.models import Workload
from apikit.errors import InvalidInput
from billing import metering
from leasing import calendar, lifecycle, term_changes
from leasing.models import Allocation, Lease
from leasing.moves import WrongState
from leasing.states import EndReason, State
from scheduler import converging
from tests.factories import (
    NOON,
    after,
    end_and_clean,
    hear,
    make_active_lease,
    make_host,
    make_lease,
    make_tenant,
    place,
    price,
    say,
)  # fmt: skip

pytestmark = pytest.mark.django_db
HOUR = 3600


@pytest.fixture(autouse=True)
def _pool() -> None:
    make_host(gpus=2)
    price()


def scheduled(*, gpus: int = 1, start_s: int = HOUR, length_s: int = HOUR) -> Lease:
    lease = make_lease(request=f"A100_80G x{gpus}", term={"start_at": after(start_s), "duration_s": length_s})
    place(at=NOON)
    lease.refresh_from_db()
    assert lease.state == State.SCHEDULED
    return lease


def test_a_scheduled_lease_begins_later_and_its_end_and_its_calendar_move_with_it() -> None:
    lease = scheduled()

    deferred = term_changes.defer(lease_id=lease.pk, start_at=after(3 * HOUR), at=after(10))

    assert (deferred.state, deferred.start_at, deferred.end_at) == (State.SCHEDULED, after(3 * HOUR), after(4 * HOUR))
    held = Allocation.objects.get(lease=lease)
    assert (held.during.lower, held.during.upper) == (after(3 * HOUR), after(4 * HOUR + 180 + 30))
    converging.converge(at=after(HOUR + 1))
    lease.refresh_from_db()
    assert lease.state == State.SCHEDULED
    Lease.objects.filter(pk=lease.pk).update(check_at=after(3 * HOUR))
    lease.allocations.get().device.host.__class__.objects.update(last_heard_at=after(3 * HOUR))
    converging.converge(at=after(3 * HOUR))
    lease.refresh_from_db()
    assert lease.state == State.PROVISIONING


def test_deferring_into_a_time_that_is_promised_to_another_is_refused_whole() -> None:
    lease = scheduled(gpus=2)
    scheduled(gpus=2, start_s=3 * HOUR)
    before = Lease.objects.filter(pk=lease.pk).values().get()

    with pytest.raises(calendar.DevicesTaken):
        term_changes.defer(lease_id=lease.pk, start_at=after(3 * HOUR), at=after(10))

    assert Lease.objects.filter(pk=lease.pk).values().get() == before
    assert {row.during.lower for row in Allocation.objects.filter(lease=lease)} == {after(HOUR)}


def test_a_waiting_lease_is_not_placed_before_its_later_start() -> None:
    lease = make_lease(request="A100_80G", term="2h")

    deferred = term_changes.defer(lease_id=lease.pk, start_at=after(2 * HOUR), at=NOON)
    place(at=NOON)

    lease.refresh_from_db()
    assert (deferred.end_at, lease.state) == (after(4 * HOUR), State.SCHEDULED)


@pytest.mark.parametrize("start_s", [HOUR, HOUR - 1, 366 * 86_400])
def test_a_start_that_is_no_later_one_or_too_far_is_refused(start_s: int) -> None:
    with pytest.raises(InvalidInput):
        term_changes.defer(lease_id=scheduled().pk, start_at=after(start_s), at=after(10))


def test_an_end_that_was_named_stays_and_a_start_behind_it_is_refused() -> None:
    lease = make_lease(term={"start_at": after(HOUR), "end_at": after(2 * HOUR)})

    assert term_changes.defer(lease_id=lease.pk, start_at=after(HOUR + 60), at=NOON).end_at == after(2 * HOUR)
    with pytest.raises(InvalidInput):
        term_changes.defer(lease_id=lease.pk, start_at=after(2 * HOUR - 59), at=NOON)


def test_what_has_started_cannot_be_put_off_not_even_while_it_waits_again() -> None:
    lease = make_active_lease()
    with pytest.raises(WrongState):
        term_changes.defer(lease_id=lease.pk, start_at=after(HOUR), at=after(10))
    lifecycle.interrupt(lease_id=lease.pk, last_good=after(10), at=after(10), reason="host_lost")
    lifecycle.requeue(lease_id=lease.pk, at=after(10), reason="restart_elsewhere")

    with pytest.raises(WrongState) as refused:
        term_changes.defer(lease_id=lease.pk, start_at=after(HOUR), at=after(11))

    assert refused.value.facts["actions"] == ["cancel", "end"]


def reserved(*, start: datetime = NOON) -> Lease:
    price(term="reserved:P1M", micros=1_800_000)
    return make_active_lease(make_tenant(time_zone="Europe/Berlin"), term={"kind": "reserved", "period": "P1M"})


def test_renewing_by_hand_adds_calendar_steps_counted_from_the_first_second() -> None:
    lease = reserved()
    Lease.objects.filter(pk=lease.pk).update(
        first_active_at=datetime(2027, 1, 31, 12, tzinfo=UTC), end_at=datetime(2027, 2, 28, 12, tzinfo=UTC)
    )

    once = term_changes.renew_by_hand(lease_id=lease.pk, periods=1, at=after(60))
    assert once.end_at == datetime(2027, 3, 31, 11, tzinfo=UTC)  # summer time has begun in Berlin
    thrice = term_changes.renew_by_hand(lease_id=lease.pk, periods=2, at=after(61))
    assert thrice.end_at == datetime(2027, 5, 31, 11, tzinfo=UTC)
    workload = Workload.objects.get(reference=lease.public_id)
    assert workload.not_after is not None
    assert workload.not_after >= thrice.end_at


def test_a_renewed_term_goes_on_at_the_price_that_was_promised() -> None:
    lease = reserved()
    price(term="reserved:P1M", micros=9_000_000, starts_at=after(100))

    renewed = term_changes.renew_by_hand(lease_id=lease.pk, periods=1, at=after(200))

    assert renewed.price_micros_per_hour == 1_800_000
    hear(lease, at=after(1002))
    assert metering.cost(reference=lease.public_id, at=after(1002)).charged_micros == 1000 * 500


def test_a_renewal_into_a_time_that_is_promised_to_another_is_refused_whole() -> None:
    lease = reserved()
    make_lease(request="A100_80G x2", term={"start_at": lease.end_at + timedelta(hours=1), "duration_s": HOUR})
    place(at=after(10))

    with pytest.raises(calendar.DevicesTaken):
        term_changes.renew_by_hand(lease_id=lease.pk, periods=1, at=after(20))

    end_at = lease.end_at
    lease.refresh_from_db()
    assert lease.end_at == end_at


def test_only_a_reserved_lease_is_renewed_and_not_for_more_than_two_years() -> None:
    with pytest.raises(WrongState):
        term_changes.renew_by_hand(lease_id=make_active_lease().pk, periods=1, at=after(10))
    with pytest.raises(InvalidInput):
        term_changes.renew_by_hand(lease_id=reserved().pk, periods=26, at=after(10))


def test_what_has_ended_does_not_change_its_name() -> None:
    lease = end_and_clean(make_active_lease(), at=after(100))

    with pytest.raises(WrongState):
        term_changes.edit(lease_id=lease.pk, changes={"name": "late"}, at=after(200))

    lease.refresh_from_db()
    assert (lease.state, lease.name) == (State.ENDED, "")


def test_what_to_do_when_interrupted_decides_at_once_how_long_a_container_runs_unheard() -> None:
    lease = make_active_lease()
    host = Workload.objects.get(reference=lease.public_id).host

    term_changes.edit(lease_id=lease.pk, changes={"on_interrupt": "wait_for_host"}, at=after(10))

    workload = Workload.objects.get(reference=lease.public_id)
    assert workload.valid_for_s == 21_600
    generation = host.generation
    host.refresh_from_db()
    assert host.generation == generation + 1  # the held sync ends, and the host is told


def test_every_version_of_a_lease_has_its_event_and_none_is_skipped() -> None:
    lease = make_active_lease(term="2h")
    term_changes.edit(lease_id=lease.pk, changes={"name": "a"}, at=after(10))
    term_changes.edit(lease_id=lease.pk, changes={"name": "a"}, at=after(11))  # nothing new
    term_changes.change_end(lease_id=lease.pk, end_at=after(3 * HOUR), at=after(12))
    hear(lease, at=after(20))
    lifecycle.end(lease_id=lease.pk, reason=EndReason.TENANT, at=after(20))
    say(lease, "gone", at=after(21))
    converging.converge(at=after(22))

    lease.refresh_from_db()
    events = list(lease.events.values_list("seq", "reason"))
    assert [seq for seq, _ in events] == list(range(1, lease.version + 1))
    assert [reason for _, reason in events] == [
        "requested", "placed", "ready", "edited", "end_moved", "tenant", "tenant",
    ]  # fmt: skip
