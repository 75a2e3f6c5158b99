"""Commission by tiers: what was earned last month chooses, a month keeps its tier, and a meter keeps its commission."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from books import make_owner, make_price, run

from billing import commission, metering
from billing.models import CommissionRate, Meter

pytestmark = pytest.mark.django_db
TIERS = ((0, 1_000), (10_000_000, 900), (20_000_000, 800))


@pytest.fixture(autouse=True)
def _tiers(settings: Any) -> None:
    settings.COMMISSION_TIERS = TIERS
    settings.COMMISSION_CLASS_DISCOUNT_BP = {"certified": 150}


def _earn(owner: UUID, micros: int, *, at: datetime) -> None:
    lease = run(payer=make_owner(10**9), payee=owner, price=make_price(micros), commission_bp=0, at=at)
    metering.finish(reference=lease, at=at + timedelta(hours=1), ended_by="tenant")


def _rate(owner: UUID, at: datetime, host_class: str = "verified") -> int:
    return commission.rate_bp(owner=owner, currency="USD", host_class=host_class, at=at)


@pytest.mark.parametrize(
    ("earned", "bp"), [(0, 1_000), (9_999_999, 1_000), (10_000_000, 900), (19_999_999, 900), (10**15, 800)]
)
def test_the_highest_tier_that_was_reached_counts(earned: int, bp: int) -> None:
    assert commission.tier_bp(earned_micros=earned, tiers=TIERS) == bp


def test_a_debt_is_of_no_tier_below_the_first() -> None:
    with pytest.raises(ValueError, match="no tier"):
        commission.tier_bp(earned_micros=-1, tiers=TIERS)


def test_last_months_earnings_choose_and_the_month_keeps_its_tier() -> None:
    owner = uuid4()
    _earn(owner, 12_000_000, at=datetime(2026, 5, 31, 23, tzinfo=UTC))  # ends with the month: it is May's

    assert _rate(owner, datetime(2026, 5, 31, 12, tzinfo=UTC)) == 1_000
    assert _rate(owner, datetime(2026, 6, 1, tzinfo=UTC)) == 900
    _earn(owner, 90_000_000, at=datetime(2026, 5, 3, tzinfo=UTC))  # a late fact about May changes June no more
    assert _rate(owner, datetime(2026, 6, 30, 23, 59, tzinfo=UTC)) == 900
    assert _rate(owner, datetime(2026, 7, 1, tzinfo=UTC)) == 1_000
    assert sorted(CommissionRate.objects.values_list("bp", flat=True)) == [900, 1_000, 1_000]


def test_the_class_of_the_host_takes_its_part_off_and_never_goes_below_nothing() -> None:
    assert _rate(uuid4(), datetime(2026, 1, 1, tzinfo=UTC), "certified") == 850
    assert commission.of_class(bp=100, host_class="certified", class_discount_bp={"certified": 150}) == 0


def test_a_running_meter_keeps_the_commission_that_it_began_with() -> None:
    owner, price = uuid4(), make_price(3_600_000)
    _earn(owner, 30_000_000, at=datetime(2026, 5, 10, tzinfo=UTC))
    began = datetime(2026, 5, 31, 23, 30, tzinfo=UTC)
    lease = run(payer=make_owner(10**9), payee=owner, price=price, at=began, commission_bp=_rate(owner, began))
    assert _rate(owner, datetime(2026, 6, 1, tzinfo=UTC)) == 800

    metering.finish(reference=lease, at=datetime(2026, 6, 1, 0, 30, tzinfo=UTC), ended_by="tenant")

    assert Meter.objects.get(reference=lease).commission_bp == 1_000
