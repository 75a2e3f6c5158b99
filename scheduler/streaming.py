"""Streams of a lease's events and output (server-sent events), for thousands of followers on one process.

A follower is a coroutine that holds neither thread nor connection: one task per event loop looks, a few times a second
and with one query per kind, how far everything that is followed has come, and wakes whom it concerns. What is compared
is the position itself, so nothing needs to be delivered to this process, and nothing can be missed between two looks.

Each message's id is the position after it. Whoever comes back with it (`Last-Event-ID`) goes on from there: no gap, no
double.
"""

import json
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple
from uuid import UUID

from django.db.models import F, Max

from agents.models import LogChunk
from apikit.watching import Watches, in_pool
from leasing.models import Lease
from leasing.states import State
from scheduler import following, rendering

LOOK_EVERY_S = 0.25
COMMENT_EVERY_S = 15.0  # so that proxies see that the stream lives
LONGEST_S = 300.0  # then the follower comes back, and is asked again who he is

type Mark = tuple[int, bool]  # how far it has come, and whether the lease is over


class Key(NamedTuple):
    """What is followed: a lease's events or, with `member`, what this member prints."""

    lease: UUID
    reference: str
    member: int | None = None


class Page(NamedTuple):
    """Messages, the position after them, and whether nothing will follow."""

    messages: list[str]
    position: int
    is_last: bool


def _marks(waits: list[tuple[Key, Mark]]) -> dict[Key, Mark]:
    """Return how far each of what is followed has come."""
    keys = list(dict.fromkeys(key for key, _ in waits))
    of_lease = {key.lease: key for key in keys}
    rows = Lease.objects.filter(pk__in=of_lease).annotate(last=Max("events__seq"))
    found = {pk: (last or 0, state == State.ENDED) for pk, state, last in rows.values_list("pk", "state", "last")}
    marks: dict[Key, Mark] = {key: found[key.lease] for key in keys if key.lease in found}
    outputs = [key for key in keys if key.member is not None]
    if outputs:
        chunks = LogChunk.objects.filter(reference__in={key.reference for key in outputs})
        ends = chunks.values_list("reference", "member").annotate(end=Max(F("position") + F("size")))
        end_of = {(reference, member): end for reference, member, end in ends}
        marks |= {key: (end_of.get((key.reference, key.member), 0), marks[key][1]) for key in outputs if key in marks}
    return marks


# Where the look fails followers stay and hear comments; the next one finds the database again.
watches: Watches[Key, Mark] = Watches(_marks, every_s=LOOK_EVERY_S, lets_go=False)


def events(lease: Lease, *, after: int) -> AsyncIterator[str]:
    """Yield every event of the lease after number `after`; the stream ends after the one that ended the lease."""

    def read(after: int) -> Page:
        over = following.is_over(lease)  # before the read: what came in between is then in it
        rows = following.events_after(lease, after=after, wait_s=0)
        messages = [_message(row.seq, "lease", rendering.event(row)) for row in rows]
        return Page(messages, rows[-1].seq if rows else after, over and len(rows) < following.EVENTS_AT_ONCE)

    return _follow(Key(lease.pk, lease.public_id), after, read)


def output(lease: Lease, *, member: int, offset: int) -> AsyncIterator[str]:
    """Yield what a member prints from a byte offset on; the stream ends when nothing will follow."""

    def read(offset: int) -> Page:
        page = following.logs_from(lease, member=member, offset=offset, wait_s=0)
        messages = [_message(page["next_offset"], "output", item) for item in page["items"]]
        return Page(messages, page["next_offset"], page["end"])

    return _follow(Key(lease.pk, lease.public_id, member), offset, read)


async def _follow(key: Key, position: int, read: Callable[[int], Page]) -> AsyncIterator[str]:
    watch = watches.here()
    come_back_at = time.monotonic() + LONGEST_S
    while True:
        page = await in_pool(read, position)
        for message in page.messages:
            yield message
        position = page.position
        while not page.is_last and not await watch.moved(key, seen=(position, False), within_s=COMMENT_EVERY_S):
            yield ": still here\n\n"
            if time.monotonic() > come_back_at:
                return
        if page.is_last:
            return


def _message(position: int, kind: str, data: Any) -> str:
    return f"id: {position}\nevent: {kind}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n"
