"""Facts to be told outside are written in the transaction that makes them true; the relay delivers them afterwards."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from apikit import statements
from apikit.instants import instant
from apikit.statements import Statement
from outbox.models import Message

PAYLOAD_LIMIT = 20_000  # bytes of JSON


@dataclass(frozen=True)
class Post:
    """One fact to be told: see `post`."""

    topic: str
    key: str
    payload: dict[str, Any]
    organization_id: UUID | None


def post(*, topic: str, key: str, payload: dict[str, Any], organization_id: UUID | None, at: datetime) -> None:
    """Write one message in the caller's transaction; a second post with this key changes nothing.

    topic: `lease.active`; payload: what receivers get as `data`. Raises ValueError if it is over 20 kB: say less, and
    let the receiver ask.
    """
    statements.run(statement(Post(topic, key, payload, organization_id), at=at))


def post_all(posts: Sequence[Post], *, at: datetime) -> None:
    """Write many messages at once, each as `post` does."""
    names, when = ("topic", "key", "payload", "organization_id", "available_at"), at.isoformat()
    lines = [(it.topic, it.key, _short(it), it.organization_id, when) for it in posts]
    statements.insert_lines(Message, names, lines, on_conflict="ON CONFLICT DO NOTHING")


def statement(it: Post, *, at: datetime) -> Statement:
    """Return what `post` writes with, for who writes more in the same round trip."""
    return statements.insert(_message(it, at=at), on_conflict="ON CONFLICT DO NOTHING")


def _message(it: Post, *, at: datetime) -> Message:
    return Message(
        topic=it.topic, key=it.key, payload=_short(it), organization_id=it.organization_id, available_at=at
    )  # fmt: skip


def _short(it: Post) -> dict[str, Any]:
    if len(json.dumps(it.payload)) > PAYLOAD_LIMIT:
        raise ValueError(f"the payload of {it.topic} is over {PAYLOAD_LIMIT} bytes")
    return it.payload


def body(*, topic: str, payload: dict[str, Any], at: datetime) -> str:
    """Return the text that receivers get, and that is signed: it must not change between tries."""
    return json.dumps({"type": topic, "timestamp": instant(at), "data": payload}, separators=(",", ":"))
