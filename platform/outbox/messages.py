"""Facts to be told outside are written in the transaction that makes them true; the relay delivers them afterwards."""

import json
from datetime import datetime
from typing import Any
from uuid import UUID

from apikit.instants import instant
from outbox.models import Message

PAYLOAD_LIMIT = 20_000  # bytes of JSON


def post(*, topic: str, key: str, payload: dict[str, Any], organization_id: UUID | None, at: datetime) -> None:
    """Write one message in the caller's transaction; a second post with this key changes nothing.

    topic: `lease.active`; payload: what receivers get as `data`. Raises ValueError if it is over 20 kB: say less, and
    let the receiver ask.
    """
    if len(json.dumps(payload)) > PAYLOAD_LIMIT:
        raise ValueError(f"the payload of {topic} is over {PAYLOAD_LIMIT} bytes")
    Message.objects.bulk_create(
        [Message(topic=topic, key=key, payload=payload, organization_id=organization_id, available_at=at)],
        ignore_conflicts=True,
    )


def body(*, topic: str, payload: dict[str, Any], at: datetime) -> str:
    """Return the text that receivers get, and that is signed: it must not change between tries."""
    return json.dumps({"type": topic, "timestamp": instant(at), "data": payload}, separators=(",", ":"))
