"""The published rule of spot prices: bounded, monotone, and at rest on its target."""

from hypothesis import given
from hypothesis import strategies as st

from billing import spot_rule

PRICES = st.integers(1, 10**9)
USED = st.integers(0, 10_000)


def test_a_full_pool_raises_by_ten_percent_and_an_empty_one_lowers_by_ten() -> None:
    free = {"floor_micros": 0, "ceiling_micros": 10**9}

    assert spot_rule.next_price(price_micros=1_000_000, used_bp=10_000, **free) == 1_100_000
    assert spot_rule.next_price(price_micros=1_000_000, used_bp=0, **free) == 900_000
    assert spot_rule.next_price(price_micros=1_000_000, used_bp=9_000, **free) == 1_050_000
    assert spot_rule.next_price(price_micros=1_000_000, used_bp=spot_rule.TARGET_BP, **free) == 1_000_000


@given(price=PRICES, used=USED, floor=PRICES, width=PRICES)
def test_no_step_is_wider_than_a_tenth_and_none_leaves_the_bounds(
    price: int, used: int, floor: int, width: int
) -> None:
    ceiling = floor + width

    moved = spot_rule.next_price(price_micros=price, used_bp=used, floor_micros=floor, ceiling_micros=ceiling)

    assert abs(moved - price) * 10 <= price
    if floor <= price <= ceiling:
        assert floor <= moved <= ceiling
    elif price < floor:
        assert price <= moved <= ceiling
    else:
        assert floor <= moved <= price


@given(price=PRICES, used=USED, more=USED)
def test_more_use_never_makes_a_lower_price(price: int, used: int, more: int) -> None:
    low, high = sorted((used, more))
    bounds = {"price_micros": price, "floor_micros": price // 2, "ceiling_micros": price * 2}

    assert spot_rule.next_price(used_bp=low, **bounds) <= spot_rule.next_price(used_bp=high, **bounds)


def test_a_price_outside_its_bounds_comes_back_in_bounded_steps() -> None:
    price, steps = 4_000_000, []
    for _ in range(6):
        price = spot_rule.next_price(price_micros=price, used_bp=10_000, floor_micros=1, ceiling_micros=3_000_000)
        steps.append(price)

    assert steps == [3_600_000, 3_240_000, 3_000_000, 3_000_000, 3_000_000, 3_000_000]


def test_a_longer_notice_has_higher_bounds_and_none_is_dearer_than_on_demand() -> None:
    found = [spot_rule.bounds(on_demand_micros=1_000_000, notice_s=notice_s) for notice_s in (0, 120, 600)]

    assert found == sorted(found)
    assert found[-1][1] == 1_000_000
