"""Wanted against observed: what hosts report becomes what leases are. Level-triggered, claimed, safe to repeat.

Each unfinished lease says in `check_at` when it is to be looked at next; a tick claims what is due. Facts that cannot
wait (a container exited, a host is lost, a GPU failed, a term is over) bring `check_at` forward in one statement.
"""

import logging
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from uuid import UUID, uuid4

from django.conf import settings
from django.db import connection, transaction
from django.db.models import Q

from agents import fence, host_events
from agents.models import Host, Workload
from agents.protocol import NOT_RENEWED
from audit import ids
from billing import budgets, exhaustion
from leasing import (
    assigning,
    broken_promises,
    calendar,
    giving_way,
    lifecycle,
    moves,
    parking,
    rebinding,
    starting,
    term_changes,
)
from leasing.models import Lease
from leasing.states import EndReason, State
from scheduler import giving_back, recovery

log = logging.getLogger(__name__)

CLAIM_S = 10
BATCH = 50
MAX_PASSES = 20
MAX_BACK_OFF = 32
STUCK = "lease_stuck"  # the alarm of a lease that cannot be looked at
NO_OTHER_HOST_HELPS = frozenset({"secret_missing"})
LOOK_AGAIN_S = {
    State.PROVISIONING: 0.5,
    State.ENDING: 0.5,
    State.INTERRUPTED: 1.0,
    State.ACTIVE: 5.0,
    State.SCHEDULED: 5.0,
}

_BRING_FORWARD = """
UPDATE leasing_lease AS lease SET check_at = %(at)s
WHERE lease.state = 'active' AND lease.check_at > %(at)s AND (
    lease.end_at <= %(at)s OR lease.leaves_at <= %(at)s
    OR EXISTS (SELECT 1 FROM leasing_leasemember AS member JOIN agents_host AS host ON host.id = member.host_id
               WHERE member.lease_id = lease.id AND member.epoch = lease.epoch
                 AND (host.state IN ('lost', 'quarantined', 'retired')
                      OR (host.scheduling = 'draining' AND host.drain_deadline <= %(leaving)s)))
    OR EXISTS (SELECT 1 FROM leasing_allocation AS held JOIN agents_device AS device ON device.id = held.device_id
               WHERE held.lease_id = lease.id AND held.epoch = lease.epoch AND held.released_at IS NULL
                 AND (device.health IN ('lost', 'failed', 'remedy') OR NOT device.present)))
"""
_CLAIM = """
WITH due AS (SELECT id FROM leasing_lease
             WHERE state <> 'ended' AND check_at <= %(at)s
               AND (state NOT IN ('pending', 'parked') OR parked_keep = 'hold' OR end_at <= %(at)s)
               AND (claim_until IS NULL OR claim_until < %(at)s)
             ORDER BY check_at LIMIT %(batch)s FOR NO KEY UPDATE SKIP LOCKED)
UPDATE leasing_lease SET claim_token = %(token)s, claim_until = %(until)s, attempts = attempts + 1
FROM due WHERE leasing_lease.id = due.id RETURNING leasing_lease.id
"""


def converge(*, at: datetime) -> int:
    """Look at every lease that is due and at every device that can be let again; return how many leases were seen."""
    giving_back.release_devices(at=at)  # first: a scheduled lease may be due on them
    _bring_forward(at)
    seen = 0
    for _ in range(MAX_PASSES):
        claimed = _claim(at)
        for lease_id, token in claimed:
            _look_at(lease_id, token, at)
        seen += len(claimed)
        if len(claimed) < BATCH:
            break
    giving_back.release_devices(at=at)
    return seen


def _bring_forward(at: datetime) -> None:
    with connection.cursor() as cursor:
        leaving = at + timedelta(seconds=settings.WORKLOAD_STOP_GRACE_S)
        cursor.execute(_BRING_FORWARD, {"at": at, "leaving": leaving})
    stopped = Workload.objects.filter(wanted=True, gone_at__isnull=True).filter(
        Q(exited_at__isnull=False) | Q(unusable_since__isnull=False)
    )
    leases = [ids.decode("lease", reference) for reference in stopped.values_list("reference", flat=True)]
    Lease.objects.filter(pk__in=[pk for pk in leases if pk], state=State.ACTIVE, check_at__gt=at).update(check_at=at)


def _claim(at: datetime) -> list[tuple[UUID, UUID]]:
    token = uuid4()
    with connection.cursor() as cursor:
        cursor.execute(_CLAIM, {"at": at, "batch": BATCH, "token": token, "until": at + timedelta(seconds=CLAIM_S)})
        return [(row[0], token) for row in cursor.fetchall()]


def _look_at(lease_id: UUID, token: UUID, at: datetime) -> None:
    lease, attempts = Lease.objects.get(pk=lease_id), 0
    try:
        with transaction.atomic():
            # What is decided must still be true when it is done: the row stays locked from the look to the act.
            lease = moves.locked(lease_id)
            if lease.claim_token != token:
                return  # we were too slow, and another has looked since
            step = STEPS.get(State(lease.state))
            if step is not None:
                step(lease, at)
            if lease.leaves_at is not None and lease.leaves_at <= at:
                # In whatever state its notice ends: what has not ended by itself gives its devices up.
                giving_way.leave(lease_id=lease_id, at=at, last_good=recovery.usable_until(lease, at=at))
    except Exception as fault:
        # One lease that cannot be moved must not stop the others: it is looked at ever less often, and alarmed on.
        attempts = lease.attempts
        log.exception("lease could not be looked at", extra={"lease": lease.public_id, "attempts": attempts})
        _tell_operators(lease, fault, at)
    else:
        if lease.attempts > moves.STUCK_AFTER:  # of its claim: all before this one failed
            host_events.settle_alarm(kind=STUCK, subject=lease.public_id, at=at)
    wait_s = LOOK_AGAIN_S.get(State(lease.state), 5.0) * min(2**attempts, MAX_BACK_OFF)
    # Our claim only, and only if nobody moved it meanwhile: a move has set its own check_at.
    ours = Lease.objects.filter(pk=lease_id, claim_token=token)
    ours.filter(version=lease.version).update(check_at=at + timedelta(seconds=wait_s), attempts=attempts)
    ours.update(claim_token=None, claim_until=None)


def _tell_operators(lease: Lease, fault: Exception, at: datetime) -> None:
    if lease.attempts >= moves.STUCK_AFTER:
        detail = (
            f"It is {lease.state} and could not be looked at {lease.attempts} times: {type(fault).__name__}: {fault}"
        )
        facts = {"state": str(lease.state), "attempts": lease.attempts}
        host_events.raise_alarm(kind=STUCK, subject=lease.public_id, detail=detail, facts=facts, at=at)


def _scheduled(lease: Lease, at: datetime) -> None:
    held = [row for row in calendar.live(lease_id=lease.pk) if row.epoch == lease.epoch]
    begins_at = max((row.during.lower for row in held), default=at)
    if begins_at > at and (lease.start_at is None or lease.start_at <= at):
        # It waits only until others have left: whatever they leave early is its own at once.
        begins_at = at if calendar.bring_forward(lease_id=lease.pk, epoch=lease.epoch, at=at) else begins_at
    hosts = [row.device.host for row in held]
    if begins_at > at:
        if any(host.state == Host.State.RETIRED for host in hosts):  # it will not be back, and there is time
            lifecycle.requeue(lease_id=lease.pk, at=at, reason="devices_not_ready", detail="Its host left the pool.")
        return
    units = [(row.device_id, (row.units.lower, row.units.upper)) for row in held]
    taken = calendar.in_the_way(units=units, at=at, but=lease.pk) or bool(assigning.unsafe_among([lease], at=at))
    if recovery.lost_hold(lease, at=at) is not None or (
        taken and at > begins_at + timedelta(seconds=calendar.CLEANING_MARGIN_S)
    ):
        lifecycle.requeue(lease_id=lease.pk, at=at, reason="devices_not_ready")
    elif not taken:
        lifecycle.begin(lease_id=lease.pk, at=at)


def _is_over(lease: Lease, at: datetime) -> bool:
    """Return whether its term is over; one that renews has another then."""
    return bool(lease.end_at and lease.end_at <= at) and not term_changes.renew(lease_id=lease.pk, at=at)


def _provisioning(lease: Lease, at: datetime) -> None:
    workloads = starting.live_workloads(lease)
    if _is_over(lease, at):
        lifecycle.end(lease_id=lease.pk, reason=EndReason.EXPIRED, at=at)
        return
    if not workloads:
        rebinding.begin(lease_id=lease.pk, at=at)
        return
    began_at = _usable_from(workloads)
    if began_at is not None:
        lifecycle.activate(lease_id=lease.pk, at=began_at, now=at)
        return
    for workload in workloads:
        trouble = _start_trouble(workload, at)
        if trouble is not None:
            _start_failed(lease, workload, trouble, at)
            return


def _usable_from(workloads: Sequence[Workload]) -> datetime | None:
    """Return the second from which every member was ready at once, or None.

    Also if one has ended since: what was usable before a late look is charged, and the next look says until when.
    """
    ready = [workload.ready_at for workload in workloads if workload.ready_at is not None]
    if not ready or len(ready) < len(workloads):
        return None
    ended = [moment for w in workloads for moment in (w.exited_at, w.unusable_since) if moment is not None]
    return max(ready) if all(moment > max(ready) for moment in ended) else None


def _start_trouble(workload: Workload, at: datetime) -> str | None:
    if workload.host.state in recovery.DEAD_HOST:
        return "host_lost"
    if recovery.is_leaving(workload.host, at=at):
        return "host_drained"
    if workload.failure:
        return workload.failure
    if workload.exited_at is not None or workload.gone_at is not None:
        return "exited_early"
    return None


def _start_failed(lease: Lease, workload: Workload, trouble: str, at: datetime) -> None:
    detail = f"{trouble} on {workload.host.name}: {workload.detail}"[:300]
    if workload.exit_code is not None and trouble == "exited_early":
        # Its own command ended, well or badly, before it was seen to run: another host would see the same.
        code = workload.exit_code
        lifecycle.end(lease_id=lease.pk, reason=EndReason.COMPLETED, at=at, detail=detail, exit_code=code)
    elif trouble in NO_OTHER_HOST_HELPS or lease.failed_starts + 1 >= lifecycle.MAX_FAILED_STARTS:
        lifecycle.end(lease_id=lease.pk, reason=EndReason.FAILED_TO_START, at=at, detail=detail)
    else:
        avoid_host = None if trouble == NOT_RENEWED else workload.host_id
        lifecycle.requeue(lease_id=lease.pk, at=at, reason=trouble, detail=detail, avoid_host=avoid_host)


def _active(lease: Lease, at: datetime) -> None:
    workloads = starting.live_workloads(lease)
    lost = recovery.last_good_second(lease, workloads=list(workloads), at=at)
    over_at = min([moment for moment in (lease.end_at, lease.leaves_at) if moment], default=None)
    exits = [w for w in workloads if w.exited_at is not None and not (over_at and w.exited_at >= over_at)]
    unheard = [w for w in exits if w.failure == NOT_RENEWED]
    exits = [w for w in exits if w not in unheard]
    for workload in unheard:  # we were not heard, which is no act of the tenant's command
        loss = (workload.exited_at or at, NOT_RENEWED, workload.detail)
        lost = min(lost, loss) if lost else loss
    last = min(exits, key=lambda w: w.exited_at or at, default=None)
    # What crashed because its GPU was lost has not completed.
    if last is not None and not (lost and lost[0] < (last.exited_at or at)):
        if lease.on_exit == "restart" and parking.restarts_left(lease, at=at) > 0:
            parking.restart(lease_id=lease.pk, at=at, last_good=last.exited_at, reason="on_exit")
            return
        lifecycle.end(
            lease_id=lease.pk, reason=EndReason.COMPLETED, at=at, last_good=last.exited_at,
            detail=f"Its command exited with {last.exit_code}.", exit_code=last.exit_code,
        )  # fmt: skip
        return
    dearer = recovery.dearer_since(lease, at=at)
    sooner = [moment for moment in (lease.end_at, dearer and dearer[0], lost[0] if lost else None) if moment]
    if lease.leaves_at and lease.leaves_at <= min([at, *sooner]):
        return  # its notice ends first: it gives its devices up
    if lease.end_at and _is_over(lease, at):
        # Its containers have stopped at the end by themselves; whatever was seen after it counts for nothing.
        last_good = min(lease.end_at, lost[0]) if lost else lease.end_at
        lifecycle.end(lease_id=lease.pk, reason=EndReason.EXPIRED, at=at, last_good=last_good)
    elif dearer is not None:
        last_good = min(dearer[0], lost[0]) if lost else dearer[0]
        detail = "The market asks more than its cap."
        ended = lifecycle.end(lease_id=lease.pk, reason=EndReason.PREEMPTED, at=at, last_good=last_good, detail=detail)
        broken_promises.keep(ended, last_good=last_good, needs_notice=True, told_at=dearer[1], at=at)
    elif lost is not None:
        last_good, reason, detail = lost
        lifecycle.interrupt(lease_id=lease.pk, last_good=last_good, at=at, reason=reason, detail=detail)
        recovery.recover(Lease.objects.get(pk=lease.pk), workloads=list(workloads), at=at)


def _idle(lease: Lease, at: datetime) -> None:
    """Nothing of it runs: it waits. Its term passes all the same."""
    if _is_over(lease, at):
        reason = EndReason.EXPIRED if lease.first_active_at else EndReason.NEVER_PLACED
        lifecycle.end(lease_id=lease.pk, reason=reason, at=at)


def _parked(lease: Lease, at: datetime) -> None:
    lost = recovery.lost_hold(lease, at=at) if lease.parked_keep == parking.HOLD else None
    if lease.end_at and _is_over(lease, at):
        last_good = min(lease.end_at, lost[0]) if lost else lease.end_at
        lifecycle.end(lease_id=lease.pk, reason=EndReason.EXPIRED, at=at, last_good=last_good)
    elif lost is not None:
        last_good, reason, detail = lost
        parking.lose_hold(lease_id=lease.pk, last_good=last_good, at=at, reason=reason, detail=detail)


def _interrupted(lease: Lease, at: datetime) -> None:
    if _is_over(lease, at):
        lifecycle.end(lease_id=lease.pk, reason=EndReason.EXPIRED, at=at)
        return
    recovery.recover(lease, workloads=list(starting.live_workloads(lease)), at=at)


def _ending(lease: Lease, at: datetime) -> None:
    running = Workload.objects.filter(reference=lease.public_id, gone_at__isnull=True).select_related("host")
    safe = [fence.safe_at(workload) for workload in running]
    if all(moment is not None and moment <= at for moment in safe):
        lifecycle.finish(lease_id=lease.pk, at=at)


STEPS: dict[State, Callable[[Lease, datetime], None]] = {
    State.PENDING: _idle,
    State.PARKED: _parked,
    State.SCHEDULED: _scheduled,
    State.PROVISIONING: _provisioning,
    State.ACTIVE: _active,
    State.INTERRUPTED: _interrupted,
    State.ENDING: _ending,
}


def stop_exhausted(*, at: datetime) -> int:
    """End what burns the money of wallets that are used up (billing knows the second); return how many leases.

    What does not burn goes on: free leases, those of another currency, and what is still held by its own hold.
    """
    return _end_burning(exhaustion.due_references(at=at), at=at)


def stop_over_budget(*, at: datetime) -> int:
    """End what runs under a used-up budget that its organization wants to stop at; return how many leases."""
    return _end_burning(budgets.to_stop(at=at), at=at, detail="A budget is used up.")


def _end_burning(references: list[str], *, at: datetime, detail: str = "") -> int:
    leases = Lease.objects.filter(pk__in=[pk for reference in references if (pk := ids.decode("lease", reference))])
    ended = 0
    for lease in leases.filter(state__in=[State.ACTIVE, State.PARKED]):  # parked: the fee for holding
        try:
            recovery.end_now(lease=lease, reason=EndReason.BALANCE, at=at, detail=detail)
            ended += 1
        except Exception:  # the next tick tries it again; the others must not wait for it
            log.exception("lease could not be ended", extra={"lease": lease.public_id})
    return ended
