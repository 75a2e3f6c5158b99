"""Pending leases get their devices: the queue in its order, the pool as it is, pure decisions, and the acts.

One placer at a time, under an advisory lock of its session, so that two never decide over each other's heads; tenants
who ask for "now or not at all" decide beside it. Decisions are tried on an overlay and carried out together, BATCH in
one transaction; whoever loses the race at the calendar's constraint is decided again in the next pass. A pass in which
nothing has changed since the last one decides nothing.
"""

import gc
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import connection

from agents import host_events
from leasing import assigning, lifecycle, moves, waiting_notes
from leasing.assigning import Assignment
from leasing.calendar import DevicesTaken
from leasing.models import Lease
from leasing.states import EndReason, State
from leasing.waiting_notes import Note
from scheduler import backfill, explaining, promises, second_opinion
from scheduler.backfill import Standing
from scheduler.carrier import Carrier
from scheduler.estimating import Estimates
from scheduler.overlay import Overlay
from scheduler.placement import Refusal
from scheduler.pool import Kept
from scheduler.waiting_line import queue

log = logging.getLogger(__name__)

BATCH = 256
MOST_A_PASS = 2048  # then the queue is read again, since somebody may have come who is before the others
MOST_PASSES = 32
CARE_S = 30  # how far ahead the care of a waiting lease is written: passes come each second
PASS_LOCK = 0x6770_7901  # any constant of our own: "gpy", placing
FAULT = {
    "text": "It could not be placed for a fault of ours; it is tried again.",
    "text_zh": "因我方故障未能安排，将会重试。",
    "code": "fault",
    "counts": [],
}
FENCE = {
    "text": "Its earlier containers are not proven stopped yet.",
    "text_zh": "其先前的容器尚未确认停止。",
    "code": "fence",
    "counts": [],
}


@dataclass
class Pass:
    """What one pass did, for the log and the metrics."""

    estimates: Estimates
    placed: int = 0
    waiting: int = 0
    lost_races: int = 0
    failed: int = 0
    turned: int = 0  # cancelled, or not to be bound yet, since the queue was read
    decisions: int = 0
    handed: int = 0  # decided, and handed over to be assigned
    promises: dict[UUID, Kept] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)
    batch: list[tuple[Lease, Assignment]] = field(default_factory=list)


def place_pending(*, at: datetime, grace_s: int) -> Pass:
    """Make passes over the queue while they are full; return the sum. Returns at once when another placer is at it."""
    total = Pass(Estimates(at))
    waiting: list[Lease] = []
    with _alone() as alone, Carrier(at) as carrier:
        for _ in range(MOST_PASSES if alone else 0):
            waiting = queue(at=at, known=waiting)
            with _without_collector(many=len(waiting) > BATCH):
                done = _pass(waiting, carrier, at=at, grace_s=grace_s)
            total.placed += done.placed
            total.lost_races += done.lost_races
            total.failed += done.failed
            total.decisions += done.decisions
            total.waiting = done.waiting
            if done.handed < MOST_A_PASS:
                break
    return total


@contextmanager
def _without_collector(*, many: bool) -> Iterator[None]:
    """Let no search for cycles interrupt a pass over many: of all that it makes, little is garbage before its end."""
    pausing = many and gc.isenabled()
    if pausing:
        gc.disable()
    try:
        yield
    finally:
        if pausing:
            gc.enable()


@contextmanager
def _alone() -> Iterator[bool]:
    """Hold the placer's lock, if nobody has it; a session that dies lets it go."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_lock(%s)", [PASS_LOCK])
        alone = bool(cursor.fetchone()[0])
    try:
        yield alone
    finally:
        if alone:
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_advisory_unlock(%s)", [PASS_LOCK])


_helps = explaining.Helps()
_last: dict[str, Any] = {}  # what the last pass of this process saw, while nothing of it has changed


def forget() -> None:
    """Decide afresh in the next pass."""
    _last.clear()
    _helps.known.clear()


def _pass(waiting: list[Lease], carrier: Carrier, *, at: datetime, grace_s: int) -> Pass:
    done = Pass(Estimates(at))
    before = promises.of(waiting)
    overlay = Overlay(at)
    seen = _what_is_seen(waiting, before, overlay)
    if _last and _last["seen"] == seen and _last["at"] <= at < _last["good_until"]:
        done.waiting = len(waiting)
        waiting_notes.care(until=at + timedelta(seconds=CARE_S), at=at)
        return done
    _helps.begin()
    unsafe = assigning.unsafe_among(waiting, at=at)
    for standing in backfill.walk(waiting, overlay, before, at=at, grace_s=grace_s):
        _settle(standing, done, unsafe, at=at)
        if len(done.batch) >= BATCH:
            _hand_over(done, carrier)
            if done.handed >= MOST_A_PASS:
                break
    _hand_over(done, carrier, last=True)
    whole = done.handed < MOST_A_PASS
    promises.store(done.promises if whole else {**before, **done.promises}, before=before)
    waiting_notes.write(done.notes, at=at)
    waiting_notes.care(until=at + timedelta(seconds=CARE_S), at=at)
    done.decisions = overlay.decisions
    _remember(done, waiting, overlay, whole=whole, at=at)
    return done


def _what_is_seen(waiting: list[Lease], promised: dict[UUID, Kept], overlay: Overlay) -> tuple[Any, ...]:
    """Return all that a pass depends on but the second: who waits, in which order, and the pool."""
    terms = {(lease.price_term, lease.currency) for lease in waiting}
    marks = sorted(overlay.pool(*term).mark for term in terms)
    return [(lease.pk, lease.version) for lease in waiting], promised, sorted(terms), marks


def _remember(done: Pass, waiting: list[Lease], overlay: Overlay, *, whole: bool, at: datetime) -> None:
    """Note what was seen, if the next pass can be left out while nothing changes."""
    _last.clear()
    acted = done.placed or done.lost_races or done.turned or done.failed
    if acted or not whole or not _helps.complete:
        return
    if any(note.why is FENCE for note in done.notes):
        return
    starts = [lease.start_at for lease in waiting if lease.start_at and lease.start_at > at]
    ends = [lease.end_at for lease in waiting if lease.end_at]
    etas = [datetime.fromisoformat(note.eta["at"]) for note in done.notes if note.eta and note.eta["at"]]
    good_until = min([*starts, *ends, *etas, explaining.moment(overlay.good_until_s)], default=at)
    # The order is part of what is seen, since it changes with what is used meanwhile.
    _last.update(seen=_what_is_seen(waiting, done.promises, overlay), at=at, good_until=good_until)


def _settle(standing: Standing, done: Pass, unsafe: set[UUID], *, at: datetime) -> None:
    """Put one lease where it goes: among those to be assigned, or among those that wait."""
    lease = standing.lease
    if standing.promise is not None:
        done.promises[lease.pk] = standing.promise
    if standing.fault is not None:
        done.failed += 1
        done.notes.append(Note(lease, FAULT, standing.place, None))
        if isinstance(standing.fault, second_opinion.Unlawful):
            host_events.raise_alarm(
                kind=second_opinion.ALARM, subject=lease.public_id, detail=standing.fault.detail, at=at
            )
    elif standing.refusal is not None and standing.pool is not None and standing.ask is not None:
        if lease.avoid_hosts and _failed_everywhere(lease, standing.refusal):
            _end_failed(lease, at=at)
            return
        done.waiting += 1
        refusal = _helps.add(standing.ask, standing.refusal, standing.pool)
        why = explaining.explained(refusal, currency=lease.currency)
        eta = explaining.certain(standing.promise) or done.estimates.eta(lease, option_index=refusal.option_index)
        done.estimates.count(lease, option_index=refusal.option_index)
        done.notes.append(Note(lease, why, standing.place, eta))
    elif standing.placed is not None and lease.pk in unsafe:
        # Its own earlier containers may still run. Its seats are kept for it meanwhile, in this pass only.
        done.waiting += 1
        done.notes.append(Note(lease, FENCE, standing.place, None))
    elif standing.placed is not None:
        done.batch.append((lease, standing.placed[1]))


def _hand_over(done: Pass, carrier: Carrier, *, last: bool = False) -> None:
    """Let what was decided be assigned. Who was not assigned keeps its seats in this pass, and is decided again in the
    next: so nothing that is decided meanwhile counts on seats that a lost race may have given back."""
    done.handed += len(done.batch)
    for lease, outcome in carrier.take(done.batch, last=last):
        if isinstance(outcome, Lease):
            done.placed += 1
        elif isinstance(outcome, DevicesTaken):
            done.lost_races += 1
        elif isinstance(outcome, (assigning.NotYet, moves.WrongState)):
            done.turned += 1
        else:
            done.failed += 1
            log.error("lease could not be placed", exc_info=outcome, extra={"lease": lease.public_id})
            done.notes.append(Note(lease, FAULT, None, None))
    done.batch = []


def _failed_everywhere(lease: Lease, refusal: Refusal) -> bool:
    """Tell whether nothing but its own failed starts is in the way: it would wait for ever."""
    asked = lease.constraints
    named = asked.get("exclude_hosts") or asked.get("exclude_owners")
    return not named and bool(refusal.reasons) and all(reason.code == "excluded" for reason in refusal.reasons)


def _end_failed(lease: Lease, *, at: datetime) -> None:
    last = lease.events.filter(to_state=State.PENDING).exclude(from_state=State.PENDING).order_by("-seq").first()
    lifecycle.end(lease_id=lease.pk, reason=EndReason.FAILED_TO_START, at=at, detail=last.detail if last else "")
