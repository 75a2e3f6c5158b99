"""The device calendar: binding devices to a lease or a quote for a range of time, and giving them back."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from django.db import IntegrityError, connection, transaction
from django.db.backends.postgresql.psycopg_any import DateTimeTZRange, NumericRange
from django.db.models import Q

from apikit import statements
from apikit.errors import DomainError
from leasing.models import Allocation, Lease, Quote

# After a lease with a known end: its stop grace is added to this before the next may begin (PLACEMENT.md section 5).
CLEANING_MARGIN_S = 180
WHOLE = (0, 8)
HELD_EPOCH = -1  # of allocations that wait for a lease to move in: no epoch that ever runs


class DevicesTaken(DomainError):
    """Somebody else was faster: the calendar's constraint refused the range."""

    slug = "no-capacity"
    title = "The devices were let in the meantime"


@dataclass(frozen=True)
class Seat:
    """Units of one device for one member: what a placement names."""

    rank: int
    host_id: UUID
    device_id: UUID
    units: tuple[int, int] = WHOLE
    mode: str = Allocation.Mode.WHOLE


def range_until(*, start: datetime, end_at: datetime | None, stop_grace_s: int) -> DateTimeTZRange:
    """Return [start, end + cleaning), or an open range while nobody knows the end."""
    upper = end_at + timedelta(seconds=CLEANING_MARGIN_S + stop_grace_s) if end_at else None
    return DateTimeTZRange(start, upper)


def rows(
    *, seats: Iterable[Seat], organization_id: UUID, during: DateTimeTZRange, lease: Lease | None = None,
    quote: Quote | None = None, epoch: int = 0,
) -> list[Allocation]:  # fmt: skip
    """Return the allocations of one gang, not written yet."""
    return [
        Allocation(
            device_id=seat.device_id,
            lease=lease,
            quote=quote,
            organization_id=organization_id,
            rank=seat.rank,
            epoch=epoch,
            mode=seat.mode,
            units=NumericRange(*seat.units),
            during=during,
        )
        for seat in seats
    ]


def bind_lines(lines: Iterable[tuple[Lease, Sequence[Seat], DateTimeTZRange]]) -> None:
    """As `bind_all` for the present epochs of many leases: their seats, each for its range."""
    # By device: two that want the same machines meet at the same row first, and cannot deadlock.
    wanted = sorted(
        (
            (seat.device_id, seat.units[0], seat.units[1], seat.mode, seat.rank, lease.epoch, lease.pk,
             lease.organization_id, during)
            for lease, seats, during in lines
            for seat in seats
        ),
        key=lambda line: line[:2],
    )  # fmt: skip
    names = ("device_id", "units", "mode", "rank", "epoch", "lease_id", "organization_id", "during")
    with _refused():
        statements.insert_lines(
            Allocation, names, [(line[0], f"[{line[1]},{line[2]})", *line[3:]) for line in wanted]
        )  # fmt: skip


@contextmanager
def _refused() -> Iterator[None]:
    """Say DevicesTaken where the calendar's constraints refuse what is written within; nothing of it is written."""
    try:
        with transaction.atomic():
            yield
    except IntegrityError as fault:
        if "at_a_time" not in str(fault):
            raise
        raise DevicesTaken("One of the devices was let to somebody else a moment ago.") from None


def bind(
    *, seats: Iterable[Seat], organization_id: UUID, during: DateTimeTZRange, lease: Lease | None = None,
    quote: Quote | None = None, epoch: int = 0,
) -> list[Allocation]:  # fmt: skip
    """Write the allocations of one gang, all or none; raise DevicesTaken when any unit is taken in that range."""
    gang = rows(seats=seats, organization_id=organization_id, during=during, lease=lease, quote=quote, epoch=epoch)
    return bind_all([gang])


def bind_all(gangs: Iterable[Sequence[Allocation]]) -> list[Allocation]:
    """Write the allocations of many gangs, all or none; raise DevicesTaken when any unit of any is taken."""
    # By device: two that want the same machines meet at the same row first, and cannot deadlock.
    wanted = sorted((row for gang in gangs for row in gang), key=lambda row: (row.device_id, row.units.lower))
    with _refused():
        return statements.insert_all(wanted)


def live(*, lease_id: UUID) -> list[Allocation]:
    return list(
        Allocation.objects.filter(lease_id=lease_id, released_at__isnull=True).select_related("device", "device__host")
    )


def in_the_way(*, units: Iterable[tuple[UUID, tuple[int, int]]], at: datetime, but: UUID | None = None) -> bool:
    """Return whether any of these (device, units) is still bound to somebody who began by `at`, to another than `but`.

    The constraints do not see it: a range that ended as promised, and whose host has not said that nothing is left.
    """
    return bool(all_in_the_way({None: list(units)}, at=at, but=but))


_BEGAN = """
SELECT device_id, lower(units), upper(units), lease_id FROM leasing_allocation
WHERE device_id = ANY(%s::uuid[]) AND released_at IS NULL AND lower(during) <= %s
"""


def all_in_the_way[Who](
    wanted: Mapping[Who, Sequence[tuple[UUID, tuple[int, int]]]], *, at: datetime, but: UUID | None = None
) -> set[Who]:
    """Return those who want units that somebody has not given back: see `in_the_way`."""
    devices = {device for units in wanted.values() for device, _ in units}
    held: dict[UUID, list[tuple[int, int]]] = defaultdict(list)
    with connection.cursor() as cursor:
        cursor.execute(_BEGAN, [statements.uuids(devices), at])
        for device, lower, upper, lease_id in cursor.fetchall():
            if but is None or lease_id != but:
                held[device].append((lower, upper))
    return {
        who
        for who, units in wanted.items()
        if any(lower < end and first < upper for device, (first, end) in units for lower, upper in held[device])
    }


def release(*, at: datetime, of: Q) -> int:
    """End the ranges of the allocations that `of` selects, now; what had not begun vanishes from the calendar.

    A release that comes after the promised end leaves the range as it was promised: the next may have begun in it.
    """
    rows = list(Allocation.objects.select_for_update(no_key=True).filter(of, released_at__isnull=True).order_by("pk"))
    for row in rows:
        start, end = row.during.lower, row.during.upper
        if start is not None and (end is None or end > at):
            row.during = DateTimeTZRange(start, max(start, at))
        row.released_at = at
    Allocation.objects.bulk_update(rows, ["during", "released_at"])
    return len(rows)


def cut(*, lease_id: UUID, epoch: int, upper: datetime) -> int:
    """Let no range of an epoch reach beyond `upper`; return how many were shortened."""
    rows = [row for row in live(lease_id=lease_id) if row.epoch == epoch]
    long = [row for row in rows if row.during.upper is None or row.during.upper > upper]
    for row in long:
        row.during = DateTimeTZRange(row.during.lower, upper)
    return Allocation.objects.bulk_update(long, ["during"]) if long else 0


def bring_forward(*, lease_id: UUID, epoch: int, at: datetime) -> bool:
    """Let ranges that have not begun begin at `at`; False, and nothing changed, if anybody is still bound there."""
    rows = [row for row in live(lease_id=lease_id) if row.epoch == epoch]
    for row in rows:
        row.during = DateTimeTZRange(at, row.during.upper)
    try:
        with transaction.atomic():
            Allocation.objects.bulk_update(rows, ["during"])
    except IntegrityError as fault:
        if "at_a_time" not in str(fault):
            raise
        return False
    return True


def set_end(*, lease: Lease, epoch: int, end_at: datetime | None, stop_grace_s: int) -> None:
    """Make the ranges of a running epoch end after `end_at`; raise DevicesTaken if a later range stands in the way."""
    _set_ranges(lease, epoch=epoch, start=None, end_at=end_at, stop_grace_s=stop_grace_s)


def set_range(*, lease: Lease, epoch: int, start: datetime, end_at: datetime | None, stop_grace_s: int) -> None:
    """Move the ranges of an epoch that has not begun; raise DevicesTaken if another's range stands in the way."""
    _set_ranges(lease, epoch=epoch, start=start, end_at=end_at, stop_grace_s=stop_grace_s)


def _set_ranges(
    lease: Lease, *, epoch: int, start: datetime | None, end_at: datetime | None, stop_grace_s: int
) -> None:
    rows = [row for row in live(lease_id=lease.pk) if row.epoch == epoch]
    for row in rows:
        row.during = range_until(start=start or row.during.lower, end_at=end_at, stop_grace_s=stop_grace_s)
    try:
        with transaction.atomic():
            Allocation.objects.bulk_update(rows, ["during"])
    except IntegrityError as fault:
        if "at_a_time" not in str(fault):
            raise
        raise DevicesTaken("Its devices are promised to somebody else in that time.") from None
