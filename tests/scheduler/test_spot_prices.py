"""The loop of spot prices: one step per slot, by what the calendar says is in use, and meters that follow it."""

from datetime import datetime
from itertools import pairwise

import pytest
from rest_framework.test import APIClient

from agents.models import Host
from apikit import clock
from billing import metering, price_list, reconcile, spot_rule
from billing.models import PriceVersion
from leasing.models import Lease
from scheduler import spot_prices
from scheduler.models import SpotStep
from tests.factories import NOON, after, end_and_clean, make_active_lease, make_gpu_model, make_host, make_tenant, price

pytestmark = pytest.mark.django_db
SLOT_S = spot_rule.SLOT_S


def _series(notice_s: int = 120) -> price_list.Series:
    return price_list.Series("A100_80G", "sim", "verified", "spot", "active", "XTS", notice_s)


def _prices(notice_s: int = 120) -> list[int]:
    return [version.price_micros_per_hour for version in price_list.history(series=_series(notice_s), since=NOON)]


def _market(*, gpus: int = 1, spot: int = 2_000_000, on_demand: int = 4_000_000) -> Host:
    host = make_host(gpus=gpus)
    price(micros=on_demand)
    price(term="spot", micros=spot)
    return host


def test_an_idle_pool_lowers_the_price_by_a_tenth_published_ahead() -> None:
    _market()

    assert spot_prices.step_due(at=after(60)) == 3

    last = price_list.history(series=_series(), since=NOON)[-1]
    assert last.price_micros_per_hour == 1_800_000
    assert last.during.lower == after(SLOT_S)  # five minutes ahead, and ten after the last beginning
    assert last.cause == "spot-1: 0.00 % in use, target 80 %"


def test_a_full_pool_raises_it() -> None:
    _market()
    make_active_lease()

    spot_prices.step_due(at=after(60))

    assert _prices() == [2_000_000, 2_200_000]


def test_half_a_card_in_use_is_half_of_a_pool_of_one() -> None:
    make_gpu_model("RTX_4090_24G", memory_gib=24, fractions=["0.5"])
    make_host(model="RTX_4090_24G")
    price("RTX_4090_24G/0.5")
    make_active_lease(request="RTX_4090_24G/0.5")

    assert spot_prices.utilisation(at=after(60)) == {("RTX_4090_24G", "sim", "verified"): (4, 8)}


def test_what_cannot_be_let_counts_on_neither_side() -> None:
    _market(gpus=2)
    make_host(gpus=8, state=Host.State.LOST)
    make_host(gpus=8, access=Host.Access.PRIVATE)
    make_host(gpus=8, scheduling=Host.Scheduling.CORDONED)

    assert spot_prices.utilisation(at=after(1)) == {("A100_80G", "sim", "verified"): (0, 16)}


def test_a_tick_that_is_doubled_in_one_slot_makes_one_step() -> None:
    _market()
    for second in (60, 61, 599):
        spot_prices.step_due(at=after(second))

    assert _prices() == [2_000_000, 1_800_000]


def test_after_a_gap_of_hours_one_step_is_made_not_many() -> None:
    _market()
    spot_prices.step_due(at=after(60))
    spot_prices.step_due(at=after(6 * 3600))

    assert _prices() == [2_000_000, 1_800_000, 1_620_000]


def test_a_clock_that_goes_back_makes_no_step() -> None:
    _market()
    spot_prices.step_due(at=after(3600))
    spot_prices.step_due(at=after(60))

    assert _prices() == [2_000_000, 1_800_000]


def test_prices_never_begin_closer_than_a_slot_nor_move_by_more_than_a_tenth() -> None:
    _market()
    for slot in range(12):
        late_s = 590 if slot % 2 else 3
        spot_prices.step_due(at=after(slot * SLOT_S + late_s))

    versions = price_list.history(series=_series(600), since=NOON)
    assert len(versions) > 6
    for last, new in pairwise(versions):
        assert (new.during.lower - last.during.lower).total_seconds() >= SLOT_S
        assert abs(new.price_micros_per_hour - last.price_micros_per_hour) * 10 <= last.price_micros_per_hour
        assert (new.during.lower - new.published_at).total_seconds() >= 600
    assert versions[-1].price_micros_per_hour >= 1_000_000  # a quarter of the on-demand price


def test_what_is_not_sold_on_demand_or_has_no_gpus_stays() -> None:
    make_host(state=Host.State.LOST)
    price(micros=4_000_000)
    price(term="spot", micros=2_000_000)
    price("H100_80G", term="spot", micros=2_000_000)

    assert spot_prices.step_due(at=after(60)) == 0
    assert not SpotStep.objects.exclude(used_bp=None, version=None).exists()


def test_a_running_lease_pays_each_price_for_its_own_seconds_to_the_micro_unit() -> None:
    _market(gpus=1, spot=1_999_999)
    lease = make_active_lease(term="spot")  # usable from second 2
    spot_prices.step_due(at=after(60))  # the pool is full: 2,199,998 from second 600 on
    spot_prices.step_due(at=after(700))  # 2,419,997 from second 1,200 on

    lease = end_and_clean(lease, at=after(1_500))

    seconds = [(598, 1_999_999), (600, 2_199_998), (300, 2_419_997)]
    assert _prices()[:3] == [figure for _, figure in seconds]
    assert lease.charged_micros == sum(s * figure for s, figure in seconds) // 3600
    lines = metering.cost(reference=lease.public_id, at=after(9_999)).lines
    assert [(line.seconds, line.price_micros_per_hour) for line in lines] == seconds
    assert reconcile.findings() == []


def test_the_price_door_tells_the_rule_and_the_history_which_version_moved_it() -> None:
    _market()
    spot_prices.step_due(at=after(60))
    client = APIClient()

    with clock.frozen(after(120)):
        listed = client.get("/api/v1/market/prices?sku=A100_80G").json()
        history = client.get("/api/v1/market/history?sku=A100_80G&region=sim").json()["items"]

    assert listed["spot_rule"]["name"] == "spot-1"
    assert listed["spot_rule"]["most_step_percent"] == 10
    moved = [item for item in history if item["term"] == "spot" and item["notice_s"] == 120]
    assert [item["cause"] for item in moved] == ["test", "spot-1: 0.00 % in use, target 80 %"]
    assert moved[1]["version"] == PriceVersion.objects.get(cause__startswith="spot-1", series__notice_s=120).pk
    assert moved[1]["published_at"] == "2027-03-01T12:01:00Z"


def test_each_notice_is_sold_at_its_own_price() -> None:
    _market(gpus=3)
    for notice_s, micros in ((0, 1_000_000), (600, 1_500_000)):
        price_list.publish(
            series=_series(notice_s), price_micros_per_hour=micros, starts_at=after(1), cause="test", at=after(1)
        )

    def paid(notice_s: int, at: datetime) -> int | None:
        lease: Lease = make_active_lease(make_tenant(), term="spot", notice_s=notice_s, at=at)
        return lease.price_micros_per_hour

    assert [paid(0, after(2)), paid(120, after(10)), paid(600, after(20))] == [1_000_000, 2_000_000, 1_500_000]
