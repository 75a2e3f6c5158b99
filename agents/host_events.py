"""The diary of hosts, and the alarms that a person must look at."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import transaction

from agents.models import Alarm, HostEvent
from audit import log


def record(
    *,
    host_id: UUID,
    kind: str,
    at: datetime,
    detail: str = "",
    by: str = "",
    device_id: UUID | None = None,
    facts: Mapping[str, Any] | None = None,
) -> HostEvent:
    """Write one event in the caller's transaction. `by`: who asked for it; "" is the platform itself."""
    return HostEvent.objects.create(
        host_id=host_id, device_id=device_id, kind=kind, detail=detail[:500], by=by[:80], facts=dict(facts or {}), at=at
    )


def raise_alarm(
    *, kind: str, detail: str, at: datetime, subject: str = "", facts: Mapping[str, Any] | None = None
) -> bool:
    """Open an alarm unless it is open already; return whether it is new."""
    first = {"detail": detail[:500], "facts": dict(facts or {}), "opened_at": at}
    _, is_new = Alarm.objects.get_or_create(kind=kind, subject=subject, closed_at=None, defaults=first)
    return is_new


@transaction.atomic
def settle_alarm(*, kind: str, at: datetime, subject: str = "", by: str = "", reason: str = "") -> None:
    """Close the alarm if it is open. `by` and `reason`: of a person who settles it; then it is recorded."""
    closed = Alarm.objects.filter(kind=kind, subject=subject, closed_at__isnull=True).update(closed_at=at)
    if closed and by:
        target = f"{kind} {subject}".strip()
        log.record(actor=by, organization=None, action="alarm.settled", target=target, why=reason, at=at)
