"""Write and verify the append-only log. Whoever acts calls down to `record`, inside the transaction of the act."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from django.db import connection, transaction

from audit.models import Entry

_FIRST = bytes(32)  # what stands before the first entry of a chain
_PLATFORM = UUID(int=0)


@dataclass(frozen=True)
class Break:
    """A place where a chain does not hold."""

    organization_id: UUID | None
    position: int
    why: str


@transaction.atomic
def record(
    *,
    actor: str,
    organization: UUID | None,
    action: str,
    target: str,
    before: Any = None,
    after: Any = None,
    why: str = "",
    request_id: str = "",
    at: datetime,
) -> Entry:
    """Append one entry to the organization's chain (None: the platform's). `before` and `after` are JSON values.

    Holds the chain's lock until the caller's transaction ends: call it last, and never put a secret into it.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [f"audit:{organization or _PLATFORM}"])
    last = Entry.objects.filter(organization_id=organization).order_by("-position").first()
    entry = Entry(
        organization_id=organization,
        position=last.position + 1 if last else 1,
        at=at,
        actor=actor[:200],
        action=action,
        target=target[:200],
        before=before,
        after=after,
        why=why[:500],
        request_id=request_id,
        previous_sha256=bytes(last.sha256) if last else _FIRST,
    )
    entry.sha256 = _digest(entry)
    entry.save(force_insert=True)
    return entry


def verify(*, organization: UUID | None = None, everything: bool = True) -> list[Break]:
    """Return every place where a chain is broken: a gap, a changed entry, a wrong predecessor. Empty: the log holds."""
    entries = Entry.objects.order_by("organization_id", "position")
    if not everything:
        entries = entries.filter(organization_id=organization)
    return list(_breaks(entries.iterator(chunk_size=2000)))


def heads() -> list[tuple[UUID | None, int, str]]:
    """Return (organization, position, hash) of each chain's last entry: to be kept outside, once a day."""
    last = Entry.objects.order_by("organization_id", "-position").distinct("organization_id")
    return [(entry.organization_id, entry.position, bytes(entry.sha256).hex()) for entry in last]


def _breaks(entries: Iterator[Entry]) -> Iterator[Break]:
    chain: UUID | None = _PLATFORM
    position, previous = 0, _FIRST
    for entry in entries:
        if position == 0 or entry.organization_id != chain:
            chain, position, previous = entry.organization_id, 0, _FIRST
        position += 1
        if entry.position != position:
            yield Break(chain, position, f"the next entry is number {entry.position}")
            position = entry.position
        elif bytes(entry.previous_sha256) != previous:
            yield Break(chain, position, "it names another predecessor")
        if _digest(entry) != bytes(entry.sha256):
            yield Break(chain, position, "it was changed")
        previous = bytes(entry.sha256)


def _digest(entry: Entry) -> bytes:
    content = [
        str(entry.pk),
        None if entry.organization_id is None else str(entry.organization_id),
        entry.position,
        entry.at.astimezone(UTC).isoformat(timespec="microseconds"),
        entry.actor,
        entry.action,
        entry.target,
        entry.before,
        entry.after,
        entry.why,
        entry.request_id,
    ]
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(bytes(entry.previous_sha256) + text.encode()).digest()
