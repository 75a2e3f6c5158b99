"""From delivery to receiver: claimed, sent, and the outcome applied by whoever still holds the claim.

Each try is one HTTPS POST of at most 15 s. A receiver is called by one thread at a time, and a batch does not wait for
it beyond `wait_s`: a receiver that hangs delays nobody else's deliveries.
"""

import logging
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from django.db import close_old_connections, connection, connections, transaction

from apikit import clock, outbound
from audit import ids
from outbox import endpoints, signing
from outbox.models import Delivery, DeliveryState

TIMEOUT_S = 15
CLAIM_S = 40  # beyond any try: a claim that expires belongs to a process that died
BATCH = 32  # receivers called at one time by one process
# Seconds until the next try, after the first, second, ... one that failed; after the last, the delivery has failed.
RETRY_AFTER_S = (5, 30, 120, 600, 3600, 3 * 3600, 8 * 3600, 24 * 3600)

_CLAIM = """
WITH due AS (
    SELECT DISTINCT ON (endpoint_id) id FROM outbox_delivery AS d
    WHERE state = 'pending' AND due_at <= %(at)s AND (claim_until IS NULL OR claim_until <= %(at)s)
      AND NOT EXISTS (SELECT 1 FROM outbox_delivery AS busy WHERE busy.endpoint_id = d.endpoint_id
                      AND busy.state = 'pending' AND busy.claim_until > %(at)s)
    ORDER BY endpoint_id, due_at LIMIT %(limit)s
), mine AS (
    SELECT id FROM outbox_delivery WHERE id IN (SELECT id FROM due) AND (claim_until IS NULL OR claim_until <= %(at)s)
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE outbox_delivery SET claim_token = %(token)s, claim_until = %(until)s, attempts = attempts + 1
FROM mine WHERE outbox_delivery.id = mine.id RETURNING outbox_delivery.id
"""

log = logging.getLogger(__name__)
_threads = ThreadPoolExecutor(max_workers=BATCH, thread_name_prefix="deliver")


@dataclass(frozen=True)
class Outcome:
    """What came of a try: an HTTP status, or the reason why there is none."""

    status: int | None
    error: str

    @property
    def delivered(self) -> bool:
        return self.status is not None and 200 <= self.status < 300


def deliver_due(*, at: datetime, limit: int = BATCH, wait_s: float | None = 1.0) -> int:
    """Try deliveries that are due, at most one per endpoint; return how many were begun.

    wait_s: how long to wait for them; the slower ones finish in their threads. None: until all are done.
    """
    token = ids.new()
    claimed = claim(token=token, at=at, limit=limit)
    running: list[Future[None]] = [_threads.submit(_deliver, pk, token) for pk in claimed]
    wait(running, timeout=wait_s)
    return len(claimed)


@transaction.atomic
def claim(*, token: UUID, at: datetime, limit: int) -> list[UUID]:
    """Take the oldest due delivery of each of at most `limit` endpoints for CLAIM_S seconds."""
    until = at + timedelta(seconds=CLAIM_S)
    with connection.cursor() as cursor:
        cursor.execute(_CLAIM, {"at": at, "limit": limit, "token": token, "until": until})
        return [pk for (pk,) in cursor.fetchall()]


@transaction.atomic
def apply(*, delivery_id: UUID, token: UUID, outcome: Outcome, at: datetime) -> bool:
    """Write the outcome of a try; False: the claim is somebody else's by now, and nothing was written."""
    held = Delivery.objects.select_for_update(no_key=True, of=("self",)).select_related("endpoint")
    delivery = held.filter(pk=delivery_id, claim_token=token, state=DeliveryState.PENDING).first()
    if delivery is None:
        return False
    delivery.claim_token, delivery.claim_until = None, None
    delivery.last_status, delivery.last_error = outcome.status, outcome.error[:300]
    delivery.version += 1
    tries_left = delivery.attempts <= len(RETRY_AFTER_S)
    if outcome.delivered:
        delivery.state, delivery.delivered_at = DeliveryState.DELIVERED, at
    elif tries_left and outcome.status != 410:
        delivery.due_at = at + timedelta(seconds=RETRY_AFTER_S[delivery.attempts - 1])
    else:
        delivery.state = DeliveryState.FAILED
        log.warning("delivery %s to %s has failed for good", delivery.public_id, delivery.endpoint.public_id)
    delivery.save()
    if outcome.status == 410:
        endpoints.disable(endpoint=delivery.endpoint, reason="the receiver answered 410 Gone", at=at)
    return True


def attempt(delivery: Delivery, *, at: datetime) -> Outcome:
    """Call the receiver once. No database work; whatever goes wrong outside is an outcome."""
    message_id = ids.encode("msg", delivery.message_id)
    headers = {"Content-Type": "application/json", "User-Agent": "gpuyard-webhooks/1"} | signing.headers(
        message_id=message_id,
        timestamp=int(at.timestamp()),
        body=delivery.body,
        secrets_=endpoints.signing_secrets(delivery.endpoint, at=at),
    )
    try:
        status = outbound.post(delivery.endpoint.url, body=delivery.body.encode(), headers=headers, timeout_s=TIMEOUT_S)
    except outbound.ForbiddenUrl as exc:
        return Outcome(None, exc.detail)
    except outbound.CallFailed as exc:
        return Outcome(None, str(exc))
    return Outcome(status, "" if 200 <= status < 300 else f"the receiver answered {status}")


def _deliver(delivery_id: UUID, token: UUID) -> None:
    """One try, in a thread of its own: read, call, apply."""
    close_old_connections()
    try:
        delivery = Delivery.objects.select_related("endpoint").filter(pk=delivery_id, claim_token=token).first()
        if delivery is None:
            return
        outcome = attempt(delivery, at=clock.now())
        apply(delivery_id=delivery_id, token=token, outcome=outcome, at=clock.now())
    except Exception:
        # The claim runs out and another try follows; nothing that the receiver did is lost.
        log.exception("delivery %s was not brought to an end", delivery_id)
    finally:
        connections.close_all()
