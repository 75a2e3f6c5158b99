"""How a lease changes state: the row's lock, the table of moves, the event and the notice, in one transaction."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any
from uuid import UUID

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


def note(lease: Lease, *, reason: str, at: datetime, changed: Iterable[str] = (), **facts: Any) -> Lease:
    """Save the fields that changed within a state, as a new version with its event: versions are numbered by events."""
    lease.version += 1
    lease.save(update_fields=[*changed, "version"])
    _write_event(lease, came_from=lease.state, to=State(lease.state), reason=reason, at=at, facts=facts)
    return lease


def _write_event(
    lease: Lease, *, came_from: str, to: State, reason: str, at: datetime, facts: dict[str, Any], detail: str = ""
) -> None:
    LeaseEvent.objects.create(
        lease=lease, seq=lease.version, at=at, from_state=came_from, to_state=to, reason=reason, detail=detail[:500],
        facts=facts,
    )  # fmt: skip


def record(
    lease: Lease, *, to: State, reason: str, at: datetime, came_from: str = "", detail: str = "", **facts: Any
) -> None:
    """Write the event of a move and the notice that leaves the system, in the transaction of the move."""
    _write_event(lease, came_from=came_from, to=to, reason=reason, at=at, facts=facts, detail=detail)
    messages.post(
        topic=f"lease.{'created' if not came_from else to}",
        key=f"{lease.public_id}:{lease.version}",
        payload={"id": lease.public_id, "version": lease.version},
        organization_id=lease.organization_id,
        at=at,
    )


def move(lease: Lease, to: State, *, at: datetime, reason: str, detail: str = "", **facts: Any) -> Lease:
    """Change the state and record the move, or raise WrongState. The caller holds the row lock."""
    came_from = State(lease.state)
    if to not in NEXT[came_from]:
        raise WrongState(f"A lease that is {came_from} cannot become {to}.", lease=lease)
    lease.state, lease.state_since, lease.version, lease.check_at = to, at, lease.version + 1, at
    lease.attempts = 0
    if to is not State.PENDING:
        lease.why_waiting = lease.queue_place = lease.eta = None
    lease.save()
    record(lease, to=to, came_from=came_from, reason=reason, at=at, detail=detail, **facts)
    return lease


def instant_text(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
