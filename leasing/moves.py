"""How a lease changes state: the row's lock, the table of moves, the event and the notice, in one transaction."""

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter
from typing import Any
from uuid import UUID

from django.db import connection

from apikit import statements
from apikit.errors import DomainError
from leasing import actions
from leasing.models import Lease, LeaseEvent
from leasing.states import NEXT, State
from outbox import messages

STUCK_AFTER = 5  # failed looks in a row, until an operator is told


class WrongState(DomainError):
    slug = "invalid-transition"
    title = "A lease in this state cannot do that"

    def __init__(self, detail: str, *, lease: Lease) -> None:
        super().__init__(detail, state=lease.state, actions=actions.of(lease))


def locked(lease_id: UUID) -> Lease:
    return Lease.objects.select_for_update(no_key=True, of=("self",)).select_related("organization").get(pk=lease_id)


_COUNTED = ("version", "epochs_lost", "fenced_until", "leaves_at")  # a version, and what may change within one
_LOCK = (
    f"SELECT id, {', '.join(_COUNTED)} FROM leasing_lease"  # noqa: S608 -- names only
    " WHERE id = ANY(%s::uuid[]) ORDER BY id FOR NO KEY UPDATE"
)
_counted = attrgetter(*_COUNTED)


def all_locked(lease_ids: Iterable[UUID], *, known: Mapping[UUID, Lease] | None = None) -> list[Lease]:
    """Return the leases under their rows' locks, by id.

    known: leases as they were read before. Those whose version is still that one are not read again: the objects are
    copies, and without what is noted of a lease that waits or is looked at, which no version counts.
    """
    if not known:
        rows = Lease.objects.select_for_update(no_key=True, of=("self",)).select_related("organization")
        return list(rows.filter(pk__in=list(lease_ids)).order_by("pk"))
    with connection.cursor() as cursor:
        cursor.execute(_LOCK, [statements.uuids(lease_ids)])
        found = cursor.fetchall()
    same = {pk: copy(known[pk]) for pk, *now in found if pk in known and _counted(known[pk]) == tuple(now)}
    other = [pk for pk, *_ in found if pk not in same]
    read = Lease.objects.select_related("organization").in_bulk(other) if other else {}
    return [same.get(pk) or read[pk] for pk, *_ in found]


@dataclass(frozen=True)
class Move:
    """What an event says. The lease is as it is after the move; came_from None: it begins."""

    lease: Lease
    came_from: State | None
    to: State
    reason: str
    detail: str
    facts: Mapping[str, Any]


def note(lease: Lease, *, reason: str, at: datetime, changed: Iterable[str] = (), **facts: Any) -> Lease:
    """Save the fields that changed within a state, as a new version with its event: versions are numbered by events."""
    lease.version += 1
    lease.save(update_fields=[*changed, "version"])
    _write_events([Move(lease, State(lease.state), State(lease.state), reason, "", facts)], at=at)
    return lease


def create(lease: Lease, *, reason: str, at: datetime) -> Lease:
    """Write a new lease with its first event and the notice of it, in one round trip."""
    first = Move(lease, None, State(lease.state), reason, "", {})
    notice = messages.statement(_notice(first), at=at)
    statements.run(statements.insert(lease), statements.insert(_event(first, at=at)), notice)
    lease._state.adding, lease._state.db = False, "default"
    return lease


def _event(it: Move, *, at: datetime) -> LeaseEvent:
    return LeaseEvent(
        lease=it.lease, seq=it.lease.version, at=at, from_state=it.came_from or "", to_state=it.to, reason=it.reason,
        detail=it.detail[:500], facts=dict(it.facts),
    )  # fmt: skip


def _notice(it: Move) -> messages.Post:
    return messages.Post(
        topic=f"lease.{it.to if it.came_from else 'created'}",
        key=f"{it.lease.public_id}:{it.lease.version}",
        payload={"id": it.lease.public_id, "version": it.lease.version},
        organization_id=it.lease.organization_id,
    )


def _write_events(made: Sequence[Move], *, at: datetime) -> None:
    names = ("lease_id", "seq", "at", "from_state", "to_state", "reason", "detail", "facts")
    when = at.isoformat()
    statements.insert_lines(
        LeaseEvent,
        names,
        [
            (it.lease.pk, it.lease.version, when, it.came_from or "", it.to, it.reason, it.detail[:500], dict(it.facts))
            for it in made
        ],
    )


def record_all(made: Sequence[Move], *, at: datetime) -> None:
    """Write the events of moves and the notices that leave the system, in the transaction of the moves."""
    _write_events(made, at=at)
    messages.post_all([_notice(it) for it in made], at=at)


def record(
    lease: Lease, *, to: State, reason: str, at: datetime, came_from: State | None = None, detail: str = "",
    **facts: Any,
) -> None:  # fmt: skip
    """Write the event of one move and its notice, in the transaction of the move."""
    record_all([Move(lease, came_from, to, reason, detail, facts)], at=at)


def enter(lease: Lease, to: State, *, at: datetime) -> State:
    """Change the state on the object, or raise WrongState; return the state it came from. Nothing is written yet."""
    came_from = State(lease.state)
    if to not in NEXT[came_from]:
        raise WrongState(f"A lease that is {came_from} cannot become {to}.", lease=lease)
    lease.state, lease.state_since, lease.version, lease.check_at = to, at, lease.version + 1, at
    lease.attempts = 0
    if to in {State.PENDING, State.ENDING, State.ENDED}:
        lease.leaves_at = None  # nothing of it stays on the devices that it was told to leave
    if to is not State.PENDING:
        lease.why_waiting = lease.queue_place = lease.eta = None
    return came_from


def move(lease: Lease, to: State, *, at: datetime, reason: str, detail: str = "", **facts: Any) -> Lease:
    """Change the state and record the move, or raise WrongState. The caller holds the row lock."""
    came_from = enter(lease, to, at=at)
    lease.save()
    record(lease, to=to, came_from=came_from, reason=reason, at=at, detail=detail, **facts)
    return lease
