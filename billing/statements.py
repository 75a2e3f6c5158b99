"""Statements: what was used and charged, per reference and per month. Views over the books that write nothing."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID
from zoneinfo import ZoneInfo

from django.db.models import Sum

from billing import costs, segments, shards
from billing.models import Meter, Transfer
from billing.models.accounts import AccountKind

PURSES = (AccountKind.WALLET, AccountKind.PROMO_GRANT, AccountKind.OVERRUN_EXPENSE)


@dataclass(frozen=True)
class ReferenceStatement:
    """posted_micros: in the ledger so far; what runs beyond that follows with the next close or the end."""

    reference: str
    cost: costs.Cost
    settled: bool
    posted_micros: int
    ended_by: str


@dataclass(frozen=True)
class Part:
    """What one reference used within a month."""

    reference: str
    labels: dict[str, str]
    lines: tuple[costs.Line, ...]
    micros: int


@dataclass(frozen=True)
class MonthStatement:
    """charged_micros: usage of the month; the other figures are the ledger's entries within it, by kind."""

    owner: UUID
    currency: str
    start: datetime
    end: datetime
    parts: tuple[Part, ...]
    charged_micros: int
    paid_in_micros: int
    opening_micros: int
    closing_micros: int


def for_reference(*, reference: str, at: datetime) -> ReferenceStatement:
    """Return what a reference used and cost until `at`, line by line; the lines add up to the charge exactly."""
    meters = list(Meter.objects.filter(reference=reference))
    return ReferenceStatement(
        reference=reference,
        cost=costs.of_reference(reference=reference, at=at),
        settled=bool(meters) and all(meter.settled_at for meter in meters),
        posted_micros=_posted(meters),
        ended_by=meters[0].ended_by if meters else "",
    )


def month_bounds(*, year: int, month: int, time_zone: str) -> tuple[datetime, datetime]:
    """Return the instants at which a month begins and ends in a zone."""
    zone = ZoneInfo(time_zone)
    following = (year + month // 12, month % 12 + 1)
    return datetime(year, month, 1, tzinfo=zone).astimezone(UTC), datetime(*following, 1, tzinfo=zone).astimezone(UTC)


def month(*, owner: UUID, year: int, month: int, time_zone: str, at: datetime) -> list[MonthStatement]:
    """Return the statement of a month in the organization's zone, one per currency, as known at `at`."""
    start, end = month_bounds(year=year, month=month, time_zone=time_zone)
    currencies = Meter.objects.filter(payer__owner=owner).values_list("payer__currency", flat=True)
    in_wallets = Transfer.objects.filter(credit__owner=owner, credit__kind=AccountKind.WALLET)
    names = {*currencies, *in_wallets.values_list("currency", flat=True)}
    return [between(owner=owner, currency=c, start=start, end=end, at=at) for c in sorted(names)]


def between(*, owner: UUID, currency: str, start: datetime, end: datetime, at: datetime) -> MonthStatement:
    """Return the statement of [start, end) in one currency."""
    parts = tuple(_parts(owner, currency, start=start, end=min(end, at)))
    return MonthStatement(
        owner=owner,
        currency=currency,
        start=start,
        end=end,
        parts=parts,
        charged_micros=sum(part.micros for part in parts),
        paid_in_micros=_moved(owner, currency, start=start, end=end, kind="topup"),
        opening_micros=_moved(owner, currency, start=None, end=start),
        closing_micros=_moved(owner, currency, start=None, end=end),
    )


def _parts(owner: UUID, currency: str, *, start: datetime, end: datetime) -> Iterable[Part]:
    start_s, end_s = int(start.timestamp()), int(end.timestamp())
    meters = Meter.objects.filter(payer__owner=owner, payer__currency=currency, segments__start_s__lt=end_s).distinct()
    readings = segments.read(meters.order_by("reference", "member", "pk").select_related("payer")).values()
    by_reference: dict[str, list[segments.Reading]] = {}
    for reading in readings:
        by_reference.setdefault(reading.meter.reference, []).append(reading)
    for reference, own in by_reference.items():
        lines = tuple(line for r in own for line in costs.lines(r, start_s=start_s, end_s=end_s))
        if lines:
            yield Part(reference, own[0].meter.labels, lines, sum(line.micros for line in lines))


def _posted(meters: list[Meter]) -> int:
    readings = segments.read(meters).values()
    return sum(r.posted(shards.closed_to_s(r.meter.shard)) for r in readings)


def _moved(owner: UUID, currency: str, *, start: datetime | None, end: datetime, kind: str | None = None) -> int:
    """Return what the wallet gained by entries effective in [start, end), less what it lost."""
    entries = Transfer.objects.filter(currency=currency, journal__effective_at__lt=end)
    if start is not None:
        entries = entries.filter(journal__effective_at__gte=start)
    if kind is not None:
        entries = entries.filter(journal__kind=kind)
    wallet = {"owner": owner, "kind": AccountKind.WALLET}
    gained = entries.filter(**{f"credit__{k}": v for k, v in wallet.items()}).aggregate(
        n=Sum("amount_micros", default=0)
    )
    lost = entries.filter(**{f"debit__{k}": v for k, v in wallet.items()}).aggregate(n=Sum("amount_micros", default=0))
    return int(gained["n"] - lost["n"])
