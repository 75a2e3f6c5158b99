"""Many series opened at once: a price that is there stays."""

import pytest

from billing import price_list
from billing.models import PriceVersion
from billing.price_list import FirstPrice, Series
from tests.factories import NOON, after, make_zone, price

pytestmark = pytest.mark.django_db


def series(sku: str) -> Series:
    return Series(sku=sku, region="sim", tier="verified", term="on_demand", use="active", currency="XTS")


def test_series_without_a_price_get_one_and_the_others_keep_theirs() -> None:
    make_zone()
    kept = price("A100_80G", micros=3_600_000)
    wanted = [FirstPrice(series("A100_80G"), 1), FirstPrice(series("H100_80G"), 7_200_000, minimum_s=60)]

    began = price_list.publish_first(wanted, starts_at=after(5), cause="test", at=after(5))
    again = price_list.publish_first(wanted, starts_at=after(6), cause="test", at=after(6))

    assert (began, again) == (1, 0)
    assert price_list.version_at(series=series("A100_80G"), at=after(9)) == kept
    fresh = price_list.version_at(series=series("H100_80G"), at=after(9))
    assert (fresh.price_micros_per_hour, fresh.minimum_s) == (7_200_000, 60)


def test_a_first_price_in_the_past_or_below_zero_is_refused() -> None:
    with pytest.raises(price_list.PriceInThePast):
        price_list.publish_first([FirstPrice(series("X"), 1)], starts_at=NOON, cause="test", at=after(5))
    with pytest.raises(ValueError, match="negative"):
        price_list.publish_first([FirstPrice(series("X"), -1)], starts_at=NOON, cause="test", at=NOON)
    assert not PriceVersion.objects.exists()
