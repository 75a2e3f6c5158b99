"""Parking, resuming, restarting in place, and terms that renew: what is kept, what is paid."""

from datetime import UTC, datetime, timedelta

import pytest

from agents.models import Workload
from billing import budgets, metering, price_list, reconcile
from billing.models.terms import BudgetAction
from leasing import parking, terms
from leasing.models import Allocation, Lease
from leasing.moves import WrongState
from leasing.states import EndReason, State
from scheduler import converging, recovery, rendering
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


@pytest.fixture(autouse=True)
def _pool() -> None:
    make_host(gpus=4)
    price()
    series = price_list.Series(
        sku="A100_80G", region="sim", tier="verified", term="on_demand", use="hold", currency="XTS"
    )
    price_list.publish(series=series, price_micros_per_hour=360_000, starts_at=NOON, cause="test", at=NOON)


def park(lease: Lease, keep: str, *, at: datetime) -> Lease:
    hear(lease, at=at)
    parked = recovery.park_now(lease=lease, keep=keep, at=at)
    say(lease, "gone", at=at)
    converging.converge(at=at + timedelta(seconds=1))
    return parked


def test_a_parked_lease_keeps_its_gpus_for_the_hold_fee_and_starts_again_on_them() -> None:
    lease = make_active_lease(request="A100_80G x4")
    park(lease, "hold", at=after(102))
    held = set(Allocation.objects.filter(lease=lease, released_at=None).values_list("device", flat=True))
    rival = make_lease(request="A100_80G", at=after(110))
    place(at=after(111))
    rival.refresh_from_db()
    assert (rival.state, len(held)) == (State.PENDING, 4)

    parking.resume(lease_id=lease.pk, at=after(202))
    say(lease, "ready", at=after(205))
    converging.converge(at=after(206))

    lease.refresh_from_db()
    assert (lease.state, lease.epoch) == (State.ACTIVE, 2)
    assert set(Allocation.objects.filter(lease=lease, epoch=2).values_list("device", flat=True)) == held
    # 100 s of use at 1,000 micro-units per GPU and second, 100 s of hold at a tenth of that, 10 s of use.
    cost = metering.cost(reference=lease.public_id, at=after(215)).charged_micros
    assert cost == 4 * (100 * 1_000 + 100 * 100 + 10 * 1_000)


def test_a_lease_parked_in_the_queue_gives_its_gpus_up_and_pays_nothing() -> None:
    lease = make_active_lease(request="A100_80G x4")
    park(lease, "queue", at=after(102))
    converging.converge(at=after(104))
    rival = make_lease(request="A100_80G x4", at=after(110))
    place(at=after(111))
    rival.refresh_from_db()
    assert rival.state == State.PROVISIONING

    parking.resume(lease_id=lease.pk, at=after(202))
    place(at=after(203))

    lease.refresh_from_db()
    assert lease.state == State.PENDING
    assert metering.cost(reference=lease.public_id, at=after(500)).charged_micros == 4 * 100 * 1_000


def test_holding_without_a_price_for_it_is_refused_and_the_lease_runs_on() -> None:
    make_host(gpus=1, model="H100_80G")
    price("H100_80G")
    lease = make_active_lease(request="H100_80G")

    with pytest.raises(parking.NoHoldPrice):
        recovery.park_now(lease=lease, keep="hold", at=after(10))

    lease.refresh_from_db()
    assert lease.state == State.ACTIVE
    assert metering.cost(reference=lease.public_id, at=after(12)).running


def test_ending_a_parked_lease_ends_the_fee() -> None:
    lease = make_active_lease()
    park(lease, "hold", at=after(102))

    ended = end_and_clean(lease, at=after(202))
    converging.converge(at=after(204))

    ended.refresh_from_db()
    assert (ended.state, ended.charged_micros) == (State.ENDED, 100 * 1_000 + 100 * 100)
    assert not Allocation.objects.filter(lease=lease, released_at=None).exists()
    assert reconcile.findings() == []


def test_a_restart_keeps_the_devices_and_leaves_the_gap_unbilled() -> None:
    lease = make_active_lease(request="A100_80G x2")
    hear(lease, at=after(52))

    recovery.restart_now(lease=lease, at=after(52))
    say(lease, "ready", at=after(60))
    converging.converge(at=after(61))

    lease.refresh_from_db()
    assert (lease.state, lease.epoch) == (State.ACTIVE, 2)
    assert metering.cost(reference=lease.public_id, at=after(70)).seconds == 50 + 10


def test_a_command_that_exits_is_restarted_three_times_and_then_completes() -> None:
    lease = make_active_lease(on_exit="restart")
    for turn in range(4):
        at = after(10 + 10 * turn)
        say(lease, "exited", at=at, exit_code=1)
        converging.converge(at=at + timedelta(seconds=5))
        say(lease, "ready", at=at + timedelta(seconds=6))
        converging.converge(at=at + timedelta(seconds=7))

    lease.refresh_from_db()
    assert lease.epoch == 4
    assert (lease.state, lease.ending_reason) in {
        (State.ENDING, EndReason.COMPLETED), (State.ENDED, EndReason.COMPLETED),
    }  # fmt: skip


def test_what_is_not_running_cannot_be_parked() -> None:
    with pytest.raises(WrongState):
        parking.park(lease_id=make_lease().pk, keep="hold", at=after(1))


@pytest.mark.parametrize(
    ("start", "period", "periods", "end"),
    [
        (datetime(2027, 1, 31, 12, tzinfo=UTC), "P1M", 1, datetime(2027, 2, 28, 12, tzinfo=UTC)),
        (datetime(2027, 1, 31, 12, tzinfo=UTC), "P1M", 2, datetime(2027, 3, 31, 11, tzinfo=UTC)),  # summer time began
        (datetime(2028, 2, 29, 12, tzinfo=UTC), "P1Y", 1, datetime(2029, 2, 28, 12, tzinfo=UTC)),
        (datetime(2027, 3, 25, 12, tzinfo=UTC), "P1W", 1, datetime(2027, 4, 1, 11, tzinfo=UTC)),  # summer time began
    ],
)
def test_a_period_ends_on_the_tenants_calendar(start: datetime, period: str, periods: int, end: datetime) -> None:
    zone = "Europe/Berlin"

    assert terms.end_of(start=start, duration_s=None, period=period, zone=zone, periods=periods) == end


def test_a_reserved_lease_renews_at_its_end_or_expires() -> None:
    price(term="reserved:P1M", micros=1_800_000)
    term = {"kind": "reserved", "period": "P1M"}
    renewing, ending = make_active_lease(term={**term, "renew": True}), make_active_lease(term=term)
    month_later = datetime(2027, 4, 1, 12, 0, 2, tzinfo=UTC)
    assert renewing.end_at == ending.end_at == month_later
    for lease in (renewing, ending):
        hear(lease, at=month_later + timedelta(seconds=5))

    converging.converge(at=month_later + timedelta(seconds=6))

    renewing.refresh_from_db(), ending.refresh_from_db()
    assert (renewing.state, renewing.end_at) == (State.ACTIVE, datetime(2027, 5, 1, 12, 0, 2, tzinfo=UTC))
    assert ending.ending_reason == EndReason.EXPIRED


def test_a_reserved_lease_that_its_tenant_ends_early_pays_its_commitment() -> None:
    series = price_list.Series(
        sku="A100_80G", region="sim", tier="verified", term="reserved:P1W", use="active", currency="XTS"
    )
    price_list.publish(
        series=series, price_micros_per_hour=1_800_000, minimum_s=7 * 86_400, starts_at=NOON, cause="test", at=NOON
    )
    lease = make_active_lease(term={"kind": "reserved", "period": "P1W"})

    ended = end_and_clean(lease, at=after(3602))
    converging.converge(at=after(3604))

    ended.refresh_from_db()
    assert ended.charged_micros == 7 * 86_400 * 500


def test_a_used_up_budget_refuses_new_leases_and_may_stop_running_ones() -> None:
    tenant = make_tenant()
    lease = make_active_lease(tenant)
    budgets.create(
        owner=tenant.pk, name="small", currency="XTS", amount_micros=50_000, label="", thresholds_bp=[10_000],
        action=BudgetAction.STOP, time_zone="UTC", at=NOON,
    )  # fmt: skip
    hear(lease, at=after(102))

    with pytest.raises(budgets.BudgetExceeded):
        make_lease(tenant, at=after(102))
    converging.stop_over_budget(at=after(102))

    lease.refresh_from_db()
    assert lease.ending_reason == EndReason.BALANCE


@pytest.mark.parametrize("keep", ["hold", "queue"])
def test_a_member_that_was_told_to_stop_is_not_shown_running(keep: str) -> None:
    lease = make_active_lease(make_tenant())
    hear(lease, at=after(10))
    Workload.objects.update(last_valid_until=after(70))  # its host has been told of it

    parked = recovery.park_now(lease=lease, keep=keep, at=after(10))

    assert [member["state"] for member in rendering.lease(parked, at=after(10))["members"]] == ["stopping"]
    say(lease, "gone", at=after(15))
    assert [member["state"] for member in rendering.lease(parked, at=after(15))["members"]] == ["gone"]
