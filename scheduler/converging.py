"""Wanted against observed: what hosts report becomes what leases are. Level-triggered, claimed, safe to repeat.

Each unfinished lease says in `check_at` when it is to be looked at next; a tick claims what is due. Facts that cannot
wait (a container exited, a host is lost, a GPU failed, a term is over) bring `check_at` forward in one statement.
"""

import logging
from datetime import datetime, timedelta
from uuid import UUID, uuid4

from django.conf import settings
from django.db import connection, transaction
from django.db.models import Q

from agents import host_events
from agents.models import Workload
from audit import ids
from billing import budgets, exhaustion
from leasing import (
    giving_way,
    moves,
)
from leasing.models import Lease
from leasing.states import EndReason, State
from scheduler import giving_back, recovery
from scheduler.looking import STEPS

log = logging.getLogger(__name__)

CLAIM_S = 10
BATCH = 50
MAX_PASSES = 20
MAX_BACK_OFF = 32
STUCK = "lease_stuck"  # the alarm of a lease that cannot be looked at
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
