"""What a reference has cost so far: from its segments, to the second, whether posted or not."""

from dataclasses import dataclass
from datetime import UTC, datetime

from billing import pricing, segments
from billing.models import Meter, Segment
from billing.models.meters import Use


@dataclass(frozen=True)
class Line:
    """One segment of one member, or what a minimum, a waiver or downtime adds or takes (`what`)."""

    member: int
    use: str
    what: str
    price_version_id: int | None
    price_micros_per_hour: int
    quantity: int
    start: datetime
    end: datetime | None
    seconds: int
    micros: int


@dataclass(frozen=True)
class Cost:
    """seconds: usable seconds, the most that any member had; unit_seconds: those of all GPUs together."""

    seconds: int
    unit_seconds: int
    charged_micros: int
    currency: str
    running: bool
    lines: tuple[Line, ...]


def of_reference(*, reference: str, at: datetime) -> Cost:
    """Return the cost until `at`; its lines add up to `charged_micros` exactly."""
    at_s = int(at.timestamp())
    meters = Meter.objects.filter(reference=reference).select_related("payer").order_by("member", "pk")
    readings = list(segments.read(meters).values())
    active = [reading for reading in readings if reading.meter.use == Use.ACTIVE]
    by_member: dict[int, int] = {}
    for reading in active:
        by_member[reading.meter.member] = by_member.get(reading.meter.member, 0) + reading.seconds(at_s)
    return Cost(
        seconds=max(by_member.values(), default=0),
        unit_seconds=sum(s.quantity * segments.overlap_s(s, 0, at_s) for r in active for s in r.segments),
        charged_micros=sum(reading.charge_until(at_s) for reading in readings),
        currency=readings[0].meter.payer.currency if readings else "",
        running=any(s.end_s is None for reading in readings for s in reading.segments),
        lines=tuple(line for reading in readings for line in lines(reading, start_s=0, end_s=at_s)),
    )


def lines(reading: segments.Reading, *, start_s: int, end_s: int) -> list[Line]:
    """Return the lines of one meter in [start_s, end_s): differences of its charge, so that they add up to it."""
    found, base = [], sum(s.rate_micros_per_hour * segments.overlap_s(s, 0, start_s) for s in reading.segments)
    for segment in reading.segments:
        seconds = segments.overlap_s(segment, start_s, end_s)
        if seconds or start_s <= segment.start_s < end_s:
            num = base + segment.rate_micros_per_hour * seconds
            found.append(_line(reading, segment, seconds, pricing.charge(num) - pricing.charge(base), end_s))
            base = num
    used = sum(line.micros for line in found)
    difference = reading.charge_until(end_s) - reading.charge_until(start_s) - used
    if difference:
        found.append(_correction(reading, difference, start_s=start_s, end_s=end_s))
    return found


def _line(reading: segments.Reading, segment: Segment, seconds: int, micros: int, end_s: int) -> Line:
    ends_s = segment.end_s if segment.end_s is not None and segment.end_s <= end_s else None
    return Line(
        member=reading.meter.member,
        use=reading.meter.use,
        what="use",
        price_version_id=segment.price_version_id,
        price_micros_per_hour=segment.rate_micros_per_hour // segment.quantity,
        quantity=segment.quantity,
        start=datetime.fromtimestamp(segment.start_s, UTC),
        end=None if ends_s is None else datetime.fromtimestamp(ends_s, UTC),
        seconds=seconds,
        micros=micros,
    )


def _correction(reading: segments.Reading, micros: int, *, start_s: int, end_s: int) -> Line:
    what = "waived" if reading.meter.waived else "minimum" if micros > 0 else "downtime"
    seconds = sum(min(v.end_s, end_s) - max(v.start_s, start_s) for v in reading.voids if v.start_s < end_s)
    return Line(
        member=reading.meter.member,
        use=reading.meter.use,
        what=what,
        price_version_id=None,
        price_micros_per_hour=0,
        quantity=1,
        start=datetime.fromtimestamp(max(start_s, min((s.start_s for s in reading.segments), default=0)), UTC),
        end=None,
        seconds=-max(0, seconds) if what == "downtime" else 0,
        micros=micros,
    )
