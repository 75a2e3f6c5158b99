"""What ends a lease must end it in every state in which it can be caught: its term, its money, a drained host."""

from datetime import UTC, datetime, timedelta

import pytest

from agents import host_life
from agents.models import Host, Workload
from apikit.errors import InvalidInput
from billing import budgets, metering, price_list, reconcile, wallets
from billing.models.terms import BudgetAction
from leasing import parking, term_changes
from leasing.models import Allocation, Lease
from leasing.states import EndReason, State
from scheduler import converging, recovery
from tests.factories import (
    NOON,
    after,
    hear,
    make_active_lease,
    make_host,
    make_lease,
    make_tenant,
    make_zone,
    place,
    price,
    say,
)  # fmt: skip

pytestmark = pytest.mark.django_db
HOUR = 3600


def _until(seconds: float) -> dict[str, object]:
    return {"kind": "on_demand", "end_at": after(seconds)}


def _price_of_holding() -> None:
    series = price_list.Series(
        sku="A100_80G", region="sim", tier="verified", term="on_demand", use="hold", currency="XTS"
    )
    price_list.publish(series=series, price_micros_per_hour=900_000, starts_at=NOON, cause="test", at=NOON)


def _held() -> int:
    return Allocation.objects.filter(released_at=None).count()


def _parked(**asked: object) -> Lease:
    make_host()
    price()
    _price_of_holding()
    lease = make_active_lease(**asked)  # type: ignore[arg-type]
    hear(lease, at=after(10))
    recovery.park_now(lease=lease, keep=parking.HOLD, at=after(10))
    say(lease, "gone", at=after(12))
    lease.refresh_from_db()
    return lease


def test_a_lease_that_is_never_placed_before_its_end_is_over_and_gets_its_money_back() -> None:
    make_host(state=Host.State.UNVERIFIED)
    price()
    lease = make_lease(term=_until(HOUR))
    place(at=after(1))

    converging.converge(at=after(HOUR))

    lease.refresh_from_db()
    assert (lease.state, lease.ending_reason, lease.charged_micros) == (State.ENDED, EndReason.NEVER_PLACED, 0)
    assert reconcile.findings() == []


def test_a_lease_that_waits_again_after_a_loss_expires_with_its_term() -> None:
    host = make_host()
    price()
    lease = make_active_lease(term=_until(HOUR))
    hear(lease, at=after(100))
    Host.objects.filter(pk=host.pk).update(state=Host.State.LOST)
    converging.converge(at=after(131))

    converging.converge(at=after(HOUR))

    lease.refresh_from_db()
    assert (lease.state, lease.ending_reason) == (State.ENDED, EndReason.EXPIRED)


def test_a_waiting_lease_whose_end_is_past_does_not_stop_the_placing_of_others() -> None:
    make_host(gpus=4)
    price()
    late, other = make_lease(term=_until(60)), make_lease()

    place(at=after(HOUR))

    other.refresh_from_db(), late.refresh_from_db()
    assert (late.state, other.state) == (State.PENDING, State.PROVISIONING)


def test_a_parked_lease_expires_and_gives_its_gpus_back() -> None:
    lease = _parked(term=_until(HOUR))

    converging.converge(at=after(HOUR + 5))
    converging.converge(at=after(HOUR + 6))

    lease.refresh_from_db()
    assert (lease.state, lease.ending_reason, _held()) == (State.ENDED, EndReason.EXPIRED, 0)
    held_s = sum(
        line.seconds for line in metering.cost(reference=lease.public_id, at=after(9999)).lines if line.use == "hold"
    )
    assert held_s == HOUR - 10


def test_a_loop_that_comes_late_bills_nothing_after_the_end() -> None:
    make_host()
    price()
    lease = make_active_lease(term=_until(HOUR))
    say(lease, "exited", at=after(HOUR + 20), exit_code=143)

    converging.converge(at=after(HOUR + 60))

    lease.refresh_from_db()
    assert lease.ending_reason == EndReason.EXPIRED
    assert metering.cost(reference=lease.public_id, at=after(9999)).seconds == HOUR - 2


def test_a_lease_that_waits_for_its_host_expires_with_its_term() -> None:
    host = make_host()
    price()
    lease = make_active_lease(term=_until(HOUR), on_interrupt="wait_for_host")
    hear(lease, at=after(100))
    Host.objects.filter(pk=host.pk).update(state=Host.State.LOST)
    converging.converge(at=after(131))

    converging.converge(at=after(HOUR))

    lease.refresh_from_db()
    assert (lease.state, lease.ending_reason) == (State.ENDING, EndReason.EXPIRED)


def test_a_parked_lease_ends_when_the_money_for_holding_its_gpus_is_used_up() -> None:
    lease = _parked()

    converging.stop_exhausted(at=NOON + timedelta(days=60))

    lease.refresh_from_db()
    assert lease.ending_reason == EndReason.BALANCE


def test_a_budget_that_stops_what_it_covers_also_stops_the_holding_of_gpus() -> None:
    lease = _parked()
    budgets.create(
        owner=lease.organization_id, currency="XTS", amount_micros=1_000_000, name="small", label="",
        thresholds_bp=[10_000], action=BudgetAction.STOP, time_zone="UTC", at=after(11),
    )  # fmt: skip

    converging.stop_over_budget(at=after(3 * HOUR))

    lease.refresh_from_db()
    assert lease.ending_reason == EndReason.BALANCE


def test_an_empty_wallet_ends_nothing_that_another_currency_pays_for() -> None:
    tenant = make_tenant(micros=10_000_000)
    make_host()
    make_host(zone=make_zone("real-1", simulated=False))
    price()
    price(region="real", micros=1_000_000)
    wallets.top_up(
        owner=tenant.pk, currency="CNY", amount_micros=1_000_000_000, key="cny", by="test", reason="test", at=NOON
    )
    poor, rich = make_active_lease(tenant, "A100_80G @sim"), make_active_lease(tenant, "A100_80G @real")

    converging.stop_exhausted(at=after(4 * HOUR))

    poor.refresh_from_db(), rich.refresh_from_db()
    assert (poor.ending_reason, rich.state) == (EndReason.BALANCE, State.ACTIVE)


def test_a_scheduled_lease_cancelled_after_its_start_gives_its_gpus_back() -> None:
    make_host()
    price()
    lease = make_lease(term={"kind": "on_demand", "start_at": after(HOUR), "end_at": after(2 * HOUR)})
    place(at=after(1))
    lease.refresh_from_db()
    assert lease.state == State.SCHEDULED

    recovery.end_now(lease=lease, reason=EndReason.TENANT, at=after(HOUR + 1))
    converging.converge(at=after(HOUR + 2))

    assert _held() == 0


def test_a_moved_end_moves_the_instant_at_which_the_host_stops_its_container() -> None:
    make_host()
    price()
    lease = make_active_lease(term=_until(HOUR))

    term_changes.change_end(lease_id=lease.pk, end_at=after(2 * HOUR), at=after(60))

    not_after = Workload.objects.get(reference=lease.public_id).not_after
    assert not_after is not None
    assert after(2 * HOUR) < not_after <= after(2 * HOUR + 2)


def test_a_duration_that_begins_with_the_first_second_is_told_to_the_host() -> None:
    make_host()
    price()

    lease = make_active_lease(term="2h")

    not_after = Workload.objects.get(reference=lease.public_id).not_after
    assert lease.end_at == after(2 + 2 * HOUR)
    assert not_after is not None
    assert lease.end_at < not_after <= after(4 + 2 * HOUR)


def test_a_renewing_lease_is_not_stopped_by_its_host_before_the_renewal_reaches_it() -> None:
    make_host()
    price(term="reserved:P1W")
    lease = make_active_lease(term={"kind": "reserved", "period": "P1W", "renew": True})
    ends = lease.end_at
    assert ends is not None
    workload = Workload.objects.get(reference=lease.public_id)
    assert workload.not_after is not None
    assert ends < workload.not_after <= ends + timedelta(seconds=180)
    hear(lease, at=ends)

    converging.converge(at=ends)

    lease.refresh_from_db(), workload.refresh_from_db()
    assert lease.end_at == ends + timedelta(days=7) < workload.not_after


def test_a_host_is_given_back_to_its_owner_at_the_deadline_of_its_drain() -> None:
    host, other = make_host(name="leaving"), make_host(name="staying", scheduling=Host.Scheduling.CORDONED)
    price()
    lease = make_active_lease()
    Host.objects.filter(pk=other.pk).update(scheduling=Host.Scheduling.OPEN)
    host_life.drain(host_id=host.pk, deadline=after(600), reason="I need it", by="owner", at=after(60))
    hear(lease, at=after(569))
    converging.converge(at=after(569))
    lease.refresh_from_db()
    assert lease.state == State.ACTIVE

    hear(lease, at=after(570))  # the stop grace before the deadline
    converging.converge(at=after(570))

    lease.refresh_from_db()
    assert lease.state == State.PENDING
    assert not Workload.objects.filter(host=host, wanted=True).exists()
    assert metering.cost(reference=lease.public_id, at=after(999)).seconds == 568
    say(lease, "gone", at=after(580))
    place(at=after(581))
    lease.refresh_from_db()
    assert lease.members.get(epoch=lease.epoch).host_id == other.pk


def test_a_lease_that_waits_for_its_host_ends_when_that_is_drained() -> None:
    host = make_host()
    price()
    lease = make_active_lease(on_interrupt="wait_for_host")
    host_life.drain(host_id=host.pk, deadline=after(100), reason="I need it", by="owner", at=after(60))
    hear(lease, at=after(100))

    converging.converge(at=after(100))

    lease.refresh_from_db()
    assert (lease.state, lease.ending_reason) == (State.ENDING, EndReason.HOST_LOST)


@pytest.mark.parametrize("year", [2029, 9999])
def test_an_end_cannot_be_moved_beyond_what_a_lease_may_last(year: int) -> None:
    make_host()
    price()
    lease = make_active_lease(term=_until(HOUR))

    with pytest.raises(InvalidInput):
        term_changes.change_end(lease_id=lease.pk, end_at=datetime(year, 12, 31, 23, 59, 59, tzinfo=UTC), at=after(60))


def test_nobody_pays_for_holding_gpus_that_are_lost() -> None:
    lease = _parked()
    hear(lease, at=after(500))
    Host.objects.update(state=Host.State.LOST)

    converging.converge(at=after(531))
    converging.converge(at=after(532))

    lease.refresh_from_db()
    assert (lease.state, lease.parked_keep, _held()) == (State.PARKED, parking.QUEUE, 0)
    cost = metering.cost(reference=lease.public_id, at=after(9999))
    assert [line.seconds for line in cost.lines if line.use == "hold"] == [490]
    assert reconcile.findings() == []
