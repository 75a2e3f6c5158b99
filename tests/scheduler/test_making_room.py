"""Spot gives way to what comes before it: with its notice, never early, and in one transaction with its successor."""

from datetime import datetime, timedelta

import pytest

from agents.models import Host, Workload
from billing import metering, reconcile
from leasing import giving_way, lifecycle
from leasing.calendar import CLEANING_MARGIN_S
from leasing.models import Allocation, Lease
from leasing.notice_models import Notice
from leasing.states import EndReason, State
from outbox.models import Message
from scheduler import announcing, converging, making_room, recovery, rendering
from tenants.models import Organization
from tests.factories import (
    after,
    hear,
    make_active_lease,
    make_gpu_model,
    make_host,
    make_lease,
    make_organization,
    make_tenant,
    place,
    price,
    say,
)  # fmt: skip

pytestmark = pytest.mark.django_db
MIN_S = 600
GRACE_S = 30
CLEARING_S = GRACE_S + CLEANING_MARGIN_S


@pytest.fixture(autouse=True)
def _fresh() -> None:
    making_room._tried.clear()


def _market(*, gpus: int = 1, **fields: object) -> Host:
    host = make_host(gpus=gpus, **fields)  # type: ignore[arg-type]
    price(micros=4_000_000)
    price(term="spot", micros=2_000_000)
    return host


def _spot(*, at: datetime | None = None, **asked: object) -> Lease:
    return make_active_lease(term="spot", at=at or after(0), **asked)  # type: ignore[arg-type]


def _now(lease: Lease) -> Lease:
    return Lease.objects.get(pk=lease.pk)


def _refused(at: datetime, tenant: Organization | None = None, request: str = "A100_80G", **asked: object) -> Lease:
    lease = make_lease(tenant, request, at=at, **asked)
    place(at=at + timedelta(seconds=1))
    assert _now(lease).state == State.PENDING
    return lease


def _notice(lease: Lease) -> Notice:
    return Notice.objects.get(lease=lease, closed_at=None)


def test_a_refused_on_demand_lease_is_scheduled_behind_a_spot_lease_that_is_told() -> None:
    _market()
    victim = _spot()
    lease = _refused(after(1000))

    assert making_room.make_room(at=after(1002)) == 1

    notice, now = _notice(victim), _now(lease)
    assert (notice.cause, notice.ends_at, notice.successor_id) == ("spot_reclaim", after(1122), lease.pk)
    assert now.state == State.SCHEDULED
    old, new = Allocation.objects.order_by("pk")
    assert old.during.upper == new.during.lower == after(1122 + CLEARING_S)
    assert new.during.upper is None
    assert _now(victim).state == State.ACTIVE  # it runs on, until the end of its notice
    assert Workload.objects.get(reference=victim.public_id).not_after == after(1124)


def test_the_tenant_is_told_by_an_event_and_a_webhook_with_cause_and_end() -> None:
    _market()
    victim = _spot()
    _refused(after(1000))
    making_room.make_room(at=after(1002))

    event = victim.events.last()
    message = Message.objects.get(topic="lease.notice")
    assert event is not None
    assert (event.reason, event.facts) == ("notice", {"cause": "spot_reclaim", "ends_at": "2027-03-01T12:18:42Z"})
    assert message.payload["id"] == victim.public_id
    assert message.payload["ends_at"] == "2027-03-01T12:18:42Z"
    told = Workload.objects.get(reference=victim.public_id).notice
    assert told is not None
    assert told["cause"] == "spot_reclaim"


@pytest.mark.parametrize("notice_s", [0, 120, 600])
def test_the_notice_is_the_one_that_the_lease_chose(notice_s: int) -> None:
    _market()
    victim = _spot(notice_s=notice_s)
    _refused(after(1000))

    making_room.make_room(at=after(1002))

    assert _notice(victim).ends_at == after(1002 + notice_s)


def test_nobody_is_reclaimed_before_the_minimum_runtime() -> None:
    _market()
    victim = _spot()  # usable from second 2
    _refused(after(300))

    assert making_room.make_room(at=after(2 + MIN_S - 1)) == 0
    making_room._tried.clear()
    assert making_room.make_room(at=after(2 + MIN_S)) == 1
    assert _notice(victim).ends_at == after(2 + MIN_S + 120)


def test_a_restart_in_place_does_not_begin_the_minimum_runtime_anew() -> None:
    _market()
    victim = _spot()
    hear(victim, at=after(500))
    recovery.restart_now(lease=_now(victim), at=after(500))
    say(victim, "ready", at=after(503))
    converging.converge(at=after(503))
    _refused(after(700))

    assert making_room.make_room(at=after(702)) == 1


def test_a_spot_lease_sends_nobody_away() -> None:
    _market()
    _spot()
    _refused(after(1000), term="spot")

    assert making_room.make_room(at=after(1002)) == 0


def test_the_victim_that_loses_least_goes() -> None:
    _market(gpus=2)
    old = _spot()
    young = _spot(at=after(2000))
    _refused(after(3000))

    making_room.make_room(at=after(3002))

    assert (old.notices.count(), young.notices.count()) == (0, 1)


def test_a_lease_for_two_gpus_clears_one_machine_and_not_a_gpu_of_each() -> None:
    first, _ = _market(gpus=2), make_host(gpus=2)
    victims = [_spot(at=after(n)) for n in range(4)]
    lease = _refused(after(2000), request="A100_80G x2")

    assert making_room.make_room(at=after(2002)) == 1

    told = [victim for victim in victims if victim.notices.exists()]
    hosts = {victim.members.get().host_id for victim in told}
    assert len(told) == 2
    assert len(hosts) == 1
    assert {member.host_id for member in lease.members.all()} == hosts
    assert first.pk is not None


def test_a_gang_on_spot_goes_whole() -> None:
    _market(), make_host()
    gang = _spot(request="2*A100_80G")
    _refused(after(1000))

    making_room.make_room(at=after(1002))

    uppers = {row.during.upper for row in Allocation.objects.filter(lease=gang)}
    assert uppers == {after(1122 + CLEARING_S)}


def test_where_known_ends_make_room_as_soon_nobody_is_sent_away() -> None:
    _market(gpus=2)
    _spot()
    make_active_lease(term={"kind": "on_demand", "end_at": after(1100)})
    _refused(after(1000))

    assert making_room.make_room(at=after(1002)) == 0


def test_a_reservation_for_later_is_admitted_and_spot_is_told_so_that_it_begins_in_time() -> None:
    _market()
    victim = _spot()
    start = after(7200)
    lease = _refused(after(1000), term={"kind": "on_demand", "start_at": start, "duration_s": 3600})

    making_room.make_room(at=after(1002))

    (mine,) = Allocation.objects.filter(lease=lease)
    assert mine.during.lower == start
    assert _notice(victim).ends_at == start - timedelta(seconds=CLEARING_S)


def test_at_the_end_of_its_notice_the_victim_waits_for_other_gpus_and_is_charged_no_second_more() -> None:
    _market()
    victim = _spot()
    lease = _refused(after(1000))
    making_room.make_room(at=after(1002))
    hear(victim, at=after(1125))

    converging.converge(at=after(1125))

    now = _now(victim)
    assert (now.state, now.leaves_at) == (State.PENDING, None)
    assert metering.cost(reference=victim.public_id, at=after(9999)).seconds == 1122 - 2
    reasons = [event.reason for event in victim.events.all()]
    assert reasons[-2:] == ["spot_reclaim", "spot_reclaim"]
    assert Notice.objects.get(lease=victim).outcome == "served"

    say(victim, "gone", at=after(1127))
    converging.converge(at=after(1128))  # its GPUs are free early, and their next is not kept waiting
    say(lease, "ready", at=after(1131))
    converging.converge(at=after(1132))

    assert _now(lease).state == State.ACTIVE
    assert reconcile.findings() == []


@pytest.mark.parametrize("policy", ["end", "wait_for_host"])
def test_who_does_not_want_to_start_elsewhere_ends_as_preempted(policy: str) -> None:
    _market()
    victim = _spot(on_interrupt=policy)
    _refused(after(1000))
    making_room.make_room(at=after(1002))
    hear(victim, at=after(1123))

    converging.converge(at=after(1123))

    now = _now(victim)
    assert (now.state, now.ending_reason) == (State.ENDING, EndReason.PREEMPTED)


def test_the_successor_that_is_cancelled_gives_the_gpu_back_to_the_victim() -> None:
    _market()
    victim = _spot()
    lease = _refused(after(1000))
    making_room.make_room(at=after(1002))
    lifecycle.end(lease_id=lease.pk, reason=EndReason.TENANT, at=after(1050))

    announcing.announce(at=after(1051))

    now = _now(victim)
    (mine,) = Allocation.objects.filter(lease=victim)
    assert (now.state, now.leaves_at, mine.during.upper) == (State.ACTIVE, None, None)
    assert Notice.objects.get(lease=victim).outcome == "withdrawn"
    workload = Workload.objects.get(reference=victim.public_id)
    assert (workload.notice, workload.not_after) == (None, None)
    last = victim.events.last()
    assert last is not None
    assert last.reason == "notice_withdrawn"


def test_a_victim_that_its_tenant_ends_during_the_notice_lets_its_successor_begin_at_once() -> None:
    _market()
    victim = _spot(notice_s=600)
    lease = _refused(after(1000))
    making_room.make_room(at=after(1002))
    hear(victim, at=after(1010))
    recovery.end_now(lease=_now(victim), reason=EndReason.TENANT, at=after(1010))
    say(victim, "gone", at=after(1012))
    converging.converge(at=after(1013))
    converging.converge(at=after(1014))

    announcing.announce(at=after(1015))

    assert _now(lease).state == State.PROVISIONING
    assert Notice.objects.get(lease=victim).outcome == "overtaken"
    assert (_now(victim).state, _now(victim).ending_reason) == (State.ENDED, EndReason.TENANT)


def test_a_host_that_is_silent_at_the_end_of_the_notice_is_charged_to_its_last_second_and_let_later() -> None:
    _market()
    victim = _spot()
    lease = _refused(after(1000))
    making_room.make_room(at=after(1002))
    hear(victim, at=after(1100))
    Workload.objects.filter(reference=victim.public_id).update(last_valid_until=after(1124))

    converging.converge(at=after(1123))

    # Its use was lost 22 seconds before the end that it was told: as many of its seconds are free besides.
    assert metering.cost(reference=victim.public_id, at=after(9999)).seconds == 1100 - 2 - 22
    converging.converge(at=after(1122 + CLEARING_S + 1))
    assert _now(lease).state == State.SCHEDULED  # nobody has said that the victim's container is gone
    converging.converge(at=after(1122 + CLEARING_S + CLEANING_MARGIN_S + 5))
    assert _now(lease).state == State.PENDING


def test_a_loop_that_comes_late_charges_nothing_after_the_notice() -> None:
    _market()
    victim = _spot()
    _refused(after(1000))
    making_room.make_room(at=after(1002))
    say(victim, "exited", at=after(1130), exit_code=143)

    converging.converge(at=after(1400))

    assert _now(victim).state == State.PENDING
    assert metering.cost(reference=victim.public_id, at=after(9999)).seconds == 1122 - 2


def test_a_victim_is_told_once_however_often_the_loop_runs() -> None:
    _market()
    victim = _spot()
    _refused(after(1000))
    for second in range(1002, 1060, 7):
        making_room._tried.clear()
        making_room.make_room(at=after(second))
        announcing.announce(at=after(second))

    assert victim.notices.count() == 1
    assert Message.objects.filter(topic="lease.notice").count() == 1


def test_two_waiting_leases_do_not_claim_one_victim() -> None:
    _market(gpus=2)
    victims = [_spot(at=after(n)) for n in range(2)]
    first, second = make_lease(at=after(1000)), make_lease(at=after(1001))
    place(at=after(1002))

    making_room.make_room(at=after(1003))

    assert [_now(lease).state for lease in (first, second)] == [State.SCHEDULED, State.SCHEDULED]
    assert {_notice(victim).successor_id for victim in victims} == {first.pk, second.pk}


def test_the_owner_of_a_machine_that_is_shared_when_idle_comes_first() -> None:
    owner = make_tenant(name="Owner")
    host = _market(owner=owner, access=Host.Access.SHARED_WHEN_IDLE)
    guest = make_active_lease(request="A100_80G")
    lease = _refused(after(1000), owner)

    assert making_room.make_room(at=after(1002)) == 1

    assert _notice(guest).cause == "owner_returns"
    assert lease.members.get().host_id == host.pk


def test_nobody_else_sends_an_on_demand_guest_away() -> None:
    _market(owner=make_organization(), access=Host.Access.SHARED_WHEN_IDLE)
    make_active_lease(request="A100_80G")
    _refused(after(1000))

    assert making_room.make_room(at=after(1002)) == 0


def test_a_victim_that_has_changed_since_it_was_chosen_is_left_for_the_next_pass() -> None:
    _market()
    victim = _spot()
    lease = _refused(after(1000))
    seen = giving_way.Leaver(victim.pk, victim.epoch + 1)

    with pytest.raises(giving_way.NotNow):
        giving_way.make_way(
            leavers=[seen], ends_at=after(1122), cause=Notice.Cause.SPOT_RECLAIM, at=after(1002), successor_id=lease.pk
        )

    assert _now(victim).leaves_at is None


def test_a_lease_that_waits_for_others_to_leave_shows_when_it_begins() -> None:
    _market()
    victim = _spot()
    lease = _refused(after(1000))
    making_room.make_room(at=after(1002))

    shown, told = (rendering.lease(_now(row), at=after(1003)) for row in (lease, victim))

    assert (shown["state"], shown["starts_at"]) == ("scheduled", "2027-03-01T12:22:12Z")
    assert [notice["ends_at"] for notice in told["notices"]] == ["2027-03-01T12:18:42Z"]
    assert (told["starts_at"], told["min_runtime_s"]) == (None, 600)


def test_a_gang_that_asks_gets_all_its_machines_or_tells_nobody() -> None:
    _market(), make_host()
    one, other = _spot(), _spot(at=after(5))
    lease = _refused(after(1000), request="2*A100_80G")
    larger = _refused(after(1001), request="3*A100_80G")

    making_room.make_room(at=after(1002))

    assert {_notice(victim).successor_id for victim in (one, other)} == {lease.pk}
    assert (lease.members.count(), _now(lease).state) == (2, State.SCHEDULED)
    assert _now(larger).state == State.PENDING


def test_a_fraction_of_a_card_clears_the_card() -> None:
    make_gpu_model("RTX_4090_24G", memory_gib=24, fractions=["0.5"])
    make_host(model="RTX_4090_24G")
    price("RTX_4090_24G", term="spot", micros=1_000_000)
    price("RTX_4090_24G/0.5", micros=1_000_000)
    victim = make_active_lease(request="RTX_4090_24G", term="spot")
    lease = _refused(after(1000), request="RTX_4090_24G/0.5")

    making_room.make_room(at=after(1002))

    assert _notice(victim).successor_id == lease.pk
    (mine,) = Allocation.objects.filter(lease=lease)
    assert (mine.mode, mine.units.upper - mine.units.lower) == ("shared", 4)
