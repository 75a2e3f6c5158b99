"""The price list: a new version from an instant on, never an edit, never in the past; and what a thing costs when."""

from dataclasses import asdict, dataclass
from datetime import datetime

from django.db import transaction
from django.db.backends.postgresql.psycopg_any import DateTimeTZRange

from apikit.clock import whole_second
from apikit.errors import DomainError
from billing import currencies
from billing.models import PriceSeries, PriceVersion
from billing.models.meters import Use


class NotForSale(DomainError):
    slug = "not-for-sale"
    title = "There is no price for this"
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

    The same version again returns the first. Raises PriceInThePast, or ValueError for a price below zero.
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
    last = row.versions.order_by("-during").first()
    if last is not None and last.during.lower == starts_at and all(getattr(last, k) == v for k, v in terms.items()):
        return last
    if starts_at < whole_second(at) or (last is not None and starts_at <= last.during.lower):
        raise PriceInThePast("A price begins now or later, and after every price already published.")
    if last is not None:
        PriceVersion.objects.filter(pk=last.pk).update(during=DateTimeTZRange(last.during.lower, starts_at))
    return row.versions.create(during=DateTimeTZRange(starts_at, None), published_at=at, **terms)


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
