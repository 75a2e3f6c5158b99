"""Stripe's webhooks: the signature, and what each event means for a payment.

The scheme is the one of Stripe's documentation ("Verify webhook signatures manually"): the header holds `t=` and one or
more `v1=`, an HMAC-SHA256 of `t.body` under the endpoint's secret.
"""

import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import transaction

from apikit.errors import DomainError
from audit import ids
from billing import disputes, payments
from billing.models import InboxEvent, Payment, Refund
from billing.models.payments import IntentState
from billing.providers import Answer

TOLERANCE_S = 300
OUTCOMES = {
    "payment_intent.succeeded": IntentState.SETTLED,
    "payment_intent.payment_failed": IntentState.REFUSED,
    "payment_intent.canceled": IntentState.REFUSED,
}
REFUND_EVENTS = frozenset({"refund.failed", "refund.updated", "charge.refund.updated"})


class BadSignature(DomainError):
    slug = "bad-signature"
    title = "The notification is not signed by the provider"
    status = 401


class EventReused(DomainError):
    slug = "event-reused"
    title = "This event was received with another body"


def verify(*, body: bytes, header: str, secrets: Sequence[str], at: datetime) -> None:
    """Return if one of the secrets signed the body within the last TOLERANCE_S; raise BadSignature otherwise."""
    fields = [part.strip().partition("=") for part in header.split(",")]
    stamps = [value for name, _, value in fields if name == "t"]
    signatures = [value for name, _, value in fields if name == "v1"]
    if len(stamps) != 1 or not (stamps[0].isascii() and stamps[0].isdigit() and len(stamps[0]) <= 12):
        raise BadSignature("The signature has no time.")
    if abs(int(at.timestamp()) - int(stamps[0])) > TOLERANCE_S:
        raise BadSignature("The signature is too old.")
    signed = f"{stamps[0]}.".encode() + body
    right = [hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest() for secret in secrets if secret]
    if not any(hmac.compare_digest(ours, theirs) for ours in right for theirs in signatures if theirs.isascii()):
        raise BadSignature("No signature fits.")


def receive(*, body: bytes, header: str, secrets: Sequence[str], at: datetime) -> bool:
    """Verify a notification and act on it once; False if it was received before or says nothing to us.

    Raises BadSignature, EventReused, ValueError for a body that is no event.
    """
    verify(body=body, header=header, secrets=secrets, at=at)
    event = json.loads(body)
    if not isinstance(event, dict) or not isinstance(event.get("id"), str) or not isinstance(event.get("type"), str):
        raise ValueError("the body is no event")
    return _act_once(event, digest=hashlib.sha256(body).hexdigest(), at=at)


@transaction.atomic
def _act_once(event: Mapping[str, Any], *, digest: str, at: datetime) -> bool:
    stored, fresh = InboxEvent.objects.get_or_create(
        provider="stripe",
        event=event["id"],
        defaults={"kind": event["type"][:100], "body_sha256": digest, "received_at": at},
    )
    if not fresh:
        if stored.body_sha256 != digest:
            raise EventReused(f"{event['id']} was received with another body.", event=event["id"])
        return False
    said = event.get("data", {}).get("object", {})
    if event["type"].startswith("charge.dispute."):
        return _dispute(event["type"], said, at=at)
    if event["type"] in REFUND_EVENTS:
        return _refund(said, at=at)
    return _paid(event["type"], said, at=at)


def _paid(kind: str, intent: Mapping[str, Any], *, at: datetime) -> bool:
    state = OUTCOMES.get(kind)
    payment = _payment_of(intent) if state is not None else None
    if payment is None or state is None:
        return False
    if state == IntentState.SETTLED and _received(intent) != (payment.amount_minor, payment.wallet.currency):
        raise ValueError("the event names another amount than the payment")
    payments.record(payment_id=payment.pk, answer=Answer(state, str(intent.get("id", "")), kind), at=at)
    return True


def _dispute(kind: str, said: Mapping[str, Any], *, at: datetime) -> bool:
    """Act on a dispute whose money has moved; an inquiry (`warning_...`) has moved none."""
    ref, status = str(said.get("id", "")), str(said.get("status", ""))
    payment = _of_intent(said)
    if payment is None or not ref or status.startswith("warning_"):
        return False
    amount = said.get("amount")
    if type(amount) is not int or str(said.get("currency", "")).upper() != payment.wallet.currency:
        raise ValueError("the dispute is of another currency, or of no amount")
    # Whatever comes first says that the money is gone, also the news that it is back.
    reason = str(said.get("reason", ""))
    dispute = disputes.take(payment=payment, ref=ref, amount_minor=amount, reason=reason, at=at)
    if kind == "charge.dispute.funds_reinstated" or status == "won":
        disputes.close(dispute=dispute, won=True, at=at)
    elif status == "lost":
        disputes.close(dispute=dispute, won=False, at=at)
    return True


def _refund(said: Mapping[str, Any], *, at: datetime) -> bool:
    """Act on a refund that did not arrive. One that arrived is settled by the loop, which looks at the record."""
    status = str(said.get("status", ""))
    payment = _of_intent(said)
    if payment is None or status not in ("failed", "canceled"):
        return False
    key = str(said.get("metadata", {}).get("key", ""))
    refund = Refund.objects.filter(payment=payment, key=key).first()
    if refund is None or refund.amount_minor != said.get("amount"):
        return False
    detail = str(said.get("failure_reason") or status)[:300]
    answer = Answer(IntentState.REFUSED, str(said.get("id", "")), detail)
    return payments.refund_failed(refund_id=refund.pk, answer=answer, at=at)


def _of_intent(said: Mapping[str, Any]) -> Payment | None:
    ref = str(said.get("payment_intent") or "")
    found = Payment.objects.filter(provider="stripe", provider_ref=ref).exclude(provider_ref="")
    return found.select_related("wallet").first()


def _payment_of(intent: Mapping[str, Any]) -> Payment | None:
    payment_id: UUID | None = ids.decode("payment", str(intent.get("metadata", {}).get("payment", "")))
    if payment_id is None:
        return None
    return Payment.objects.filter(pk=payment_id, provider="stripe").select_related("wallet").first()


def _received(intent: Mapping[str, Any]) -> tuple[object, str]:
    return intent.get("amount_received"), str(intent.get("currency", "")).upper()
