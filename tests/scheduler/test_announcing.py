"""Tenants are told before anything ends, once, and told again when it is off; broken promises are credited."""

import pytest

from agents import host_life
from agents.models import Host, Workload
from billing import metering, price_list, reconcile, spot, wallets
from leasing import broken_promises, noticing, term_changes
from leasing.models import Lease
from leasing.notice_models import Notice
from leasing.states import EndReason, State
from outbox.models import Message
from scheduler import announcing, converging, making_room, recovery
from tests.factories import after, hear, make_active_lease, make_host, make_lease, make_tenant, place, price

pytestmark = pytest.mark.django_db


def _open(lease: Lease) -> list[tuple[str, object]]:
    rows = Notice.objects.filter(lease=lease, closed_at=None).order_by("ends_at")
    return [(str(row.cause), row.ends_at) for row in rows]


def _lease(**asked: object) -> tuple[Host, Lease]:
    host = make_host()
    price(micros=4_000_000)
    price(term="spot", micros=2_000_000)
    return host, make_active_lease(**asked)  # type: ignore[arg-type]


def test_a_drain_is_told_to_its_leases_with_the_second_in_which_they_stop() -> None:
    host, lease = _lease()
    host_life.drain(host_id=host.pk, deadline=after(3600), reason="new fans", by="owner", at=after(100))

    announcing.announce(at=after(101))
    announcing.announce(at=after(102))

    assert _open(lease) == [("drain", after(3570))]
    told = Workload.objects.get(reference=lease.public_id).notice
    assert told == {
        "cause": "drain", "ends_at": "2027-03-01T12:59:30Z", "detail": "Its machine is taken back: new fans",
    }  # fmt: skip
    assert Message.objects.filter(topic="lease.notice").count() == 1


def test_containers_that_are_started_anew_during_a_notice_are_told_too() -> None:
    host, lease = _lease()
    host_life.drain(host_id=host.pk, deadline=after(3600), reason="x", by="owner", at=after(100))
    announcing.announce(at=after(101))
    hear(lease, at=after(200))
    recovery.restart_now(lease=Lease.objects.get(pk=lease.pk), at=after(200))

    announcing.announce(at=after(201))

    anew = Workload.objects.filter(reference=lease.public_id).order_by("-epoch")[0]
    assert anew.notice is not None
    assert anew.notice["cause"] == "drain"
    assert Message.objects.filter(topic="lease.notice").count() == 1


def test_a_drain_that_moves_is_told_anew_and_one_that_is_off_is_taken_back() -> None:
    host, lease = _lease()
    host_life.drain(host_id=host.pk, deadline=after(3600), reason="x", by="owner", at=after(100))
    announcing.announce(at=after(101))
    host_life.drain(host_id=host.pk, deadline=after(7200), reason="x", by="owner", at=after(200))
    announcing.announce(at=after(201))
    assert _open(lease) == [("drain", after(7170))]

    host_life.uncordon(host_id=host.pk, by="owner", at=after(300))
    announcing.announce(at=after(301))

    assert _open(lease) == []
    assert [e.reason for e in lease.events.order_by("seq")][-3:] == ["notice", "notice", "notice_withdrawn"]
    assert Workload.objects.get(reference=lease.public_id).notice is None


def test_an_end_is_told_ten_minutes_ahead_and_taken_back_when_the_term_is_extended() -> None:
    _, lease = _lease(term={"kind": "on_demand", "end_at": after(3600)})

    announcing.announce(at=after(2999))
    assert _open(lease) == []
    announcing.announce(at=after(3000))
    assert _open(lease) == [("expiry", after(3600))]

    term_changes.change_end(lease_id=lease.pk, end_at=after(9000), at=after(3100))
    announcing.announce(at=after(3101))

    assert _open(lease) == []


def test_an_end_that_came_closes_its_notice_as_served() -> None:
    _, lease = _lease(term={"kind": "on_demand", "end_at": after(3600)})
    announcing.announce(at=after(3100))
    hear(lease, at=after(3601))
    converging.converge(at=after(3601))

    announcing.announce(at=after(3602))

    assert Notice.objects.get(lease=lease).outcome == "served"


def test_the_end_of_the_money_is_told_and_taken_back_when_money_comes() -> None:
    make_host()
    price(micros=3_600_000)
    tenant = make_tenant(micros=1_200_000)  # 1,200 seconds
    lease = make_active_lease(tenant)

    announcing.announce(at=after(500))
    assert _open(lease) == []
    announcing.announce(at=after(700))
    assert _open(lease) == [("balance", after(1202))]

    wallets.top_up(
        owner=tenant.pk, currency="XTS", amount_micros=10**9, key="topup:more", by="test", reason="t", at=after(800)
    )
    announcing.announce(at=after(801))

    assert _open(lease) == []


def _cap(micros: int) -> dict[str, object]:
    return {"max_price": {"amount": "1", "currency": "XTS", "amount_micros": micros}}


def _move_price(micros: int, *, starts_s: float, at_s: float, notice_s: int = 120) -> None:
    series = price_list.Series("A100_80G", "sim", "verified", "spot", "active", "XTS", notice_s)
    spot.move(series=series, price_micros_per_hour=micros, starts_at=after(starts_s), cause="test", at=after(at_s))


def test_a_price_that_passes_a_cap_is_told_when_it_is_published_and_never_charged() -> None:
    _, lease = _lease(term="spot", constraints=_cap(3_000_000))
    _move_price(4_000_000, starts_s=1300, at_s=1000)

    announcing.announce(at=after(1001))
    assert _open(lease) == [("price_cap", after(1300))]
    hear(lease, at=after(1302))
    converging.converge(at=after(1302))

    lease.refresh_from_db()
    assert lease.ending_reason == EndReason.PREEMPTED
    assert metering.cost(reference=lease.public_id, at=after(9999)).charged_micros == 2_000_000 * 1298 // 3600
    assert reconcile.findings() == []


def test_a_cap_that_is_passed_with_less_than_the_notice_is_credited_for_what_is_missing() -> None:
    _, lease = _lease(term="spot", notice_s=600, constraints=_cap(3_000_000))
    _move_price(4_000_000, starts_s=1300, at_s=1000, notice_s=600)
    announcing.announce(at=after(1001))
    hear(lease, at=after(1302))

    converging.converge(at=after(1302))

    # Promised 600 s, known since its publication for 300: the last 300 seconds are free.
    assert metering.cost(reference=lease.public_id, at=after(9999)).charged_micros == 2_000_000 * (1298 - 300) // 3600
    assert lease.events.get(reason="promise_broken").facts == {"seconds": 300}
    assert reconcile.findings() == []


def test_a_cap_and_a_notice_together_end_it_at_the_sooner_of_the_two() -> None:
    _, lease = _lease(term="spot", notice_s=600, constraints=_cap(3_000_000))
    make_lease(at=after(1000))
    place(at=after(1001))
    making_room._tried.clear()
    making_room.make_room(at=after(1002))  # leaves at 1,602
    _move_price(4_000_000, starts_s=1700, at_s=1010, notice_s=600)
    announcing.announce(at=after(1011))
    assert _open(lease) == [("spot_reclaim", after(1602)), ("price_cap", after(1700))]
    hear(lease, at=after(1705))

    converging.converge(at=after(1705))  # late: both have come about

    lease.refresh_from_db()
    assert lease.state == State.PENDING
    assert metering.cost(reference=lease.public_id, at=after(9999)).seconds == 1600


def test_a_notice_that_is_off_leaves_another_by_which_the_devices_go_as_it_is() -> None:
    _, lease = _lease(term="spot", notice_s=600, constraints=_cap(3_000_000))
    successor = make_lease(at=after(1000))
    place(at=after(1001))
    making_room._tried.clear()
    making_room.make_room(at=after(1002))  # leaves at 1,602
    lease.refresh_from_db()
    noticing.give(lease, cause=Notice.Cause.BALANCE, ends_at=after(1500), at=after(1003))

    announcing.announce(at=after(1004))  # there is money again

    lease.refresh_from_db(), successor.refresh_from_db()
    assert _open(lease) == [("spot_reclaim", after(1602))]
    assert (lease.leaves_at, successor.state) == (after(1602), State.SCHEDULED)


def test_a_host_that_dies_before_the_minimum_runtime_costs_a_spot_tenant_nothing() -> None:
    host, lease = _lease(term="spot")
    hear(lease, at=after(400))
    Host.objects.filter(pk=host.pk).update(state=Host.State.LOST)

    converging.converge(at=after(431))

    assert metering.cost(reference=lease.public_id, at=after(9999)).charged_micros == 0
    assert lease.events.get(reason="promise_broken").facts == {"seconds": 398}
    assert reconcile.findings() == []


def test_a_host_that_dies_later_owes_nothing_but_the_seconds_it_was_silent() -> None:
    host, lease = _lease(term="spot")
    hear(lease, at=after(1000))
    Host.objects.filter(pk=host.pk).update(state=Host.State.LOST)

    converging.converge(at=after(1031))

    assert metering.cost(reference=lease.public_id, at=after(9999)).seconds == 998


def test_a_drain_at_once_breaks_the_notice_of_a_spot_lease() -> None:
    host, lease = _lease(term="spot")
    hear(lease, at=after(1000))
    host_life.drain(host_id=host.pk, deadline=after(1030), reason="now", by="owner", at=after(1000))

    converging.converge(at=after(1001))

    assert metering.cost(reference=lease.public_id, at=after(9999)).seconds < 1001 - 2 - 100
    assert lease.events.filter(reason="promise_broken").exists()


@pytest.mark.parametrize(
    ("ran_s", "given_s", "early_s", "free_s"),
    [
        (599, None, 0, 599),  # before its minimum runtime: all of it
        (600, None, 0, 0),
        (600, 120, 0, 0),
        (600, 50, 0, 70),  # its notice was 70 seconds short
        (600, 100, 20, 20),  # it was lost 20 seconds before the end of its notice
        (600, 0, 0, 120),
        (600, 500, 4000, 120),  # never more than its notice
    ],
)
def test_what_is_taken_back(ran_s: int, given_s: int | None, early_s: int, free_s: int) -> None:
    found = broken_promises.missing_s(ran_s=ran_s, min_runtime_s=600, promised_s=120, given_s=given_s, early_s=early_s)

    assert found == free_s


def test_a_lease_that_its_tenant_parks_or_ends_gets_nothing_back() -> None:
    _, lease = _lease(term="spot")
    hear(lease, at=after(100))
    recovery.end_now(lease=lease, reason=EndReason.TENANT, at=after(100))

    assert metering.cost(reference=lease.public_id, at=after(9999)).seconds == 98
