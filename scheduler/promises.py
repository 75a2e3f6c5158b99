"""What waiting leases were promised, in the database: every process lays it over its pool before it decides."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from django.db import transaction

from leasing import calendar
from leasing.calendar import DevicesTaken
from leasing.models import Allocation, Lease
from leasing.states import State
from scheduler.models import Promise
from scheduler.placement import Member, Placement, Seat
from scheduler.pool import Kept, seconds

FAR = datetime.max.replace(tzinfo=UTC)


def of(leases: Iterable[Lease]) -> dict[UUID, Kept]:
    """Return what is promised to those of the leases that wait."""
    waiting = {lease.pk: lease for lease in leases}
    rows = Promise.objects.filter(lease__state=State.PENDING)
    return {row.pk: _kept(row, waiting[row.pk].organization_id) for row in rows if row.pk in waiting}


@transaction.atomic
def store(promised: Mapping[UUID, Kept], *, before: Mapping[UUID, Kept]) -> None:
    """Write what changed since `before`; what is in `promised` no more, and what is of no waiting lease, goes."""
    Promise.objects.exclude(lease__state=State.PENDING).delete()
    Promise.objects.filter(pk__in=before.keys() - promised.keys()).delete()
    new = [_row(lease_id, kept) for lease_id, kept in promised.items() if before.get(lease_id) != kept]
    # A lease may have been placed or have ended since: its row of the queue stays, so the key is always good.
    Promise.objects.bulk_create(
        new, update_conflicts=True, unique_fields=["lease"], update_fields=["starts_at", "ends_at", "placement"]
    )


@transaction.atomic
def keeping(change: Callable[[], Lease]) -> Lease:
    """Make a change of a lease's term, or raise DevicesTaken where it takes what somebody who waits was promised."""
    lease = change()
    its = (lease.epoch, calendar.HELD_EPOCH)
    held: dict[str, list[Allocation]] = {}
    for row in calendar.live(lease_id=lease.pk):
        if row.epoch in its:
            held.setdefault(str(row.device_id), []).append(row)
    until = max((row.during.upper or FAR for rows in held.values() for row in rows), default=None)
    if until is not None:
        others = Promise.objects.filter(lease__state=State.PENDING, starts_at__lt=until).exclude(lease=lease)
        for promise in others:
            for seat in (seat for member in promise.placement["members"] for seat in member["seats"]):
                rows = held.get(seat["device"], [])
                if any(seat["start"] < row.units.upper and row.units.lower < seat["stop"] for row in rows):
                    raise DevicesTaken("Its devices are promised to a lease that waits for them.")
    return lease


def _row(lease_id: UUID, kept: Kept) -> Promise:
    return Promise(
        lease_id=lease_id, starts_at=_instant(kept.start_s), placement=asdict(kept.placement),
        ends_at=None if kept.end_s is None else _instant(kept.end_s),
    )  # fmt: skip


def _kept(row: Promise, organization: UUID) -> Kept:
    found: dict[str, Any] = row.placement
    members = tuple(
        Member(**{**member, "seats": tuple(Seat(**seat) for seat in member["seats"])}) for member in found["members"]
    )
    placement = Placement(members, found["option_index"], found["score"], tuple(found["reasons"]))
    return Kept(placement, organization, seconds(row.starts_at), None if row.ends_at is None else seconds(row.ends_at))


def _instant(second: int) -> datetime:
    return datetime.fromtimestamp(second, UTC)
