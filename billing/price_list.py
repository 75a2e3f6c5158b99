"""The price list: a new version from an instant on, never an edit, never in the past; and what a thing costs when."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from datetime import datetime

from django.db import transaction
from django.db.backends.postgresql.psycopg_any import DateTimeTZRange

from apikit.clock import whole_second
from apikit.errors import DomainError
from billing import currencies
from billing.models import PriceSeries, PriceVersion
from billing.models.meters import Use

# 2^63 micro-units x seconds are 2.56 x 10^9 major units of one meter: a price that gets there within a day is a slip.
MOST_MICROS_PER_HOUR = 2**63 // 86_400


class NotForSale(DomainError):
    slug = "not-for-sale"
    title = "There is no price for this"
    status = 422


class PriceTooHigh(DomainError):
    slug = "price-too-high"
    title = "What one meter uses at this price cannot be reckoned with for a day"
    status = 422


class PriceInThePast(DomainError):
    slug = "price-in-the-past"
    title = "A price cannot begin before now, or before one that is already published"


@dataclass(frozen=True)
class Series:
    """What one price is for. term: on_demand, spot or reserved:P1M; notice_s: of a spot lease."""

    sku: str
    region: str
    tier: str
    term: str
    use: str
    currency: str
    notice_s: int = 0


@transaction.atomic
def publish(
    *,
    series: Series,
    price_micros_per_hour: int,
    starts_at: datetime,
    cause: str,
    at: datetime,
    minimum_s: int = 0,
    free_if_interrupted_s: int = 0,
    unit: str = "gpu_hour",
) -> PriceVersion:
    """Let a price of ONE unit for one hour begin at `starts_at` (a whole second), ending the version before it.

    The same version again returns the first. Raises PriceInThePast, PriceTooHigh beyond MOST_MICROS_PER_HOUR, or
    ValueError for a price below zero.
    """
    starts_at = whole_second(starts_at)
    row = _locked_series(series)
    terms = {
        "price_micros_per_hour": price_micros_per_hour,
        "minimum_s": minimum_s,
        "free_if_interrupted_s": free_if_interrupted_s,
        "unit": unit,
        "cause": cause,
    }
    if min(price_micros_per_hour, minimum_s, free_if_interrupted_s) < 0:
        raise ValueError(f"negative price terms: {terms}")
    if price_micros_per_hour > MOST_MICROS_PER_HOUR:
        raise PriceTooHigh(f"{price_micros_per_hour} micro-units an hour are too many.")
    last = row.versions.order_by("-during").first()
    if last is not None and last.during.lower == starts_at and all(getattr(last, k) == v for k, v in terms.items()):
        return last
    if starts_at < whole_second(at) or (last is not None and starts_at <= last.during.lower):
        raise PriceInThePast("A price begins now or later, and after every price already published.")
    if last is not None:
        PriceVersion.objects.filter(pk=last.pk).update(during=DateTimeTZRange(last.during.lower, starts_at))
    return row.versions.create(during=DateTimeTZRange(starts_at, None), published_at=at, **terms)


@dataclass(frozen=True)
class FirstPrice:
    """What a series costs from its beginning; `minimum_s` as in `publish`."""

    series: Series
    price_micros_per_hour: int
    minimum_s: int = 0
    unit: str = "gpu_hour"


@transaction.atomic
def publish_first(prices: Sequence[FirstPrice], *, starts_at: datetime, cause: str, at: datetime) -> int:
    """Open many series at once, each at its first price; one that has a price already keeps it. Return how many began.

    Three statements, however many there are. Raises PriceInThePast, PriceTooHigh, or ValueError for a price below zero.
    """
    starts_at = whole_second(starts_at)
    if starts_at < whole_second(at):
        raise PriceInThePast("A price begins now or later.")
    if any(min(first.price_micros_per_hour, first.minimum_s) < 0 for first in prices):
        raise ValueError("negative price terms")
    if any(first.price_micros_per_hour > MOST_MICROS_PER_HOUR for first in prices):
        raise PriceTooHigh(f"A price is beyond {MOST_MICROS_PER_HOUR} micro-units an hour.")
    PriceSeries.objects.bulk_create([PriceSeries(**asdict(first.series)) for first in prices], ignore_conflicts=True)
    names = [field.name for field in fields(Series)]
    unpriced = {
        tuple(getattr(row, name) for name in names): row for row in PriceSeries.objects.filter(versions__isnull=True)
    }
    versions = [
        PriceVersion(
            series=unpriced[key],
            during=DateTimeTZRange(starts_at, None),
            price_micros_per_hour=first.price_micros_per_hour,
            minimum_s=first.minimum_s,
            unit=first.unit,
            cause=cause,
            published_at=at,
        )
        for first in prices
        if (key := tuple(getattr(first.series, name) for name in names)) in unpriced
    ]
    return len(PriceVersion.objects.bulk_create(versions))


def version_at(*, series: Series, at: datetime) -> PriceVersion:
    """Return the version in force at an instant, or raise NotForSale."""
    found = PriceVersion.objects.filter(during__contains=at, **_matching(series)).first()
    if found is None:
        raise NotForSale(
            f"{series.sku} is not sold in {series.region} ({series.tier}, {series.term}, {series.use}).",
            sku=series.sku,
            region=series.region,
        )
    return found


def history(*, series: Series, since: datetime) -> list[PriceVersion]:
    """Return every version in force since an instant, oldest first, with what is published ahead."""
    return list(
        PriceVersion.objects.filter(during__overlap=DateTimeTZRange(since, None), **_matching(series))
        .select_related("series")
        .order_by("during")
    )


def in_force(*, at: datetime, sku: str | None = None, region: str | None = None) -> list[PriceVersion]:
    """Return what is on the list at an instant: one version per series."""
    versions = PriceVersion.objects.filter(during__contains=at).select_related("series")
    if sku is not None:
        versions = versions.filter(series__sku=sku)
    if region is not None:
        versions = versions.filter(series__region=region)
    return list(versions.order_by("series__sku", "series__region", "series__tier", "series__term", "series__use"))


def _matching(series: Series) -> dict[str, object]:
    return {f"series__{field}": value for field, value in asdict(series).items()}


def _locked_series(series: Series) -> PriceSeries:
    currencies.get(series.currency)
    if series.use not in Use.values:
        raise ValueError(f"{series.use!r} is no kind of use")
    PriceSeries.objects.bulk_create([PriceSeries(**asdict(series))], ignore_conflicts=True)
    return PriceSeries.objects.select_for_update(no_key=True).get(**asdict(series))
