"""Why pending leases wait, for people: written for all of them at once, and only where it is news. Not a move."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import connection

from leasing.models import Lease
from leasing.states import State

LITTLE = timedelta(seconds=10)


@dataclass(frozen=True)
class Note:
    """lease: as it was read. place: in the queue, from 1; None: as it was."""

    lease: Lease
    why: dict[str, Any]
    place: int | None
    eta: dict[str, Any] | None


_WRITE = """
UPDATE leasing_lease AS lease
SET why_waiting = note.why::jsonb, queue_place = coalesce(note.place, queue_place), eta = note.eta::jsonb
FROM unnest(%s::uuid[], %s::text[], %s::int[], %s::text[]) AS note(id, why, place, eta)
WHERE lease.id = note.id AND lease.state = 'pending'
"""


def write(notes: Iterable[Note], *, at: datetime) -> int:
    """Note on each lease that still waits why it does, its place and its ETA; return how many were news."""
    news = [
        note for note in notes
        if (note.lease.why_waiting, note.lease.queue_place, note.lease.eta) != (note.why, note.place, note.eta)
    ]  # fmt: skip
    if news:
        with connection.cursor() as sql:
            sql.execute(
                _WRITE,
                [
                    [note.lease.pk for note in news], [json.dumps(note.why) for note in news],
                    [note.place for note in news],
                    [None if note.eta is None else json.dumps(note.eta) for note in news],
                ],
            )  # fmt: skip
    return len(news)


def care(*, until: datetime, at: datetime) -> None:
    """Say of the leases that wait that they are looked at: the next look is due by `until` at the latest."""
    Lease.objects.filter(state=State.PENDING, check_at__lt=at + LITTLE).update(check_at=until)
