"""Tenants are told before anything ends: a row, an event of the lease, a webhook, and a file inside its containers."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any
from uuid import UUID

from agents import workloads
from apikit.instants import instant as instant_text
from leasing.models import Lease, LeaseEvent
from leasing.notice_models import LEAVING, Notice
from outbox import messages

TOPIC = "lease.notice"


def give(
    lease: Lease, *, cause: str, ends_at: datetime, at: datetime, detail: str = "", successor_id: UUID | None = None,
    lost_micros: int = 0, leaves_at: datetime | None = None,
) -> Notice:  # fmt: skip
    """Tell a lease that it ends, or leaves its devices, at `ends_at`. The caller holds its row.

    The same cause and end again changes nothing; another end of the same cause is told anew. leaves_at: from when on
    its devices are another's.
    """
    notice = lease.notices.filter(cause=cause, closed_at=None).first()
    if notice is not None and notice.ends_at == ends_at:
        return notice
    if notice is None:
        notice = Notice(lease=lease, cause=cause, given_at=at, promised_s=lease.notice_s, lost_micros=lost_micros)
        notice.successor_id = successor_id
    elif ends_at < notice.ends_at:
        notice.given_at = at  # of this end nobody knew before
    notice.ends_at, notice.detail = ends_at, detail[:300]
    notice.save()
    if leaves_at is not None:
        lease.leaves_at = leaves_at
        lease.save(update_fields=["leaves_at"])
    facts = {"cause": str(cause), "ends_at": instant_text(ends_at)}
    tell(lease, topic=TOPIC, reason="notice", detail=detail, facts=facts, at=at)
    tell_hosts(lease)
    return notice


def withdraw(lease: Lease, *, causes: Iterable[str], at: datetime, detail: str) -> int:
    """Take the open notices of these causes back, and say so. The caller holds the lease's row."""
    open_ones = list(lease.notices.filter(closed_at=None, cause__in=list(causes)))
    if not open_ones:
        return 0
    if lease.leaves_at is not None and any(notice.cause in LEAVING for notice in open_ones):
        lease.leaves_at = None
        lease.save(update_fields=["leaves_at"])
    close(lease_id=lease.pk, outcome=Notice.Outcome.WITHDRAWN, at=at, causes=causes)
    facts = {"causes": sorted(str(notice.cause) for notice in open_ones), "withdrawn": True}
    tell(lease, topic=TOPIC, reason="notice_withdrawn", detail=detail, facts=facts, at=at)
    tell_hosts(lease)
    return len(open_ones)


def close(*, lease_id: UUID, outcome: str, at: datetime, causes: Iterable[str] | None = None) -> int:
    """Close the open notices of a lease (of these causes), without a word; return how many."""
    open_ones = Notice.objects.filter(lease=lease_id, closed_at=None)
    if causes is not None:
        open_ones = open_ones.filter(cause__in=list(causes))
    return open_ones.update(closed_at=at, outcome=outcome)


def tell_hosts(lease: Lease) -> None:
    """Let the hosts of the present epoch write the nearest open notice into their containers, or none."""
    nearest = Notice.objects.filter(lease=lease, closed_at=None).order_by("ends_at").first()
    told: dict[str, Any] | None = None
    if nearest is not None:
        told = {"cause": nearest.cause, "ends_at": instant_text(nearest.ends_at), "detail": nearest.detail}
    workloads.notify(reference=lease.public_id, epoch=lease.epoch, notice=told)


def tell(lease: Lease, *, topic: str, reason: str, detail: str, facts: dict[str, Any], at: datetime) -> None:
    """Write an event that is no move, and its message. The caller holds the lease's row."""
    lease.version += 1
    lease.save(update_fields=["version"])
    LeaseEvent.objects.create(
        lease=lease, seq=lease.version, at=at, from_state=lease.state, to_state=lease.state, reason=reason,
        detail=detail[:500], facts=facts,
    )  # fmt: skip
    messages.post(
        topic=topic,
        key=f"{lease.public_id}:{lease.version}",
        payload={"id": lease.public_id, "version": lease.version, **facts},
        organization_id=lease.organization_id,
        at=at,
    )
