"""Seconds that were not usable after all: taken back once, with commission and earnings."""

from collections.abc import Callable, Collection
from datetime import datetime

from django.db import transaction

from apikit.errors import DomainError
from billing import charging, endings, exhaustion, ledger, segments, shards
from billing.models import Meter, Void
from billing.models.meters import Use


class AlreadyRefunded(DomainError):
    slug = "seconds-already-refunded"
    title = "Some of these seconds have been taken back before"


@transaction.atomic
def void(*, reference: str, member: int, start: datetime, end: datetime, reason: str, at: datetime) -> int:
    """Take [start, end) of a member back; return the micro-units refunded now (the rest is never charged).

    What has ended is charged as if it had been taken back before its end: what is short of a minimum stays charged.
    The same range again changes nothing and returns 0; a range that overlaps another raises AlreadyRefunded, and one
    that is empty, reversed or not over yet ValueError.
    """
    start_s, end_s = _seconds_over(start, end, at=at)

    def whole(reading: segments.Reading) -> list[tuple[int, int]]:
        there = [v for v in reading.voids if v.start_s < end_s and start_s < v.end_s]
        if any((v.start_s, v.end_s) != (start_s, end_s) for v in there):
            raise AlreadyRefunded(f"Some of these seconds of {reading.meter.reference} have been taken back before.")
        return [] if there else [(start_s, end_s)]

    return _take_back(reference, whole, members=[member], span=(start_s, end_s), reason=reason, at=at)


@transaction.atomic
def void_rest(
    *, reference: str, start: datetime, end: datetime, reason: str, at: datetime,
    members: Collection[int] | None = None,
) -> int:  # fmt: skip
    """Take back what was not taken back before of [start, end), of these members (None: all); otherwise as `void`."""
    start_s, end_s = _seconds_over(start, end, at=at)

    def rest(reading: segments.Reading) -> list[tuple[int, int]]:
        parts = [(max(a, start_s), min(b, end_s)) for a, b in _not_taken_back(reading, until_s=end_s)]
        return [(a, b) for a, b in parts if a < b]

    return _take_back(reference, rest, members=members, span=(start_s, end_s), reason=reason, at=at)


def _seconds_over(start: datetime, end: datetime, *, at: datetime) -> tuple[int, int]:
    start_s, end_s = int(start.timestamp()), int(end.timestamp())
    if not start_s < end_s <= int(at.timestamp()):
        raise ValueError("only seconds that are over can be taken back")
    return start_s, end_s


def _take_back(
    reference: str, ranges: Callable[[segments.Reading], list[tuple[int, int]]], *, members: Collection[int] | None,
    span: tuple[int, int], reason: str, at: datetime,
) -> int:  # fmt: skip
    """Write voids for the `ranges` of each meter of these members and post what is posted of them."""
    meters = Meter.objects.filter(reference=reference, use=Use.ACTIVE)
    ledger.lock(meters.values_list("payer", flat=True))
    readings = segments.read(meters.select_related("payer", "payee"))
    refunded, ended = 0, set()
    for pk, reading in readings.items():
        used = any(segments.overlap_s(segment, *span) for segment in reading.segments)
        for start_s, end_s in ranges(reading) if used and (members is None or reading.meter.member in members) else []:
            fresh = Void.objects.create(meter=reading.meter, start_s=start_s, end_s=end_s, reason=reason, at=at)
            reading.voids.append(fresh)
            if reading.meter.settled_at:
                _apply(reading, [fresh])
                ended.add(pk)
            elif end_s <= shards.closed_to_s(reading.meter.shard):
                refunded += post(reading, fresh, at=at)
    if ended:  # fewer usable seconds may mean more of a minimum, or a waiver: of every member
        endings.apply(readings.values(), at=at)
        refunded += sum(
            _post_anew(reading, at=at, span=span if pk in ended else None)
            for pk, reading in readings.items() if reading.meter.settled_at
        )  # fmt: skip
    exhaustion.refresh(accounts={reading.meter.payer_id for reading in readings.values()}, at=at)
    return refunded


@transaction.atomic
def void_all(*, reference: str, reason: str, at: datetime) -> int:
    """Take back all that is still charged for a finished reference, of every use, and its minimum; return how much.

    What was taken back before stays so; again it returns 0.
    """
    meters = Meter.objects.filter(reference=reference, settled_at__isnull=False)
    ledger.lock(meters.values_list("payer", flat=True))
    readings = segments.read(meters.select_related("payer", "payee"))
    for reading in readings.values():
        for start_s, end_s in _not_taken_back(reading, until_s=reading.end_s()):
            fresh = Void(meter=reading.meter, start_s=start_s, end_s=end_s, reason=reason, at=at)
            fresh.save(force_insert=True)
            reading.voids.append(fresh)
        _apply(reading, [void for void in reading.voids if not void.applied])
    endings.apply(readings.values(), at=at)  # of what was not usable for a second, no minimum is left
    refunded = sum(_post_anew(reading, at=at) for reading in readings.values())
    exhaustion.refresh(accounts={reading.meter.payer_id for reading in readings.values()}, at=at)
    return refunded


def _not_taken_back(reading: segments.Reading, *, until_s: int) -> list[tuple[int, int]]:
    """Return the ranges [start_s, end_s) of a meter's segments before `until_s` that no void covers."""
    left = []
    for segment in reading.segments:
        start_s, end_s = segment.start_s, until_s if segment.end_s is None else segment.end_s
        for void in sorted(reading.voids, key=lambda void: void.start_s):
            if void.start_s < end_s and start_s < void.end_s:
                left.append((start_s, void.start_s))
                start_s = void.end_s
        left.append((start_s, end_s))
    return [(start_s, end_s) for start_s, end_s in left if start_s < end_s]


def _post_anew(reading: segments.Reading, *, at: datetime, span: tuple[int, int] | None = None) -> int:
    """Post what a settled meter charges less than before; return how much. span: the seconds that it is about."""
    posted, total = reading.meter.posted_micros, reading.charge(segments.FOREVER_S)
    if total == posted:
        return 0
    start_s, end_s = span or (reading.segments[0].start_s, reading.end_s())
    usage = [charging.Usage(start_s, end_s, total - posted)]
    charging.post(reading.meter, posted_micros=posted, usage=usage, cause="downtime", at=at)
    Meter.objects.filter(pk=reading.meter.pk).update(posted_micros=total)
    return posted - total


def post(reading: segments.Reading, void: Void, *, at: datetime) -> int:
    """Count a void of a meter that runs on and post the difference; return what was refunded. The wallet is locked."""
    closed_to_s = shards.closed_to_s(reading.meter.shard)
    posted = reading.posted(closed_to_s)
    _apply(reading, [void])
    delta = reading.posted_anew(closed_to_s) - posted
    usage = [charging.Usage(void.start_s, void.end_s, delta)]
    charging.post(reading.meter, posted_micros=posted, usage=usage, cause="downtime", at=at)
    return -delta


def apply_all(reading: segments.Reading) -> None:
    """Count every void of a meter that is being settled; what is posted with it contains them."""
    _apply(reading, [void for void in reading.voids if not void.applied])


@transaction.atomic
def post_covered(*, shard: int, at: datetime) -> int:
    """Post the voids that the last close has covered; return how many."""
    waiting = Void.objects.filter(
        applied=False, end_s__lte=shards.closed_to_s(shard), meter__shard=shard, meter__settled_at=None
    )
    for void in waiting.order_by("meter__payer", "meter", "start_s").select_related("meter"):
        meters = Meter.objects.filter(pk=void.meter_id)
        ledger.lock([void.meter.payer_id])
        reading = segments.read(meters.select_related("payer", "payee"))[void.meter_id]
        post(reading, next(v for v in reading.voids if v.pk == void.pk), at=at)
        exhaustion.refresh(accounts=[void.meter.payer_id], at=at)
    return waiting.count()


def _apply(reading: segments.Reading, voids: list[Void]) -> None:
    for void in voids:
        void.applied = True
    Void.objects.filter(pk__in=[void.pk for void in voids]).update(applied=True)
    segments.store_void_num(reading)
