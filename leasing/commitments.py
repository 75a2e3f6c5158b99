"""Who ended a lease, as its price asks: a minimum, which is the commitment of what is reserved, binds its tenant."""

from datetime import datetime

from billing.endings import TENANT
from leasing.models import Lease
from leasing.states import EndReason, State

SUPPLIER = "supplier"


def ended_by(lease: Lease) -> str:
    """Return the cause for which the books of an ending lease are closed.

    Its tenant has ended it also where its command exited, where he moved the end of its term forward, and where he gave
    his devices up: else a commitment would bind nobody who knows these ways. A term that is served to its end is not
    cut short, however many seconds of it could be used. Who leaves while his host is lost and no other runs his lease
    yet is let go: what he had committed to is not there.
    """
    reason = EndReason(lease.ending_reason)
    is_by_tenant = reason in (EndReason.TENANT, EndReason.COMPLETED)
    if reason == EndReason.EXPIRED and lease.term_kind == Lease.TermKind.RESERVED:
        is_by_tenant = _is_cut_short(lease) or _was_given_up(lease)
    if is_by_tenant:
        return SUPPLIER if _is_out_of_service(lease) else TENANT
    return str(reason)


def _is_out_of_service(lease: Lease) -> bool:
    """Tell whether a lease was interrupted when it last ran, and has not run since."""
    left = lease.events.filter(from_state=State.ACTIVE).exclude(to_state=State.ACTIVE).order_by("-seq").first()
    return left is not None and left.to_state == State.INTERRUPTED


def _is_cut_short(lease: Lease) -> bool:
    """Tell whether a lease ends before the end that its term had at first."""
    moves = lease.events.filter(reason__in=("end_moved", "renewed"), facts__before__isnull=False)
    moved = moves.order_by("seq").first()
    if moved is None or moved.facts["before"] is None or lease.end_at is None:
        return False
    return lease.end_at < datetime.fromisoformat(moved.facts["before"])


def _was_given_up(lease: Lease) -> bool:
    return lease.events.filter(to_state=State.PARKED, reason="parked_queue").exists()
