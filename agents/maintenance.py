"""Maintenance that an owner announces: a window in which his machine is away, and a sentence for those who are on it.

From `lead_s` before the window the host is drained with the window's beginning as the deadline: it takes nothing new,
and its tenants are told (whoever tells them of drains). After the window it is opened again, if nobody else has moved
it since, and is verified when it is heard. Level-triggered: `tick` does what is due, however late.
"""

from datetime import datetime, timedelta
from uuid import UUID

from django.db import transaction

from agents import host_events, host_life
from agents.models import Host, Maintenance
from apikit.errors import DomainError, InvalidInput
from audit import log

LEAD_LEAST_S, LEAD_DEFAULT_S, LEAD_MOST_S = 600, 3600, 7 * 86_400
LONGEST_S = 14 * 86_400
AHEAD_MOST_S = 366 * 86_400
OPEN_LIMIT = 20
BY = "system:maintenance"


class TooMany(DomainError):
    slug = "too-many-maintenances"
    title = "Enough windows are announced"


@transaction.atomic
def announce(
    *, host_id: UUID, starts_at: datetime, ends_at: datetime, message: str, lead_s: int, by: str, at: datetime
) -> Maintenance:
    """Announce a window. Raises InvalidInput (it is past, empty, too long or meets another one), TooMany."""
    host = host_life.lock(host_id)
    if host.state == Host.State.RETIRED:
        raise host_life.WrongHostState("The host has left the pool.", state=host.state)
    if starts_at <= at or starts_at > at + timedelta(seconds=AHEAD_MOST_S):
        raise _invalid("/starts_at", "It begins in the future, within a year.")
    if ends_at <= starts_at or ends_at > starts_at + timedelta(seconds=LONGEST_S):
        raise _invalid("/ends_at", "It ends after its beginning, within 14 days.")
    open_ones = Maintenance.objects.filter(host=host, withdrawn_at=None, over_at=None)
    if open_ones.filter(starts_at__lt=ends_at, ends_at__gt=starts_at).exists():
        raise _invalid("/starts_at", "Another window that is announced lies there.")
    if open_ones.count() >= OPEN_LIMIT:
        raise TooMany(f"At most {OPEN_LIMIT} windows of a host can be ahead.")
    row = Maintenance.objects.create(
        host=host, starts_at=starts_at, ends_at=ends_at, message=message[:300], lead_s=lead_s, announced_at=at,
        announced_by=by[:80],
    )  # fmt: skip
    _note(row, "host.maintenance_announced", by=by, at=at)
    return row


@transaction.atomic
def withdraw(*, maintenance_id: UUID, by: str, at: datetime) -> Maintenance:
    """Take a window back; one that has begun to drain the host opens it again. Idempotent."""
    row = _locked(maintenance_id)
    if row.withdrawn_at is None and row.over_at is None:
        Maintenance.objects.filter(pk=row.pk).update(withdrawn_at=at)
        row.withdrawn_at = at
        _open_again(row, at=at)
        _note(row, "host.maintenance_withdrawn", by=by, at=at)
    return row


def tick(*, at: datetime) -> int:
    """Drain what a window comes up for, and open again what is over; return how many hosts moved."""
    moved = 0
    for pk, starts_at, lead_s in Maintenance.objects.filter(
        withdrawn_at=None, over_at=None, drained_at=None
    ).values_list("pk", "starts_at", "lead_s"):
        if starts_at - timedelta(seconds=lead_s) <= at:
            moved += _begin(pk, at=at)
    over = Maintenance.objects.filter(withdrawn_at=None, over_at=None, drained_at__isnull=False, ends_at__lte=at)
    for pk in over.values_list("pk", flat=True):
        moved += _end(pk, at=at)
    return moved


@transaction.atomic
def _begin(pk: UUID, *, at: datetime) -> int:
    row = _locked(pk)
    if row.drained_at is not None or row.withdrawn_at is not None:
        return 0
    if _drained_for_another(row):
        return 0  # it is this one's turn when that one is over
    Maintenance.objects.filter(pk=pk).update(drained_at=at)
    if row.host.state == Host.State.RETIRED or row.host.scheduling == Host.Scheduling.DRAINING:
        return 0  # its owner drains it himself, and opens it himself
    until = row.ends_at.strftime("%Y-%m-%d %H:%M UTC")
    reason = f"Maintenance until {until}: {row.message}"[:300]
    host_life.drain(host_id=row.host_id, deadline=row.starts_at, reason=reason, by=BY, at=at)
    Maintenance.objects.filter(pk=pk).update(drain_reason=reason)
    return 1


def _drained_for_another(row: Maintenance) -> bool:
    """Return whether its host is away for an earlier window of these, which opens it again when it is over."""
    open_ones = Maintenance.objects.filter(host=row.host_id, withdrawn_at=None, over_at=None, drained_at__isnull=False)
    reason = row.host.scheduling_reason
    draining = row.host.scheduling == Host.Scheduling.DRAINING and reason != ""
    return draining and open_ones.filter(drain_reason=reason).exclude(pk=row.pk).exists()


@transaction.atomic
def _end(pk: UUID, *, at: datetime) -> int:
    row = _locked(pk)
    if row.over_at is not None:
        return 0
    Maintenance.objects.filter(pk=pk).update(over_at=at)
    return _open_again(row, at=at)


def _open_again(row: Maintenance, *, at: datetime) -> int:
    """Open the host if it is still drained for this window and nothing else."""
    host = host_life.lock(row.host_id)
    ours = host.scheduling == Host.Scheduling.DRAINING and host.scheduling_reason == row.drain_reason != ""
    if ours and host.state != Host.State.RETIRED:
        host_life.uncordon(host_id=host.pk, reason="The maintenance is over.", by=BY, at=at)
        if host.owner.banned_at is not None:  # a ban cordons what is open, and found it drained
            host_life.cordon(host_id=host.pk, reason="Its owner is banned.", by=BY, at=at)
        return 1
    return 0


def _locked(pk: UUID) -> Maintenance:
    row = Maintenance.objects.select_related("host").get(pk=pk)
    host_life.lock(row.host_id)
    row.refresh_from_db()
    return row


def _note(row: Maintenance, kind: str, *, by: str, at: datetime) -> None:
    facts = {"starts_at": row.starts_at.isoformat(), "ends_at": row.ends_at.isoformat(), "message": row.message}
    host_events.record(host_id=row.host_id, kind=kind, detail=row.message, by=by, at=at, facts=facts)
    log.record(
        actor=by, organization=row.host.owner_id, action=kind, target=row.host.public_id, after=facts, why=row.message,
        at=at,
    )  # fmt: skip


def _invalid(pointer: str, detail: str) -> InvalidInput:
    return InvalidInput(detail, errors=[{"pointer": pointer, "code": "out_of_range", "detail": detail}])
