"""Waiting for something to happen to a lease, within one request: long polls of its state, events and logs.

A poll holds a thread of the web server, so only so many wait at a time; one too many is answered at once, which a
client must be ready for anyhow. Streams for thousands are another process (ASGI).
"""

import threading
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

from agents import logs
from leasing.models import Lease, LeaseEvent
from leasing.states import State

MAX_WAITING = 12
LOOK_EVERY_S = 0.2
EVENTS_AT_ONCE = 500
_waiting = threading.BoundedSemaphore(MAX_WAITING)


def _until(ready: Callable[[], bool], *, wait_s: int) -> None:
    """Return when `ready`, after `wait_s`, or at once if too many wait already."""
    if wait_s == 0 or ready() or not _waiting.acquire(blocking=False):
        return
    try:
        deadline = time.monotonic() + wait_s
        while time.monotonic() < deadline and not ready():
            time.sleep(LOOK_EVERY_S)
    finally:
        _waiting.release()


def wait_for_change(lease: Lease, *, wait_s: int) -> Lease:
    """Return the lease as soon as its version is another one, at the latest after `wait_s`."""

    def changed() -> bool:
        return Lease.objects.values_list("version", flat=True).get(pk=lease.pk) != lease.version

    _until(changed, wait_s=wait_s)
    return Lease.objects.select_related("organization").get(pk=lease.pk)


def events_after(lease: Lease, *, after: int, wait_s: int) -> list[LeaseEvent]:
    rows = LeaseEvent.objects.filter(lease=lease, seq__gt=after).order_by("seq")
    _until(lambda: rows.exists() or is_over(lease), wait_s=wait_s)
    return list(rows.all()[:EVENTS_AT_ONCE])


def logs_from(lease: Lease, *, member: int, offset: int, wait_s: int) -> dict[str, Any]:
    """Return what a member printed from a byte offset on, over all its epochs; `end`: nothing will follow."""

    def read() -> logs.Page:
        return logs.read(reference=lease.public_id, member=member, offset=offset)

    _until(lambda: bool(read().text) or is_over(lease), wait_s=wait_s)
    over = is_over(lease)  # before the read: what came in between is then in it
    page = read()
    return {
        "items": [{"offset": page.offset, "text": page.text}] if page.text else [],
        "next_offset": page.next_offset,
        "end": over and page.next_offset >= page.end,
    }


def output_since(lease: Lease, *, member: int, since: datetime) -> int:
    """Return the byte offset at which that begins which was received at `since` or later."""
    return logs.offset_at(reference=lease.public_id, member=member, since=since)


def is_over(lease: Lease) -> bool:
    return Lease.objects.filter(pk=lease.pk, state=State.ENDED).exists()
