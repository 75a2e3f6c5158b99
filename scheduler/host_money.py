"""What an owner's host earns, how much of it is sold, what an idle hour costs, and which floor its price should have.

Earnings are read from the segments of the meters, as the ledger is: a day's earning is the difference of two cumulative
shares, so days and leases add up to what is posted, micro-unit for micro-unit. A segment belongs to the host whose
devices were bound to its lease and rank when it began.

*Use* is the GPU-seconds that were sold by those that the host had: its GPUs, from its enrolment on. *An idle hour*
costs what a sold one would have brought (the price in force, less commission) times how much of this market is sold.

*The floor that is advised* comes from what comparable GPUs (same model, region and tier; on demand and spot) were sold
for in the last 14 days. With q(p) the GPU-hours sold at price p by the hours there were, and c what an hour of use
costs its owner (power, mostly; he says it), a floor f leaves him

    income(f) = sum over p >= f of q(p) x (p x (1 - commission) - c)      per GPU and hour

which is largest for the smallest price that covers c. So the advice is that price; without a cost it is: no floor.
Under 3 hosts or 50 GPU-hours the data is thin, and the door says so instead of a figure.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from django.conf import settings
from django.db.models import F, Q, Sum, Value
from django.db.models.functions import Coalesce, Greatest, Least

from agents.models import Device, Host
from audit import ids
from billing import costs, pricing, segments
from billing.models import Meter, PriceVersion, Segment
from leasing.models import Allocation

MARKET_DAYS = 14
LEAST_HOSTS, LEAST_GPU_HOURS = 3, 50
HOUR_S = 3600

type Bound = dict[tuple[str, int], list[tuple[int, int]]]  # (reference, rank) -> [from, to) in seconds


@dataclass(frozen=True)
class Earned:
    """Of one lease (and rank) or one day: GPU-seconds sold, what they cost, and the owner's share of it."""

    gpu_seconds: int
    gross_micros: int
    earned_micros: int


@dataclass(frozen=True)
class Earnings:
    by_day: dict[date, Earned]
    by_lease: dict[str, Earned]
    total: Earned


@dataclass(frozen=True)
class Market:
    """Comparable GPUs over the last days. sold: (price, GPU-seconds at it); hosts and capacity: what there was."""

    hosts: int
    capacity_s: int
    sold: tuple[tuple[int, int], ...]

    @property
    def sold_s(self) -> int:
        return sum(seconds for _, seconds in self.sold)

    @property
    def used_bp(self) -> int:
        return min(10_000, self.sold_s * 10_000 // self.capacity_s) if self.capacity_s else 0

    @property
    def is_thin(self) -> bool:
        return self.hosts < LEAST_HOSTS or self.sold_s < LEAST_GPU_HOURS * HOUR_S


def earnings(*, host: Host, days: list[tuple[date, datetime, datetime]]) -> Earnings:
    """Return what the host earned on each of the days, given with their bounds, oldest first."""
    start_s, end_s = _s(days[0][1]), _s(days[-1][2])
    bound = _bound(host, days[0][1], days[-1][2])
    by_day: dict[date, Earned] = defaultdict(lambda: Earned(0, 0, 0))
    by_lease: dict[str, Earned] = defaultdict(lambda: Earned(0, 0, 0))
    for reading in _readings(host, bound, end_s=end_s):
        mine = bound[reading.meter.reference, reading.meter.member]
        for day, first, last in days:
            part = _part(reading, mine, start_s=max(start_s, _s(first)), end_s=_s(last))
            if part.gpu_seconds or part.gross_micros:
                by_day[day] = _plus(by_day[day], part)
                by_lease[reading.meter.reference] = _plus(by_lease[reading.meter.reference], part)
    return Earnings(dict(by_day), dict(by_lease), _sum(by_day.values()))


def days_until(*, at: datetime, count: int, time_zone: str) -> list[tuple[date, datetime, datetime]]:
    """Return the last `count` days of a time zone with their bounds, oldest first; the last one ends at `at`."""
    zone = ZoneInfo(time_zone)
    today = at.astimezone(zone).date()
    found = []
    for back in range(count - 1, -1, -1):
        day = today - timedelta(days=back)
        first = datetime(day.year, day.month, day.day, tzinfo=zone)
        following = day + timedelta(days=1)
        last = datetime(following.year, following.month, following.day, tzinfo=zone)
        found.append((day, first, min(last, at)))
    return found


def capacity_s(host: Host, *, start: datetime, end: datetime) -> int:
    """Return the GPU-seconds that the host had: its GPUs that are there, from its enrolment on."""
    begun = max(start, host.enrolled_at or host.created_at)
    gpus = host.devices.filter(present=True).count()
    return gpus * max(0, int((end - begun).total_seconds()))


def market(*, sku: str, region: str, tier: str, at: datetime) -> Market:
    """Return what comparable GPUs sold in the last days."""
    since = at - timedelta(days=MARKET_DAYS)
    start_s, end_s = _s(since), _s(at)
    seconds = Least(Coalesce(F("end_s"), Value(end_s)), Value(end_s)) - Greatest(F("start_s"), Value(start_s))
    rows = Segment.objects.filter(
        Q(end_s=None) | Q(end_s__gt=start_s), start_s__lt=end_s, meter__use="active",
        price_version__series__sku=sku, price_version__series__region=region, price_version__series__tier=tier,
    )  # fmt: skip
    by_price = rows.values_list("price_version__price_micros_per_hour").annotate(sold=Sum(seconds * F("quantity")))
    hosts = Host.objects.filter(zone__region__slug=region, tier=tier, devices__model__slug=sku).exclude(state="retired")
    found = {host.pk: host for host in hosts}
    per_host: dict[UUID, int] = defaultdict(int)
    for host_id in Device.objects.filter(host__in=found, present=True).values_list("host", flat=True):
        per_host[host_id] += 1
    capacity = sum(
        gpus * max(0, end_s - max(start_s, _s(found[pk].enrolled_at or found[pk].created_at)))
        for pk, gpus in per_host.items()
    )
    return Market(len(found), capacity, tuple(sorted((price, int(sold)) for price, sold in by_price.order_by())))


def income_per_gpu_hour(market: Market, *, floor_micros: int, cost_micros: int) -> int:
    """Return what a floor leaves an owner of a GPU for each hour, sold or not: the formula above. Pure."""
    keep_bp = 10_000 - settings.COMMISSION_BP
    if not market.capacity_s:
        return 0
    left = sum(
        seconds * (price * keep_bp // 10_000 - cost_micros) for price, seconds in market.sold if price >= floor_micros
    )
    return left // market.capacity_s


def advised_floor(market: Market, *, cost_micros: int) -> int | None:
    """Return the best floor among the prices that were paid, 0 for none; None where the data is thin. Pure."""
    if market.is_thin:
        return None
    floors = [0, *(price for price, _ in market.sold)]
    return max(floors, key=lambda f: (income_per_gpu_hour(market, floor_micros=f, cost_micros=cost_micros), -f))


def idle_hour_micros(*, price_micros: int, market: Market) -> tuple[int, int]:
    """Return (what a sold GPU-hour would have brought its owner, that times how much of the market is sold)."""
    brought = price_micros * (10_000 - settings.COMMISSION_BP) // 10_000
    return brought, brought * market.used_bp // 10_000


def prices_now(host: Host, *, sku: str, at: datetime) -> dict[str, int]:
    """Return the prices in force for the host's GPUs by term: on_demand, spot."""
    rows = PriceVersion.objects.filter(
        series__sku=sku, series__region=host.zone.region.slug, series__tier=host.tier, series__use="active",
        series__term__in=["on_demand", "spot"], during__contains=at,
    ).select_related("series")  # fmt: skip
    found: dict[str, int] = {}
    for row in rows:
        found[row.series.term] = min(row.price_micros_per_hour, found.get(row.series.term, row.price_micros_per_hour))
    return found


def _bound(host: Host, start: datetime, end: datetime) -> Bound:
    """Return when devices of the host were bound to which lease and rank."""
    rows = Allocation.objects.filter(device__host=host, lease__isnull=False, during__overlap=(start, end))
    found: dict[tuple[str, int], set[tuple[int, int]]] = defaultdict(set)
    for lease_id, rank, during in rows.values_list("lease", "rank", "during"):
        last = segments.FOREVER_S if during.upper is None else _s(during.upper)
        found[ids.encode("lease", lease_id), rank].add((_s(during.lower), last))
    return {key: sorted(spans) for key, spans in found.items()}


def _readings(host: Host, bound: Mapping[tuple[str, int], Any], *, end_s: int) -> Iterable[segments.Reading]:
    references = {reference for reference, _ in bound}
    meters = Meter.objects.filter(reference__in=references, payee__owner=host.owner_id).select_related("payer")
    return list(segments.read(meter for meter in meters if (meter.reference, meter.member) in bound).values())


def _part(reading: segments.Reading, mine: list[tuple[int, int]], *, start_s: int, end_s: int) -> Earned:
    """Return what one meter brought in [start_s, end_s) on this host: its part of the difference of two shares."""
    if end_s <= start_s:
        return Earned(0, 0, 0)
    after, before = (_share(reading, second) for second in (end_s, start_s))
    lines = costs.lines(reading, start_s=start_s, end_s=end_s)
    everything, so_far, earned, gross, gpu_seconds = sum(line.micros for line in lines), 0, 0, 0, 0
    for line in lines:
        # Differences of a running share, so that the hosts' parts of one meter add up to it.
        upto = so_far + line.micros
        part = ((after - before) * upto // everything - (after - before) * so_far // everything) if everything else 0
        so_far = upto
        if line.price_version_id is None or _holds(mine, _s(line.start)):
            gross, earned = gross + line.micros, earned + part
            is_use = line.price_version_id is not None and line.use == "active"
            gpu_seconds += line.seconds * line.quantity if is_use else 0
    return Earned(gpu_seconds, gross, earned)


def _share(reading: segments.Reading, second: int) -> int:
    meter = reading.meter
    return pricing.parts(
        gross=reading.charge_until(second), commission_bp=meter.commission_bp,
        tax_on_commission_bp=meter.tax_on_commission_bp,
    ).host  # fmt: skip


def _holds(spans: list[tuple[int, int]], second: int) -> bool:
    # What is bound at 12:00:00.4 may be metered from 12:00:00 on: whole seconds.
    return any(first <= second < last for first, last in spans)


def _plus(one: Earned, other: Earned) -> Earned:
    return Earned(
        one.gpu_seconds + other.gpu_seconds, one.gross_micros + other.gross_micros,
        one.earned_micros + other.earned_micros,
    )  # fmt: skip


def _sum(parts: Iterable[Earned]) -> Earned:
    total = Earned(0, 0, 0)
    for part in parts:
        total = _plus(total, part)
    return total


def _s(moment: datetime) -> int:
    return int(moment.timestamp())
