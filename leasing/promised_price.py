"""What a request may cost: the price versions that its alternatives could be given."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from apikit.errors import DomainError
from apikit.statements import Statement
from billing import price_list
from billing.models import PriceVersion
from leasing.catalogue_view import View
from leasing.grammar import Option

SECONDS_PER_HOUR = 3600
DEFAULT_NOTICE_S = 120
NOTICES_S = (0, 120, 600)  # a spot lease chooses one; each has its own price


class NothingForSale(DomainError):
    slug = "no-capacity"
    title = "Nothing of this kind is for sale there"


def term_and_notice(term: str) -> tuple[str, int]:
    """Return how the price list names a price term, and its notice: `spot:600` is spot with 600 s; `spot` has 120 s."""
    kind, _, notice = term.partition(":")
    return ("spot", int(notice or DEFAULT_NOTICE_S)) if kind == "spot" else (term, 0)


def series(*, sku: str, region: str, tier: str, term: str, use: str, currency: str) -> price_list.Series:
    """Return the series that prices a lease of this price term."""
    kind, notice_s = term_and_notice(term)
    return price_list.Series(sku, region, tier, kind, use, currency, notice_s)


def sku(*, model: str, slice_name: str | None) -> str:
    return f"{model}/{slice_name}" if slice_name else model


def skus(option: Option, view: View) -> list[str]:
    """Return what could be sold for one alternative: its model, or each model whose memory fits."""
    if option.model is not None:
        return [sku(model=option.model, slice_name=option.slice)]
    low, high = option.memory_gib or (0, None)
    return [slug for slug, gib in view.memory_gib.items() if gib >= low and (high is None or gib <= high)]


_TOP = """
SELECT max(v.price_micros_per_hour) FROM billing_priceversion v JOIN billing_priceseries s ON s.id = v.series_id
WHERE s.sku = ANY(%s) AND s.region = ANY(%s) AND s.currency = %s AND s.term = %s AND s.use = 'active'
    AND s.notice_s = %s AND v.during @> %s::timestamptz"""


def tops(
    *, options: Iterable[Option], view: View, regions: Iterable[str], currency: str, term: str, at: datetime
) -> list[Statement]:
    """Return the question for the highest price of a GPU of each alternative; `highest` reads the answers."""
    allowed = set(regions)
    kind, notice_s = term_and_notice(term)
    return [
        Statement(
            _TOP,
            [
                skus(option, view), sorted({option.region} & allowed if option.region else allowed), currency, kind,
                notice_s, at,
            ],
        )
        for option in options
    ]  # fmt: skip


def highest(*, options: Sequence[Option], answers: Iterable[list[tuple[Any, ...]]], currency: str) -> int:
    """Return what an hour of the dearest alternative costs, all its GPUs together, in micro-units.

    Raises NothingForSale when no alternative has a price in these regions.
    """
    found: list[int] = [
        top * option.nodes * option.count
        for option, ((top,),) in zip(options, answers, strict=True) if top is not None
    ]  # fmt: skip
    if not found:
        raise NothingForSale(f"No price in {currency} for {' | '.join(map(str, options))}.", currency=currency)
    return max(found)


class Book:
    """Versions of prices that were looked up: for as long as one pass, since a version ends when the next begins."""

    def __init__(self) -> None:
        self._known: dict[price_list.Series, list[PriceVersion]] = {}

    def version_at(self, sold_as: price_list.Series, at: datetime) -> PriceVersion:
        """As price_list.version_at. Raises NotForSale."""
        known = self._known.setdefault(sold_as, [])
        for version in known:
            if version.during.lower <= at and (version.during.upper is None or at < version.during.upper):
                return version
        known.append(price_list.version_at(series=sold_as, at=at))
        return known[-1]


def frozen(
    *, sku: str, region: str, tier: str, term: str, currency: str, priced_at: datetime, at: datetime,
    cap_micros: int | None = None, book: Book | None = None,
) -> PriceVersion:  # fmt: skip
    """Return the version that was promised at `priced_at`; today's, if that was not sold then or was above the cap.

    book: what is known already. Raises NotForSale.
    """
    book = book or Book()
    sold_as = series(sku=sku, region=region, tier=tier, term=term, use="active", currency=currency)
    try:
        promised = book.version_at(sold_as, priced_at)
    except price_list.NotForSale:
        return book.version_at(sold_as, at)
    too_dear = cap_micros is not None and promised.price_micros_per_hour > cap_micros
    return book.version_at(sold_as, at) if too_dear else promised
