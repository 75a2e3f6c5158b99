"""Changes of a lease that are no moves: its start, its end, its renewal, and what it is called.

Each takes the row's lock and writes an event beside the new version. The calendar has the last word: an end or a start
that others stand in the way of is refused whole. No price is touched: what was promised for a lease holds for as long
as it goes on without a gap, extended or renewed (invariant 11 of DOMAIN.md).
"""

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import transaction

from apikit.errors import InvalidInput
from apikit.instants import instant as instant_text
from leasing import actions, calendar, parking, starting, terms
from leasing.models import Lease
from leasing.moves import WrongState, locked, note
from leasing.states import OnInterrupt, State

RENEWS = frozenset({State.PENDING, State.PROVISIONING, State.ACTIVE, State.PARKED, State.INTERRUPTED})
MAX_RENEWED_AHEAD = timedelta(days=2 * 366)  # by hand: the present period and the next, also of a year


def _check_allowed(lease: Lease, action: str, why_not: str) -> None:
    if action not in actions.of(lease):
        raise WrongState(why_not, lease=lease)


def _out_of_range(detail: str, pointer: str = "") -> InvalidInput:
    return InvalidInput(detail, errors=[{"pointer": pointer, "code": "out_of_range", "detail": detail}])


def _set_end(lease: Lease, end_at: datetime, *, reason: str, at: datetime) -> Lease:
    """Move the end in the calendar, on the row and on the hosts; raise DevicesTaken and change nothing."""
    if lease.state != State.PENDING and lease.parked_keep != parking.QUEUE:  # those have given their devices up
        _set_end_in_calendar(lease, end_at)
    before, lease.end_at = lease.end_at, end_at
    note(
        lease, reason=reason, at=at, changed=["end_at"], end_at=instant_text(end_at),
        before=instant_text(before) if before else None,
    )  # fmt: skip
    starting.tell_end(lease, at=at)
    return lease


def _set_end_in_calendar(lease: Lease, end_at: datetime) -> None:
    """Hold what it has to its end; of one that moves, what it leaves until then, and its new place afterwards."""
    leaves_at, ends = lease.leaves_at, {lease.epoch: end_at}
    if leaves_at is not None and any(row.epoch == calendar.HELD_EPOCH for row in calendar.live(lease_id=lease.pk)):
        ends = {lease.epoch: min(end_at, leaves_at), calendar.HELD_EPOCH: max(end_at, leaves_at)}
    for epoch, until in ends.items():
        calendar.set_end(lease=lease, epoch=epoch, end_at=until, stop_grace_s=settings.WORKLOAD_STOP_GRACE_S)


@transaction.atomic
def change_end(*, lease_id: UUID, end_at: datetime, at: datetime) -> Lease:
    """Extend or shorten: the calendar must allow it, else DevicesTaken; a running term's end moves, nothing else.

    Raises WrongState, and InvalidInput for an end more than 366 days ahead.
    """
    lease = locked(lease_id)
    _check_allowed(lease, "extend", f"A lease that is {lease.state} has no end to move.")
    if end_at <= at:
        raise WrongState("The new end is not in the future; end it instead.", lease=lease)
    if end_at > at + timedelta(seconds=terms.MAX_DURATION_S):
        raise _out_of_range("An end lies at most 366 days ahead.")
    return _set_end(lease, end_at, reason="end_moved", at=at)


@transaction.atomic
def shorten(*, lease_id: UUID, end_at: datetime, at: datetime) -> Lease:
    """Let it end sooner, or at its present end: as change_end, and a term that renews does so no more."""
    lease = change_end(lease_id=lease_id, end_at=end_at, at=at)
    if lease.renew:
        lease.renew = False
        note(lease, reason="renewal_off", at=at, changed=["renew"])
        starting.tell_end(lease, at=at)
    return lease


@transaction.atomic
def defer(*, lease_id: UUID, start_at: datetime, at: datetime) -> Lease:
    """Let a lease that has not started begin later; an end that was counted from its start moves with it.

    What the calendar holds for it moves in one step, or DevicesTaken is raised and nothing has changed. Raises
    WrongState once it has started, InvalidInput for a start that is no later one, after its end, or beyond a year.
    """
    lease = locked(lease_id)
    _check_allowed(lease, "defer", f"A lease that is {lease.state} has no start to put off.")
    if start_at <= max(lease.start_at or at, at):
        raise _out_of_range("The new start must lie after the present one.", "/start_at")
    if start_at > at + timedelta(seconds=terms.MAX_START_AHEAD_S):
        raise _out_of_range("A start lies at most 365 days ahead.", "/start_at")
    end_at = start_at + timedelta(seconds=lease.duration_s) if lease.duration_s is not None else lease.end_at
    if end_at is not None and end_at < start_at + timedelta(seconds=terms.MIN_DURATION_S):
        raise _out_of_range("It ends before that start; a lease lasts at least 60 s.", "/start_at")
    if lease.state == State.SCHEDULED:
        calendar.set_range(
            lease=lease, epoch=lease.epoch, start=start_at, end_at=end_at, stop_grace_s=settings.WORKLOAD_STOP_GRACE_S
        )
    before, lease.start_at, lease.end_at, lease.check_at = lease.start_at, start_at, end_at, at
    return note(
        lease, reason="deferred", at=at, changed=["start_at", "end_at", "check_at"], start_at=instant_text(start_at),
        before=instant_text(before) if before else None,
    )  # fmt: skip


@transaction.atomic
def renew(*, lease_id: UUID, at: datetime) -> bool:
    """Move the end of a renewing lease to its next calendar step; False if it does not renew, or cannot.

    Whatever it is doing then: its tenant asked for it, and is told of no end.
    """
    lease = locked(lease_id)
    if not (lease.renew and lease.period and lease.first_active_at and lease.end_at) or lease.state not in RENEWS:
        return False
    try:
        _set_end(lease, _next_step(lease, after=max(lease.end_at, at)), reason="renewed", at=at)
    except calendar.DevicesTaken:
        return False
    return True


@transaction.atomic
def renew_by_hand(*, lease_id: UUID, periods: int, at: datetime) -> Lease:
    """Add periods to a reserved lease that runs, at the price that was promised for it.

    The end is counted in calendar steps of the tenant from its first second, so 31 January, renewed twice, ends on
    31 March. Raises WrongState, DevicesTaken (nothing has changed), InvalidInput for an end beyond two years.
    """
    lease = locked(lease_id)
    _check_allowed(lease, "renew", "Only a reserved lease that runs can be renewed.")
    assert lease.end_at is not None
    end_at = lease.end_at
    for _ in range(periods):
        end_at = _next_step(lease, after=end_at)
    if end_at > at + MAX_RENEWED_AHEAD:
        raise _out_of_range("A lease is renewed for at most two years ahead.", "/periods")
    return _set_end(lease, end_at, reason="renewed", at=at)


def _next_step(lease: Lease, *, after: datetime) -> datetime:
    """Return the first end of a period, counted from the first active second, that lies after an instant."""
    assert lease.first_active_at is not None
    ends, periods = lease.first_active_at, 0
    while ends <= after:
        periods += 1
        ends = terms.end_of(
            start=lease.first_active_at, duration_s=None, period=lease.period, zone=lease.organization.time_zone,
            periods=periods,
        )  # fmt: skip
    return ends


@transaction.atomic
def edit(*, lease_id: UUID, changes: dict[str, Any], at: datetime) -> Lease:
    """Change what is for the tenant to say while it lives: name, labels, ssh_keys, what to do when interrupted.

    How long its containers may run unheard follows from the last, and its hosts are told. Raises WrongState once it has
    ended: a terminal row never changes. Raises InvalidInput for a whole machine that should start elsewhere.
    """
    lease = locked(lease_id)
    if lease.state == State.ENDED:
        raise WrongState("It has ended, and what has ended does not change.", lease=lease)
    fresh = {field: value for field, value in changes.items() if getattr(lease, field) != value}
    if not fresh:
        return lease
    if lease.is_bare and fresh.get("on_interrupt") == OnInterrupt.RESTART_ELSEWHERE:
        detail = "A whole machine is not moved: end or wait_for_host."
        raise InvalidInput(detail, errors=[{"pointer": "/on_interrupt", "code": "bad_value", "detail": detail}])
    for field, value in fresh.items():
        setattr(lease, field, OnInterrupt(value) if field == "on_interrupt" else value)
    note(lease, reason="edited", at=at, changed=fresh, fields=sorted(fresh))
    if "on_interrupt" in fresh:
        starting.tell_validity(lease)
    return lease
