"""The pool as the placement engine sees it, and an overlay on which decisions are tried.

Each process keeps it in memory, level with the database (`pool_rows`). Nothing is trusted from it: the calendar's
exclusion constraint has the last word when a decision is written.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import reduce
from uuid import UUID

from django.db.models import Q

from billing.models import PriceVersion
from leasing import promised_price
from leasing.calendar import Seat as CalendarSeat
from leasing.models import Allocation
from scheduler import host_views
from scheduler.host_views import PriceKey, Views
from scheduler.placement import (
    Ask,
    Busy,
    Decider,
    HostView,
    Placement,
    Refusal,
    Repeated,
    can_repeat,
    explained,
    units_mask,
)
from scheduler.placement.eligibility import is_visible
from scheduler.pool_rows import HostRow, Rows

STRANGER = ""  # any organization that the pool does not know: all of them are decided for alike


def seconds(moment: datetime) -> int:
    return int(moment.timestamp())


@dataclass(frozen=True)
class Kept:
    """Seats that somebody has, or will have: the whole of [start_s, end_s) on each; end_s None = an open end."""

    placement: Placement
    organization: UUID
    start_s: int
    end_s: int | None


@dataclass
class _Asked:
    """What is known of one ask on one overlay. seen: how many of the overlay's changes `repeated` knows."""

    refusal: Refusal | None = None
    repeated: Repeated | None = None
    seen: int = 0


@dataclass
class Pool:
    """Hosts by key, `host id/model`; `take` and `give_back` change this overlay only."""

    hosts: dict[str, HostView]
    prices: dict[PriceKey, PriceVersion]
    capacity: dict[UUID, HostRow]
    decider: Decider = field(default_factory=Decider)
    known: set[str] = field(default_factory=set)  # organizations that own a host or share a device
    mark: str = ""  # equal marks in one process: the same pool, but for what time alone changes
    good_until_s: int = 0  # time alone changes nothing before this second
    decisions: int = 0  # how often the engine was asked on this overlay

    def __post_init__(self) -> None:
        self._loaded = dict(self.hosts)
        self._taken: dict[str, list[Kept]] = defaultdict(list)
        self._changed: list[str] = []
        self._freed = 0  # how many of the changes there were when something was given back last
        self._asked: dict[Ask, _Asked] = {}

    def decide(self, ask: Ask, *, explain: bool = True) -> Placement | Refusal:
        """Place a request on the overlay, or say why not."""
        self.decisions += 1
        return self.decider.decide(self.views(), self.general(ask), explain=explain)

    def decide_again(self, ask: Ask, *, when: bool, afresh: bool = False) -> Placement | Refusal:
        """Decide as `decide` does, without what would help; asks that are equal cost little after the first.

        What was refused is refused again, in the words of the first time, unless afresh (something was given back for
        this one). when: the refusal must also say when there will be room now.
        """
        asked = self._asked.setdefault(self.general(ask), _Asked())
        known = None if afresh else asked.refusal
        if known is not None and (known.earliest_s is None or not when):
            return known
        if can_repeat(ask) and (found := self._repeat(ask, asked)) is not None:
            return found
        answer = self.decide(ask, explain=False)
        if isinstance(answer, Refusal) and not afresh:
            asked.refusal = answer
        return answer

    def _repeat(self, ask: Ask, asked: "_Asked") -> Placement | None:
        if asked.repeated is None:
            asked.seen = len(self._changed)
            asked.repeated = Repeated(self.general(ask), self.hosts.values(), self.decider.judge)
            self.decisions += 1
        changed, freed, asked.seen = self._changed[asked.seen :], self._freed > asked.seen, len(self._changed)
        return asked.repeated.decide(self.hosts, [key for key in changed if key in self.hosts], freed=freed)

    def explained(self, ask: Ask, refusal: Refusal) -> Refusal:
        """Return the refusal with what would help."""
        general = self.general(ask)
        visible = [view for view in self.hosts.values() if is_visible(view, general.organization)]
        return explained(visible, general, refusal, judge=self.decider.judge)

    def general(self, ask: Ask) -> Ask:
        """Return the ask as anybody's whom the pool does not know, so that equal asks are seen to be equal."""
        return ask if ask.organization in self.known else replace(ask, organization=STRANGER)

    def views(self) -> list[HostView]:
        return list(self.hosts.values())

    def keys_of(self, host_ids: Iterable[str]) -> frozenset[str]:
        """Return the keys of these hosts' views, one for each model on a host."""
        wanted = set(host_ids)
        return frozenset(key for key in self.hosts if key.split("/")[0] in wanted) if wanted else frozenset()

    def take(self, placement: Placement, *, organization: UUID, start_s: int, end_s: int | None) -> None:
        """Mark the placement's seats as held on the overlay, so that the next decision sees them."""
        self.keep(Kept(placement, organization, start_s, end_s))

    def keep(self, kept: Kept) -> None:
        """As `take`. What is kept can be given back."""
        for key in (str(member.host) for member in kept.placement.members):
            self._taken[key].append(kept)
            self.hosts[key] = _with(self.hosts[key], kept)
            self._changed.append(key)
        if any(seat.mode == "shared" for member in kept.placement.members for seat in member.seats):
            self.known.add(str(kept.organization))

    def give_back(self, kept: Kept) -> None:
        """Undo `keep`. The caller keeps it again, or something that takes no less, or calls `reconsider`."""
        for key in (str(member.host) for member in kept.placement.members):
            self._taken[key].remove(kept)
            self.hosts[key] = reduce(_with, self._taken[key], self._loaded[key])
            self._changed.append(key)
        self._freed = len(self._changed)

    def reconsider(self) -> None:
        """There is more room than there was: what was refused may be had now."""
        for asked in self._asked.values():
            asked.refusal = None


def _with(host: HostView, kept: Kept) -> HostView:
    """Return the host with what is kept on it marked as busy."""
    held: dict[str, list[Busy]] = defaultdict(list)
    for member in kept.placement.members:
        if member.host != host.key:
            continue
        for index, seat in enumerate(member.seats):
            # A member's CPU, memory and disk are counted once, on its first seat.
            share = (member.cpu_milli, member.ram_mib, member.disk_mib) if index == 0 else (0, 0, 0)
            line = Busy(
                units_mask(seat.start, seat.stop), seat.mode, str(kept.organization), kept.start_s, kept.end_s, *share
            )
            held[str(seat.device)].append(line)
    devices = tuple(
        replace(device, busy=(*device.busy, *held[str(device.key)])) if str(device.key) in held else device
        for device in host.devices
    )
    return replace(host, devices=devices)


class Terms:
    """What is kept for one term and currency: its prices, the views of each host, and what was decided over them."""

    def __init__(self) -> None:
        self.prices: dict[PriceKey, PriceVersion] = {}
        self.views: dict[UUID, tuple[int, Views]] = {}
        self.decider = Decider()

    def look(self, rows: Rows, *, currency: str, prices: dict[PriceKey, PriceVersion], at: datetime) -> None:
        """Make anew the views that are not what they were; the others stay the very same objects."""
        if {key: row.pk for key, row in prices.items()} != {key: row.pk for key, row in self.prices.items()}:
            self.views = {pk: (-1, views) for pk, (_, views) in self.views.items()}
        self.prices, now_s = prices, seconds(at)
        for pk, host in rows.hosts.items():
            if host.host.currency != currency:
                continue
            version, before = self.views.get(pk, (-1, None))
            if before is not None and version == rows.versions[pk] and before.made_s <= now_s < before.good_until_s:
                continue
            made = host_views.of_host(host, rows.models, prices, at=at)
            self.views[pk] = (rows.versions[pk], made if before is None else before.kept(made))
        for pk in self.views.keys() - rows.hosts.keys():
            del self.views[pk]


_rows = Rows()
_terms: dict[tuple[str, str], Terms] = {}


def load(*, term: str, currency: str, at: datetime) -> Pool:
    """Return the pool as it is at `at`, with the prices of one term in one currency.

    A host that is as it was at the last load in this process is the same object again, so that what the decider
    remembers of it still holds.
    """
    prices = _prices(term=term, currency=currency, at=at)
    with _rows.lock:
        _rows.refresh()
        kept = _terms.setdefault((term, currency), Terms())
        kept.look(_rows, currency=currency, prices=prices, at=at)
        hosts = {key: view for _, views in kept.views.values() for key, view in views.by_key.items()}
        capacity = {pk: _rows.hosts[pk].host for pk in kept.views}
        known = {str(host.owner_id) for host in capacity.values()}
        known |= {
            line.organization
            for pk in kept.views
            for lines in _rows.hosts[pk].lines.values()
            for line in lines
            if line.mode == Allocation.Mode.SHARED
        }
        versions = sum(hash((pk, version)) for pk, (version, _) in kept.views.items())
        return Pool(
            hosts=hosts, prices=prices, capacity=capacity, decider=kept.decider, known=known,
            mark=f"{term} {currency} {len(hosts)} {versions} {sorted(row.pk for row in prices.values())}",
            good_until_s=min((views.good_until_s for _, views in kept.views.values()), default=0),
        )  # fmt: skip


def check() -> set[UUID]:
    """Compare what is kept with the whole database; put right and return the hosts that differ without a reason."""
    with _rows.lock:
        _rows.refresh()
        return _rows.check()


def forget() -> None:
    """Drop what is remembered between loads: the next one reads everything."""
    with _rows.lock:
        _rows.forget()
        _terms.clear()


def _prices(*, term: str, currency: str, at: datetime) -> dict[PriceKey, PriceVersion]:
    kind, notice_s = promised_price.term_and_notice(term)
    found = PriceVersion.objects.filter(
        series__currency=currency,
        series__term=kind,
        series__use="active",
        series__notice_s=notice_s,
        during__contains=at,
    ).select_related("series")
    return {(version.series.sku, version.series.region, version.series.tier): version for version in found}


def seats(placement: Placement) -> tuple[CalendarSeat, ...]:
    """Translate a placement into the calendar's seats, ranks in the order of its members."""
    return tuple(
        CalendarSeat(
            rank=rank,
            host_id=UUID(str(member.host).split("/")[0]),
            device_id=UUID(str(seat.device)),
            units=(seat.start, seat.stop),
            mode=seat.mode,
        )
        for rank, member in enumerate(placement.members)
        for seat in member.seats
    )


def busy_devices(device_ids: Iterable[UUID], *, at: datetime) -> set[UUID]:
    """Return those of the devices that somebody holds at this moment (a range that began and is not released)."""
    rows = Allocation.objects.filter(
        Q(device_id__in=list(device_ids), released_at__isnull=True, during__startswith__lte=at)
    )
    return set(rows.values_list("device_id", flat=True))
