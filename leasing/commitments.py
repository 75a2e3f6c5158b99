"""Who ended a lease, as its price asks: a minimum, which is the commitment of what is reserved, binds its tenant."""

from collections.abc import Iterable
from datetime import datetime

from django.db.models import Max

from agents.models import Workload
from billing.endings import TENANT
from leasing import secrets_at_start
from leasing.models import Lease, LeaseEvent
from leasing.states import EndReason, State

SUPPLIER = "supplier"
# With which a tenant, or his command, stops what runs, so that it starts again.
OWN_ACTS = frozenset({"restart", "on_exit", "resized", "moved"})
# Why a start fails that would fail anywhere: what it starts from is the tenant's, and he may have taken it away.
OWN_FAILURES = frozenset(
    {
        "bad_spec", "exited_early", "health_failed", "image_denied", "image_not_found", "incompatible", "pull_stalled",
        "secret_missing",
    }
)  # fmt: skip


def ended_by(lease: Lease) -> str:
    """Return the cause for which the books of an ending lease are closed.

    Its tenant has ended it also where its command exited, where he moved the end of its term forward, where he gave
    his devices up, and where he started it anew from what is not there any more: else a commitment would bind nobody
    who knows these ways. A term that is served to its end is not cut short, however many seconds of it could be used.
    Who leaves while his host is lost and no other runs his lease yet is let go: what he had committed to is not there.
    """
    reason = EndReason(lease.ending_reason)
    is_by_tenant = reason in (EndReason.TENANT, EndReason.COMPLETED)
    if reason == EndReason.EXPIRED and lease.term_kind == Lease.TermKind.RESERVED:
        is_by_tenant = _is_cut_short(lease) or _was_given_up(lease)
    if is_by_tenant:
        return SUPPLIER if _is_out_of_service(lease) else TENANT
    if reason == EndReason.FAILED_TO_START and _could_start_nowhere(lease):
        return TENANT
    return str(reason)


def _is_out_of_service(lease: Lease) -> bool:
    """Tell whether something but its tenant stopped a lease since it last ran, or kept it from starting again."""
    return any(
        (event.to_state == State.INTERRUPTED and event.reason not in OWN_ACTS)
        or (event.to_state == State.PENDING and event.reason not in OWN_FAILURES and event.from_state != State.PARKED)
        for event in _since_it_ran(lease)
    )


def _since_it_ran(lease: Lease) -> Iterable[LeaseEvent]:
    """Return the events of a lease that has run, from the one with which it ceased to."""
    left = lease.events.filter(from_state=State.ACTIVE).exclude(to_state=State.ACTIVE).aggregate(n=Max("seq"))["n"]
    return () if left is None else lease.events.filter(seq__gte=left).order_by("seq")


def _could_start_nowhere(lease: Lease) -> bool:
    """Tell whether a lease that had run could not start again for what is its tenant's, by every word of its hosts.

    That a secret is missing ends it at once, and an owner may earn by saying so: there the vault must say it, too.
    """
    if lease.first_active_at is None or _is_out_of_service(lease):
        return False
    failed = Workload.objects.filter(reference=lease.public_id, epoch=lease.epoch).exclude(failure="")
    return failed.exists() and all(
        workload.failure in OWN_FAILURES
        and (workload.failure != "secret_missing" or secrets_at_start.was_lacking(lease, at=workload.wanted_at))
        for workload in failed
    )


def _is_cut_short(lease: Lease) -> bool:
    """Tell whether a lease ends before the end that its term had at first."""
    moves = lease.events.filter(reason__in=("end_moved", "renewed"), facts__before__isnull=False)
    moved = moves.order_by("seq").first()
    if moved is None or moved.facts["before"] is None or lease.end_at is None:
        return False
    return lease.end_at < datetime.fromisoformat(moved.facts["before"])


def _was_given_up(lease: Lease) -> bool:
    return lease.events.filter(to_state=State.PARKED, reason="parked_queue").exists()
