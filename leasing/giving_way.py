"""A lease gives way: it is told, its devices' ranges are cut at the end of the notice, and another's begin there.

Everything of one decision is one transaction under the locks of all its leases; the calendar's constraints are the
guard. Until the end of its notice a lease runs, and is charged, as before. Then it is interrupted, and starts elsewhere
(at a place that is held for it if it is a move, else through the queue) or ends as `preempted`, as its tenant chose.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models import Q

from leasing import assigning, calendar, lifecycle, noticing, parking, starting
from leasing.assigning import Assignment
from leasing.calendar import HELD_EPOCH
from leasing.models import Allocation, Lease, LeaseMember
from leasing.moves import locked, move
from leasing.notice_models import LEAVING, LeaseMove, Notice
from leasing.states import EndReason, OnInterrupt, State

Cause, Outcome = Notice.Cause, Notice.Outcome


class NotNow(Exception):
    """One of the leases is busy, or not any more as it was when this was decided; nothing is written."""


@dataclass(frozen=True)
class Leaver:
    """One lease that gives way, as it was seen. destination: where it moves to; None: it recovers as it chose."""

    lease_id: UUID
    epoch: int
    lost_micros: int = 0
    destination: Assignment | None = None


def cleared_after(ends_at: datetime) -> datetime:
    """Return when the devices of a lease that leaves at `ends_at` may be another's: stop grace and cleaning later."""
    return ends_at + timedelta(seconds=settings.WORKLOAD_STOP_GRACE_S + calendar.CLEANING_MARGIN_S)


@transaction.atomic
def make_way(
    *, leavers: Sequence[Leaver], ends_at: datetime, cause: str, at: datetime, detail: str = "",
    successor_id: UUID | None = None, assignment: Assignment | None = None, begins_at: datetime | None = None,
    by: str = "placement",
) -> list[Notice]:  # fmt: skip
    """Give every leaver its notice, hold where it moves to, and bind what is cleared to its successor from then on.

    Raises NotNow (somebody is at one of them, or it has changed) and calendar.DevicesTaken; nothing is written then.
    """
    begins = max(cleared_after(ends_at), begins_at) if begins_at else cleared_after(ends_at)
    leases = _locked_all(leavers, successor_id)
    for leaver in leavers:
        calendar.cut(lease_id=leaver.lease_id, epoch=leaver.epoch, upper=cleared_after(ends_at))
    notices = [
        _send_away(
            leases[leaver.lease_id], leaver, ends_at=ends_at, cause=cause, at=at, detail=detail, by=by,
            successor_id=successor_id,
        )
        for leaver in sorted(leavers, key=lambda leaver: _first_host(leases[leaver.lease_id]))
    ]  # fmt: skip
    if successor_id is not None and assignment is not None:
        assigning.assign(lease_id=successor_id, assignment=replace(assignment, begins_at=begins), at=at)
    return notices


def _locked_all(leavers: Sequence[Leaver], successor_id: UUID | None) -> dict[UUID, Lease]:
    """Lock all of them or raise NotNow: never wait for one while another is held, so nobody can wait for us in turn."""
    wanted = {leaver.lease_id for leaver in leavers} | ({successor_id} if successor_id else set())
    rows = Lease.objects.select_for_update(no_key=True, skip_locked=True, of=("self",)).select_related("organization")
    leases = {lease.pk: lease for lease in rows.filter(pk__in=wanted).order_by("pk")}
    if set(leases) != wanted:
        raise NotNow("Somebody is at one of the leases.")
    if successor_id is not None and leases[successor_id].state != State.PENDING:
        raise NotNow("Its successor waits no longer.")
    for leaver in leavers:
        lease = leases[leaver.lease_id]
        if (lease.state, lease.epoch, lease.leaves_at) != (State.ACTIVE, leaver.epoch, None):
            raise NotNow(f"{lease.public_id} is not any more as it was.")
    return leases


def _first_host(lease: Lease) -> str:
    return min((str(member.host_id) for member in lease.members.filter(epoch=lease.epoch)), default="")


def _send_away(
    lease: Lease, leaver: Leaver, *, ends_at: datetime, cause: str, at: datetime, detail: str, by: str,
    successor_id: UUID | None,
) -> Notice:  # fmt: skip
    notice = noticing.give(
        lease, cause=cause, ends_at=ends_at, at=at, detail=detail, successor_id=successor_id,
        lost_micros=leaver.lost_micros, leaves_at=ends_at,
    )  # fmt: skip
    starting.tell_end(lease, at=at)
    if leaver.destination is not None:
        _hold_place(lease, leaver.destination, notice, by=by, at=at)
    return notice


def _hold_place(lease: Lease, destination: Assignment, notice: Notice, *, by: str, at: datetime) -> None:
    during = calendar.range_until(
        start=notice.ends_at, end_at=lease.end_at, stop_grace_s=settings.WORKLOAD_STOP_GRACE_S
    )
    rows = calendar.bind(
        seats=destination.seats, organization_id=lease.organization_id, during=during, lease=lease, epoch=HELD_EPOCH
    )
    here = lease.members.get(epoch=lease.epoch)
    version_id, micros = destination.prices[0]
    LeaseMove.objects.create(
        lease=lease, notice=notice, from_host_id=here.host_id, to_host_id=destination.seats[0].host_id,
        gpu_milli=sum(row.units.upper - row.units.lower for row in rows) * 125, price_version_id=version_id,
        price_micros_per_hour=micros, by=by[:60], reason=notice.detail[:200], planned_at=at,
    )  # fmt: skip


@transaction.atomic
def leave(*, lease_id: UUID, at: datetime, last_good: datetime | None = None) -> Lease:
    """The notice has ended: nothing of the lease stays on these devices. Idempotent, in whatever state it is caught.

    The meter stops at the end of the notice, or at `last_good` if the use was lost before.
    """
    lease = locked(lease_id)
    if lease.leaves_at is None or lease.leaves_at > at:
        return lease
    notice = lease.notices.filter(closed_at=None, cause__in=LEAVING).first()
    cause = notice.cause if notice else str(Cause.SPOT_RECLAIM)
    detail = notice.detail if notice else ""
    stopped_at = min(lease.leaves_at, last_good) if last_good else lease.leaves_at
    if lease.state == State.ACTIVE:
        lifecycle.interrupt(lease_id=lease_id, last_good=stopped_at, at=at, reason=cause, detail=detail)
    if lease.state == State.PARKED and lease.parked_keep == parking.HOLD:
        parking.lose_hold(lease_id=lease_id, last_good=stopped_at, at=at, reason=cause, detail=detail)
    elif lease.state in {State.ACTIVE, State.INTERRUPTED, State.PROVISIONING}:
        _recover(lease, notice, cause=cause, at=at, detail=detail)
    noticing.close(lease_id=lease_id, outcome=Outcome.SERVED, at=at, causes=LEAVING)
    Lease.objects.filter(pk=lease_id).update(leaves_at=None)
    return Lease.objects.get(pk=lease_id)


def _recover(lease: Lease, notice: Notice | None, *, cause: str, at: datetime, detail: str) -> None:
    place = LeaseMove.objects.filter(notice=notice, done_at=None).first() if notice else None
    held = Allocation.objects.filter(lease=lease, epoch=HELD_EPOCH, released_at=None)
    if place is not None and held.exists():
        lifecycle.requeue(lease_id=lease.pk, at=at, reason=cause, detail=detail, failed=False)
        _move_in(lease.pk, place, at=at)
    elif OnInterrupt(lease.on_interrupt) is OnInterrupt.RESTART_ELSEWHERE:
        lifecycle.requeue(lease_id=lease.pk, at=at, reason=cause, detail=detail, failed=False)
    else:
        lifecycle.end(lease_id=lease.pk, reason=EndReason.PREEMPTED, at=at, detail=detail)


def _move_in(lease_id: UUID, place: LeaseMove, *, at: datetime) -> None:
    """Give what is held to the next epoch; it starts there as soon as nothing of the last one runs (the fence)."""
    lease = locked(lease_id)
    before = lease.epoch
    lease.epoch += 1 + lease.epochs_lost
    Allocation.objects.filter(lease=lease, epoch=HELD_EPOCH, released_at=None).update(epoch=lease.epoch)
    member = lease.members.filter(epoch=before).get()
    LeaseMember.objects.create(
        lease=lease, epoch=lease.epoch, rank=0, host_id=place.to_host_id, gpu_count=member.gpu_count,
        price_version_id=place.price_version_id, price_micros_per_hour=place.price_micros_per_hour,
    )  # fmt: skip
    lease.price_micros_per_hour = place.price_micros_per_hour * member.gpu_count
    move(lease, State.SCHEDULED, at=at, reason="moved", detail=place.reason, to_host=str(place.to_host_id))
    LeaseMove.objects.filter(pk=place.pk).update(done_at=at)


@transaction.atomic
def stay(*, lease_id: UUID, at: datetime, detail: str) -> bool:
    """Take a notice back before its end: the devices are its own again. False if somebody else has them by now."""
    lease = locked(lease_id)
    if lease.leaves_at is None or lease.leaves_at <= at:
        return False
    try:
        calendar.set_end(
            lease=lease, epoch=lease.epoch, end_at=lease.end_at, stop_grace_s=settings.WORKLOAD_STOP_GRACE_S
        )
    except calendar.DevicesTaken:
        return False
    noticing.withdraw(lease, causes=LEAVING, at=at, detail=detail)
    starting.tell_end(lease, at=at)
    let_go(lease_ids=[lease_id], at=at)
    return True


@transaction.atomic
def let_go(*, lease_ids: Iterable[UUID], at: datetime) -> int:
    """Give back what is held for leases that do not move in any more; return how many devices."""
    return calendar.release(at=at, of=Q(lease__in=list(lease_ids), epoch=HELD_EPOCH))


def idle_places() -> list[UUID]:
    """Return the leases for which something is held though no move of them is due."""
    held = Allocation.objects.filter(epoch=HELD_EPOCH, released_at=None)
    due = Notice.objects.filter(cause=Cause.MOVE, closed_at=None)
    return [pk for pk in held.exclude(lease__in=due.values("lease")).values_list("lease", flat=True).distinct() if pk]
