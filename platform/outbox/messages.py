"""Facts to be told outside are written in the transaction that makes them true; the relay delivers them afterwards."""

from datetime import datetime
from typing import Any
from uuid import UUID

from outbox.models import Message


def post(*, topic: str, key: str, payload: dict[str, Any], organization_id: UUID | None, at: datetime) -> None:
    """Write one message in the caller's transaction; a second post with this key changes nothing.

    topic: `lease.active`; payload: what receivers get as `data`.
    """
    Message.objects.bulk_create(
        [Message(topic=topic, key=key, payload=payload, organization_id=organization_id, available_at=at)],
        ignore_conflicts=True,
    )
