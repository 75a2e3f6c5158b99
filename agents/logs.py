"""What containers print: pieces sent by offset, kept in order for a stated time, read as one stream per member.

The agent counts bytes of a container's output from 0 for each epoch. Here the texts of all epochs of a (reference,
member) stand one after the other; `position` counts their bytes in UTF-8, and that is the offset that readers use.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import F, Max

from agents.models import LogChunk, Workload
from agents.protocol import workload_key
from apikit.strict_json import BODY_LIMIT

KEPT_PER_STREAM = 16 * 1024 * 1024  # bytes; the oldest go first, a mebibyte at a time
TRIMMED_EVERY = 1024 * 1024
PIECE_LIMIT = BODY_LIMIT  # bytes: no piece can be larger than the request that brought it
READ_LIMIT = 256 * 1024


@dataclass(frozen=True, kw_only=True)
class Page:
    """A stretch of the stream. `offset` is where `text` really begins: after what was asked for, if that is gone."""

    text: str
    offset: int
    next_offset: int
    end: int  # where the stream ends now


@transaction.atomic
def append(*, workload: Workload, offset: int, text: str, size: int | None, at: datetime) -> int:
    """Keep one piece of output; return the offset that is wanted next. The caller holds the host's lock.

    size: the bytes of output that the text stands for; None: its length in UTF-8. A piece that was kept before changes
    nothing; one that overlaps the end is kept from there on only if it can be cut (no decoding changed its length); one
    that leaves a gap is kept, since what lies between is lost on the host already.
    """
    raw = text.encode(errors="replace")
    span = len(raw) if size is None else size
    wanted = _next_offset(workload)
    if span <= 0 or offset + span <= wanted:
        return wanted
    if offset < wanted:
        if span != len(raw):
            return wanted
        raw, offset, span = raw[wanted - offset :], wanted, offset + span - wanted
    kept = raw.decode(errors="replace").replace("\x00", "\ufffd")
    end = end_of(workload.reference, workload.member)
    length = len(kept.encode())
    LogChunk.objects.create(
        workload=workload,
        reference=workload.reference,
        member=workload.member,
        first=offset,
        last=offset + span,
        position=end,
        size=length,
        text=kept,
        at=at,
    )
    if end // TRIMMED_EVERY != (end + length) // TRIMMED_EVERY:
        stream = LogChunk.objects.filter(reference=workload.reference, member=workload.member)
        stream.filter(position__lt=end + length - KEPT_PER_STREAM - F("size")).delete()
    return offset + span


def next_offsets(workloads: list[Workload]) -> dict[Any, int]:
    """Return for each workload's id the offset that is wanted next; workloads that printed nothing are left out."""
    ends = LogChunk.objects.filter(workload__in=workloads).values("workload").annotate(last=Max("last"))
    return {row["workload"]: row["last"] for row in ends}


def read(*, reference: str, member: int, offset: int, limit: int = READ_LIMIT) -> Page:
    """Return at most `limit` bytes of the stream from `offset` on; an empty text when nothing is there yet."""
    end = end_of(reference, member)
    chunks = LogChunk.objects.filter(reference=reference, member=member, position__gt=offset - PIECE_LIMIT)
    parts: list[bytes] = []
    start = length = 0
    for chunk in chunks.order_by("position").iterator(chunk_size=64):
        if chunk.position + chunk.size <= offset:
            continue
        piece = chunk.text.encode()
        if not parts:
            start = max(offset, chunk.position)
            piece = piece[start - chunk.position :]
        parts.append(piece)
        length += len(piece)
        if length >= limit:
            break
    raw = _whole_characters(b"".join(parts)[:limit])
    if not parts:
        return Page(text="", offset=min(offset, end), next_offset=min(offset, end), end=end)
    return Page(text=raw.decode(errors="replace"), offset=start, next_offset=start + len(raw), end=end)


def offset_at(*, reference: str, member: int, since: datetime) -> int:
    """Return where the first piece begins that was received at `since` or later; the end if there is none."""
    chunks = LogChunk.objects.filter(reference=reference, member=member, at__gte=since)
    first = chunks.order_by("position").values_list("position", flat=True).first()
    return end_of(reference, member) if first is None else first


def end_of(reference: str, member: int) -> int:
    """Return the length of the stream so far, in bytes, also of what is not kept any more."""
    last = LogChunk.objects.filter(reference=reference, member=member).order_by("-position").first()
    return last.position + last.size if last else 0


def forget(*, at: datetime, limit: int = 5000) -> int:
    """Delete pieces that are older than LOG_KEPT_S, at most `limit`; return how many.

    Only of workloads that are gone; a stream of which nothing is left begins at 0 again.
    """
    old = LogChunk.objects.filter(at__lt=at - timedelta(seconds=settings.LOG_KEPT_S), workload__gone_at__isnull=False)
    deleted, _ = LogChunk.objects.filter(pk__in=old.values("pk")[:limit]).delete()
    return deleted


def accept(
    items: list[dict[str, Any]], *, known: Mapping[tuple[str, int, int], Workload], at: datetime
) -> tuple[dict[str, int], list[str]]:
    """Append the items of a sync to the workloads of its host; return acks["logs"], and what was wrong with items."""
    acks: dict[str, int] = {}
    faults: list[str] = []
    for item in items:
        if not isinstance(item, dict):
            faults.append("log that is no object")
            continue
        key = (item.get("lease"), item.get("member"), item.get("epoch"))
        workload = known.get(key) if all(isinstance(part, (str, int)) for part in key) else None  # type: ignore[arg-type]
        offset, text, size = item.get("offset"), item.get("text"), item.get("bytes")
        if workload is None:
            faults.append("log of a workload that is not on this host")
        elif not (_is_count(offset) and isinstance(text, str) and (size is None or _is_count(size))):
            faults.append("log with an offset, a text or a length that is none")
        else:
            wanted = append(workload=workload, offset=offset, text=text, size=size, at=at)  # type: ignore[arg-type]
            acks[workload_key(workload.reference, workload.member, workload.epoch)] = wanted
    return acks, faults


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53


def _next_offset(workload: Workload) -> int:
    last: int | None = LogChunk.objects.filter(workload=workload).aggregate(last=Max("last"))["last"]
    return last or 0


def _whole_characters(raw: bytes) -> bytes:
    """Cut an unfinished UTF-8 character off the end."""
    for back in range(1, min(4, len(raw)) + 1):
        byte = raw[-back]
        if byte & 0xC0 != 0x80:
            needed = 1 if byte < 0x80 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return raw if back >= needed else raw[:-back]
    return raw
