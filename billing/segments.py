"""From the facts about a reference to its segments: written anew from all facts, whatever order they came in."""

import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise, zip_longest

from django.db.models import F, Q

from billing import charging, pricing, timeline
from billing.models import Meter, MeterFact, PriceVersion, Segment, Void
from billing.models.meters import Lane, Use

log = logging.getLogger(__name__)
AS_ITS_METER = ("payer_id", "payee_id", "commission_bp", "tax_on_commission_bp", "shard")
FOREVER_S = 2**40  # after every end; a numerator "for good" is one at this second


def lane_of(use: str) -> Lane:
    return Lane.STORAGE if use == Use.STORAGE else Lane.COMPUTE


@dataclass(frozen=True)
class Piece:
    """One segment as the facts want it."""

    meter_id: int
    fact_id: int
    price_version_id: int
    quantity: int
    rate_micros_per_hour: int
    start_s: int
    end_s: int | None


@dataclass
class Reading:
    """What one meter has used: its segments and applied voids, and the numerator and charge that follow."""

    meter: Meter
    segments: list[Segment] = field(default_factory=list)
    voids: list[Void] = field(default_factory=list)

    def void_num(self) -> int:
        return sum(
            s.rate_micros_per_hour * overlap_s(s, v.start_s, v.end_s)
            for s in self.segments
            for v in self.voids
            if v.applied
        )

    def num(self, at_s: int) -> int:
        used = sum(s.rate_micros_per_hour * overlap_s(s, 0, at_s) for s in self.segments)
        return used - self.void_num() + self.meter.minimum_num

    def charge(self, at_s: int) -> int:
        return 0 if self.meter.waived else pricing.charge(max(0, self.num(at_s)))

    def charge_until(self, at_s: int) -> int:
        """Return what was used until a second, voids and minimum counted where they lie: for statements.

        `charge` counts every applied void at once, since that is what is posted.
        """
        if self.meter.waived:
            return 0
        num = sum(
            s.rate_micros_per_hour
            * (overlap_s(s, 0, at_s) - sum(overlap_s(s, v.start_s, min(v.end_s, at_s)) for v in self.voids))
            for s in self.segments
        )
        return pricing.charge(num + (self.meter.minimum_num if at_s >= self.end_s() else 0))

    def seconds(self, at_s: int) -> int:
        """Return the usable seconds before `at_s`."""
        used = sum(overlap_s(s, 0, at_s) for s in self.segments)
        return used - sum(overlap_s(s, v.start_s, min(v.end_s, at_s)) for s in self.segments for v in self.voids)

    def end_s(self) -> int:
        return max((s.end_s for s in self.segments if s.end_s is not None), default=0)

    def posted(self, closed_to_s: int) -> int:
        """Return what is posted of this meter: by the close up to there, or all of it once it is settled."""
        return self.meter.posted_micros if self.meter.settled_at else self.charge(closed_to_s)

    def posted_anew(self, closed_to_s: int) -> int:
        """Return what should be posted of this meter, as its segments are."""
        return self.charge(FOREVER_S if self.meter.settled_at else closed_to_s)


def overlap_s(segment: Segment, start_s: int, end_s: int) -> int:
    """Return how many seconds of a segment lie in [start_s, end_s)."""
    ends = end_s if segment.end_s is None else min(segment.end_s, end_s)
    return max(0, ends - max(segment.start_s, start_s))


def read(meters: Iterable[Meter]) -> dict[int, Reading]:
    """Return the reading of each meter by id, segments in order of time."""
    readings = {meter.pk: Reading(meter) for meter in meters}
    in_time = ("meter_id", "start_s", F("end_s").asc(nulls_last=True), "pk")
    for segment in Segment.objects.filter(meter__in=readings).order_by(*in_time):
        readings[segment.meter_id].segments.append(segment)
    for void in Void.objects.filter(meter__in=readings).order_by("start_s"):
        readings[void.meter_id].voids.append(void)
    return readings


def rewrite(*, reference: str, member: int, lane: Lane) -> None:
    """Make the segments of one lane what its facts say. Only rows that differ are touched."""
    wanted, flagged = _wanted(reference=reference, member=member, lane=lane)
    wanted, beyond = _within_reckoning(wanted)
    if beyond:
        log.error("%s has used more than can be reckoned with; the rest is not charged", reference)
    flagged |= beyond
    if flagged:
        log.warning("a fact of %s ends something before it began, or beyond what can be reckoned with", reference)
        Meter.objects.filter(pk__in=flagged).update(flagged=True)
    uses = [use for use in Use.values if lane_of(use) == lane]
    meters = Meter.objects.filter(reference=reference, member=member, use__in=uses)
    there = {_identity(s): s for s in Segment.objects.filter(meter__in=meters)}
    kept = {_identity(piece) for piece in wanted}
    Segment.objects.filter(pk__in=[s.pk for identity, s in there.items() if identity not in kept]).delete()
    moved = [p for p in wanted if _identity(p) in there and there[_identity(p)].end_s != p.end_s]
    # Those that shrink first: the constraint lets no two overlap, not even on the way.
    for piece in sorted(moved, key=lambda p: FOREVER_S if p.end_s is None else p.end_s):
        Segment.objects.filter(pk=there[_identity(piece)].pk).update(end_s=piece.end_s)
    own = meters.in_bulk()
    Segment.objects.bulk_create(
        Segment(
            **vars(piece),
            **{name: getattr(own[piece.meter_id], name) for name in AS_ITS_METER},
            settled=own[piece.meter_id].settled_at is not None,
        )
        for piece in wanted
        if _identity(piece) not in there
    )
    _chain(meters)


def _wanted(*, reference: str, member: int, lane: Lane) -> tuple[list[Piece], set[int]]:
    facts = {
        fact.pk: fact
        for fact in MeterFact.objects.filter(
            Q(member=member) | Q(member=None), Q(lane=lane) | Q(lane=Lane.ALL), reference=reference
        ).select_related("price_version")
    }
    told = timeline.fold(
        timeline.Fact(f.seq, f.at_s, f.use or None, f.pk if f.begins else None) for f in facts.values()
    )
    pieces = [piece for span in told.spans for piece in _pieces(span, facts[span.begins])]
    ended_empty = {facts[span.begins].meter_id for span in told.spans if span.start_s == span.end_s}
    return pieces, {pk for pk in ended_empty if pk is not None} if told.backwards else set()


def _within_reckoning(wanted: Sequence[Piece]) -> tuple[list[Piece], set[int]]:
    """Return the pieces that have ended cut where the numerator of their meter would pass what is stored, and whose.

    Nobody who ends such a meter may fail: what he holds would never be given back. Written beyond, it would break the
    sums of everybody in its shard. So the rest is not charged, and somebody has to look.
    """
    used: dict[int, int] = defaultdict(int)
    kept, beyond = [], set()
    for piece in sorted(wanted, key=lambda piece: piece.start_s):
        if piece.end_s is not None and piece.rate_micros_per_hour:
            length_s = piece.end_s - piece.start_s
            longest_s = (pricing.INT64_MAX - used[piece.meter_id]) // piece.rate_micros_per_hour
            if length_s > longest_s:
                beyond.add(piece.meter_id)
                piece = replace(piece, end_s=piece.start_s + longest_s)
            used[piece.meter_id] += piece.rate_micros_per_hour * min(length_s, longest_s)
        kept.append(piece)
    return kept, beyond


def _pieces(span: timeline.Span, fact: MeterFact) -> list[Piece]:
    version = fact.price_version
    assert version is not None  # a start has a price: metering.start takes no other
    assert fact.meter_id is not None
    if not fact.follows:
        return [_piece(span.start_s, span.end_s, fact, fact.meter_id, version)]
    versions = sorted(version.series.versions.all(), key=lambda v: v.during.lower)
    starts_s = [int(v.during.lower.timestamp()) for v in versions]
    pieces = []
    for start_s, end_s in timeline.cut(span, starts_s):
        current = [v for v, from_s in zip(versions, starts_s, strict=True) if from_s <= start_s]
        pieces.append(_piece(start_s, end_s, fact, fact.meter_id, current[-1] if current else version))
    return pieces


def _piece(start_s: int, end_s: int | None, fact: MeterFact, meter_id: int, version: PriceVersion) -> Piece:
    rate = version.price_micros_per_hour * fact.quantity
    return Piece(meter_id, fact.pk, version.pk, fact.quantity, rate, start_s, end_s)


def _identity(row: Piece | Segment) -> tuple[int, int, int, int]:
    """Return what stays when an end moves: of two such rows with one identity there is only one."""
    return row.meter_id, row.fact_id, row.price_version_id, row.start_s


def _chain(meters: Iterable[Meter]) -> None:
    """Give each segment the numerator before it and whether one follows, and each meter that of its applied voids."""
    for reading in read(meters).values():
        base, changed = 0, []
        for segment, following in zip_longest(reading.segments, reading.segments[1:]):
            followed = following is not None and following.start_s == segment.end_s
            if (segment.base_num, segment.followed) != (base, followed):
                segment.base_num, segment.followed = base, followed
                changed.append(segment)
            base += segment.rate_micros_per_hour * overlap_s(segment, 0, FOREVER_S if segment.end_s else 0)
        Segment.objects.bulk_update(changed, ["base_num", "followed"])
        store_void_num(reading)


def store_void_num(reading: Reading) -> None:
    reading.meter.void_num = reading.void_num()
    Meter.objects.filter(pk=reading.meter.pk).update(void_num=reading.meter.void_num)


def differing(before: Reading | None, after: Reading, *, until_s: int) -> tuple[int, int]:
    """Return the [start_s, end_s) outside which both readings charge the same rate at every second before `until_s`."""
    readings = [r for r in (before, after) if r is not None]
    points = {until_s} | {p for r in readings for s in r.segments for p in (s.start_s, s.end_s) if p is not None}
    steps = [(a, b) for a, b in pairwise(sorted(p for p in points if p <= until_s))]
    unlike = [(a, b) for a, b in steps if _rate(before, a) != _rate(after, a)]
    return (unlike[0][0], unlike[-1][1]) if unlike else (until_s, until_s)


def _rate(reading: Reading | None, at_s: int) -> int:
    segments: Sequence[Segment] = reading.segments if reading is not None else ()
    return sum(s.rate_micros_per_hour for s in segments if overlap_s(s, at_s, at_s + 1))


def correction(before: Reading | None, after: Reading, *, closed_to_s: int) -> list[charging.Usage]:
    """Return what a changed past adds to, or takes from, what is posted already; nothing where both say the same."""
    total = after.posted_anew(closed_to_s) - (0 if before is None else before.posted(closed_to_s))
    if total == 0:
        return []
    until_s = max(after.end_s(), before.end_s() if before else 0) if after.meter.settled_at else closed_to_s
    start_s, end_s = differing(before, after, until_s=until_s)
    return [charging.Usage(start_s, end_s, total)]


def remainder(reading: Reading, *, closed_to_s: int, points_s: Sequence[int]) -> list[charging.Usage]:
    """Return what a meter that has ended charges after the last close, cut at `points_s` (the edges of grants)."""
    end_s = reading.end_s()
    start_s = min(max(closed_to_s, reading.segments[0].start_s if reading.segments else 0), end_s)
    edges = [start_s, *[p for p in points_s if start_s < p < end_s], end_s]
    cuts = [reading.charge(closed_to_s), *[reading.charge(edge) for edge in edges[1:]]]
    return [charging.Usage(a, b, y - x) for (a, b), (x, y) in zip(pairwise(edges), pairwise(cuts), strict=True)]


def by_lane(meters: Iterable[Meter]) -> list[tuple[int, Lane]]:
    """Return the (member, lane) pairs that meters are in, each once, in order."""
    lanes = sorted((meter.member, str(lane_of(meter.use))) for meter in meters)
    return [(member, Lane(lane)) for (member, lane), _ in groupby(lanes)]
