"""The arithmetic of money, without a database."""

from datetime import date, datetime
from zoneinfo import ZoneInfo

import pytest

from billing import pricing


def test_any_cutting_of_time_posts_the_same_total() -> None:
    price, posted = 219_447, 0

    for second in range(1, 3601):
        posted += pricing.charge(price * second) - pricing.charge(price * (second - 1))

    assert posted == price


def test_a_length_below_zero_is_refused() -> None:
    with pytest.raises(pricing.NegativeUsage):
        pricing.numerator([(100, -1)])


@pytest.mark.parametrize("gross", [0, 1, 7, 333, 999_999_999])
def test_fee_tax_and_host_add_up_to_the_charge(gross: int) -> None:
    shared = pricing.parts(gross=gross, commission_bp=1_250, tax_on_commission_bp=1_900)

    assert shared.fee + shared.tax + shared.host == gross
    assert shared.fee == gross * 125 // 1000


@pytest.mark.parametrize("total", [0, 1, 2, 10, 1_000_003])
def test_parts_of_a_sum_add_up_and_the_first_gets_the_odd_one(total: int) -> None:
    shares = pricing.split(total, [1, 1, 1])

    assert sum(shares) == total
    assert shares == sorted(shares, reverse=True)


def test_nothing_can_be_split_by_no_weight() -> None:
    with pytest.raises(ValueError, match="cannot split"):
        pricing.split(10, [0, 0])


def test_a_renewal_keeps_the_day_of_its_anchor() -> None:
    days = [pricing.boundary(date(2024, 1, 31), k=k).day for k in range(5)]

    assert days == [31, 29, 31, 30, 31]
    assert pricing.boundary(date(2024, 2, 29), k=1, months=12) == date(2025, 2, 28)
    assert pricing.boundary(date(2024, 12, 31), k=0) == date(2024, 12, 31)


def test_a_month_is_stepped_in_the_zone_and_not_in_its_offset_of_the_day() -> None:
    anchor = datetime(2026, 3, 1, 0, 0, tzinfo=ZoneInfo("America/New_York"))

    steps = [pricing.boundary_instant(anchor, k=k, months=1).astimezone(ZoneInfo("UTC")) for k in (0, 1)]

    assert [step.hour for step in steps] == [5, 4]


@pytest.mark.parametrize("text", ["0.999", "1.000", "-1", "1e3", "NaN", "", ".5", "1.", "１"])
def test_an_amount_that_is_finer_or_no_number_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"amount|finer"):
        pricing.parse_amount(text, minor_exponent=2)


def test_an_amount_is_read_to_the_minor_unit() -> None:
    assert pricing.parse_amount("12.34", minor_exponent=2) == 12_340_000
    assert pricing.parse_amount("7", minor_exponent=0) == 7_000_000


def test_the_last_second_that_is_paid_for_is_exact() -> None:
    left = pricing.seconds_left(available_micros=1, burn_micros_per_hour=3600)

    assert left == 1
    assert pricing.seconds_left(available_micros=1, burn_micros_per_hour=3601) == 0
    assert pricing.seconds_left(available_micros=1, burn_micros_per_hour=0) is None
    assert pricing.seconds_left(available_micros=0, burn_micros_per_hour=5, accrued_num=9) == 0


def test_tax_is_half_up_and_the_same_below_zero() -> None:
    assert pricing.tax_minor(25, rate_bp=1000) == 3
    assert pricing.tax_minor(24, rate_bp=1000) == 2
    assert pricing.tax_minor(-25, rate_bp=1000) == -3
