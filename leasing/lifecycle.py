"""The moves of a lease, all but its assignment (`assigning`). Each takes the row lock, does its own work, and ends in
`moves.move`; all are safe to repeat.

Lock order, everywhere: organization, lease, balance, host, device; each by id. `at` is the database's clock as the door
or loop read it. What starts or stops a meter says so with the second in which the fact was accepted, so that a late
loop costs latency and never money.
"""

from datetime import datetime
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models import Q

from agents import workloads
from apikit.instants import instant as instant_text
from billing import holds, metering
from leasing import broken_promises, calendar, commitments, kept_scratch, starting, terms, volumes
from leasing.models import Lease
from leasing.moves import WrongState, locked, move
from leasing.states import EndReason, State

MAX_FAILED_STARTS = 3
RECHECK_S = 5


@transaction.atomic
def begin(*, lease_id: UUID, at: datetime) -> Lease:
    """Start a scheduled lease whose time has come; idempotent."""
    lease = locked(lease_id)
    if lease.state != State.SCHEDULED:
        return lease
    starting.want_workloads(lease, at=at)
    return move(lease, State.PROVISIONING, at=at, reason="start_time")


@transaction.atomic
def activate(*, lease_id: UUID, at: datetime, now: datetime) -> Lease:
    """Every member is ready: the meter starts at `at`, the second in which the last one's report was accepted.

    A duration or period that was asked for counts from here. Idempotent.
    """
    lease = locked(lease_id)
    if lease.state == State.ACTIVE:
        return lease
    if lease.first_active_at is None:
        lease.first_active_at = at
        if lease.end_at is None and (lease.duration_s or lease.period):
            lease.end_at = terms.end_of(
                start=at, duration_s=lease.duration_s, period=lease.period, zone=lease.organization.time_zone
            )
            calendar.set_end(
                lease=lease, epoch=lease.epoch, end_at=lease.end_at, stop_grace_s=settings.WORKLOAD_STOP_GRACE_S
            )
            starting.tell_end(lease, at=at)
    lease.failed_starts = 0
    lease.meter_seq += 1
    starting.start_meters(lease, at=at)
    if lease.volumes:
        volumes.mounted(lease, at=at)
    return move(lease, State.ACTIVE, at=now, reason="ready", ready_at=instant_text(at))


@transaction.atomic
def interrupt(*, lease_id: UUID, last_good: datetime, at: datetime, reason: str, detail: str = "") -> Lease:
    """Its use is lost: the meter stops at `last_good`, the last second proved usable; `active` -> `interrupted`."""
    lease = locked(lease_id)
    if lease.state != State.ACTIVE:
        return lease
    lease.meter_seq += 1
    metering.stop(reference=lease.public_id, seq=lease.meter_seq, at=last_good, cause=reason)
    broken_promises.keep(lease, last_good=last_good, needs_notice=reason == "host_drained", at=at)
    return move(lease, State.INTERRUPTED, at=at, reason=reason, detail=detail, last_good=instant_text(last_good))


@transaction.atomic
def revive(*, lease_id: UUID, ready_at: datetime, at: datetime) -> Lease:
    """Its host is back with the same epoch still running: `interrupted` -> `active`, a new segment from `ready_at`."""
    lease = locked(lease_id)
    if lease.state != State.INTERRUPTED:
        return lease
    lease.meter_seq += 1
    starting.start_meters(lease, at=ready_at)
    return move(lease, State.ACTIVE, at=at, reason="host_back")


@transaction.atomic
def requeue(
    *, lease_id: UUID, at: datetime, reason: str, detail: str = "", avoid_host: UUID | None = None, failed: bool = True
) -> Lease:
    """Give the present epoch up and wait for devices again; not placed before its fence is safe.

    From `provisioning` (it could not start there), `interrupted` (restart elsewhere) or `scheduled` (devices died).
    """
    lease = locked(lease_id)
    if lease.state not in {State.PROVISIONING, State.INTERRUPTED, State.SCHEDULED}:
        return lease
    if lease.state == State.PROVISIONING and failed:
        lease.failed_starts += 1
    if avoid_host and str(avoid_host) not in lease.avoid_hosts:
        lease.avoid_hosts = [*lease.avoid_hosts, str(avoid_host)]
    if lease.state == State.SCHEDULED:  # of this epoch nothing ran; what an earlier one binds, its host gives back
        calendar.release(at=at, of=Q(lease=lease, epoch=lease.epoch))
    workloads.unwant(reference=lease.public_id, at=at, reason=reason)
    return move(lease, State.PENDING, at=at, reason=reason, detail=detail)


@transaction.atomic
def end(
    *,
    lease_id: UUID,
    reason: EndReason,
    at: datetime,
    last_good: datetime | None = None,
    detail: str = "",
    exit_code: int | None = None,
) -> Lease:
    """Stop it: the meter stops at this second (or at `last_good`, if its host was not heard later).

    A cancel always wins over progress. Ending what already ends or ended changes nothing, and keeps the first reason.
    exit_code: of its command, where that is why it ends.
    """
    lease = locked(lease_id)
    if lease.state in {State.ENDING, State.ENDED}:
        return lease
    lease.ending_reason, lease.ending_detail, lease.exit_code = reason, detail[:300], exit_code
    if lease.state in {State.ACTIVE, State.PARKED}:  # parked: the fee for holding
        lease.meter_seq += 1
        metering.stop(
            reference=lease.public_id, seq=lease.meter_seq, at=min(at, last_good) if last_good else at, cause=reason
        )
    # Its scratch outlives it where the money went out and a reserve is held for it.
    kept = reason == EndReason.BALANCE and lease.state in kept_scratch.RUNS and kept_scratch.may_keep(lease)
    workloads.unwant(reference=lease.public_id, at=at, reason=reason, keeps_scratch=kept)
    if kept:
        kept_scratch.keep(lease, at=at)
    if lease.state in {State.PENDING, State.SCHEDULED}:
        if (
            lease.state == State.SCHEDULED
        ):  # nothing ever ran on them; what a pending lease still binds, hosts give back
            calendar.release(at=at, of=Q(lease=lease, epoch=lease.epoch))
        return _finish(lease, at=at)
    return move(lease, State.ENDING, at=at, reason=reason, detail=detail)


@transaction.atomic
def finish(*, lease_id: UUID, at: datetime) -> Lease:
    """Everything of it is stopped, or fenced: post its charge, give back what was held; `ending` -> `ended`."""
    lease = locked(lease_id)
    if lease.state == State.ENDED:
        return lease
    if lease.state != State.ENDING:
        raise WrongState(f"It is {lease.state}; it must be ending first.", lease=lease)
    return _finish(lease, at=at)


def _finish(lease: Lease, *, at: datetime) -> Lease:
    lease.ended_at = at
    lease.charged_micros = metering.finish(reference=lease.public_id, at=at, ended_by=commitments.ended_by(lease))
    holds.release(reference=lease.public_id, at=at)
    if lease.ending_reason != EndReason.BALANCE or not kept_scratch.is_kept(lease):
        workloads.drop_scratch(reference=lease.public_id)
    if lease.volumes:
        volumes.let_go(lease, at=at)
    return move(
        lease,
        State.ENDED,
        at=at,
        reason=lease.ending_reason,
        detail=lease.ending_detail,
        charged_micros=lease.charged_micros,
    )
