"""The life of a webhook endpoint: registered, changed, tested, rotated, disabled, removed."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction

from apikit import outbound, sealing
from apikit.errors import DomainError, InvalidInput
from apikit.nearest import nearest
from audit import ids, log
from outbox import events, messages, signing
from outbox.models import Delivery, DeliveryState, Endpoint
from tenants import quotas
from tenants.principal import Principal

ENDPOINTS_LIMIT = 16  # per organization
OVERLAP_S = 24 * 3600  # both secrets sign so long after a rotation


class EndpointIsDisabled(DomainError):
    slug = "invalid-transition"
    title = "That cannot be done in this state"
    status = 409


@transaction.atomic
def register(
    *, by: Principal, url: str, subscribed: Sequence[str], at: datetime, request_id: str = ""
) -> tuple[Endpoint, str]:
    """Make an endpoint and return it with its signing secret, shown once. Raises ForbiddenUrl, InvalidInput."""
    outbound.read_url(url)
    _check_events(subscribed)
    organization = quotas.lock(by.organization.pk)
    if Endpoint.objects.filter(organization=organization, deleted_at__isnull=True).count() >= ENDPOINTS_LIMIT:
        fault = {"pointer": "", "code": "too_many", "detail": f"At most {ENDPOINTS_LIMIT} webhooks."}
        raise InvalidInput("There are too many webhooks.", errors=[fault])
    secret = signing.make_secret()
    endpoint = Endpoint(organization=organization, url=url, events=sorted(set(subscribed)), created_at=at)
    endpoint.secret = _sealed(endpoint, secret)
    endpoint.save(force_insert=True)
    _record(
        by, "webhook.created", endpoint, after={"url": url, "events": endpoint.events}, at=at, request_id=request_id
    )
    return endpoint, secret


@transaction.atomic
def change(
    *,
    by: Principal,
    endpoint: Endpoint,
    at: datetime,
    url: str | None = None,
    subscribed: Sequence[str] | None = None,
    enabled: bool | None = None,
    request_id: str = "",
) -> Endpoint:
    """Change what is given; the caller holds the row's lock. Raises ForbiddenUrl, InvalidInput."""
    before = {"url": endpoint.url, "events": endpoint.events, "enabled": endpoint.disabled_at is None}
    if url is not None:
        outbound.read_url(url)
        endpoint.url = url
    if subscribed is not None:
        _check_events(subscribed)
        endpoint.events = sorted(set(subscribed))
    if enabled is True:
        endpoint.disabled_at, endpoint.disabled_reason = None, ""
    elif enabled is False and endpoint.disabled_at is None:
        endpoint.disabled_at, endpoint.disabled_reason = at, "by its owner"
    endpoint.version += 1
    endpoint.save(update_fields=["url", "events", "disabled_at", "disabled_reason", "version"])
    if enabled is False:
        _give_up(endpoint, "the webhook was disabled")
    after = {"url": endpoint.url, "events": endpoint.events, "enabled": endpoint.disabled_at is None}
    _record(by, "webhook.changed", endpoint, before=before, after=after, at=at, request_id=request_id)
    return endpoint


@transaction.atomic
def rotate(
    *, by: Principal, endpoint: Endpoint, overlap_s: int, at: datetime, request_id: str = ""
) -> tuple[Endpoint, str]:
    """Give the endpoint a new secret; the old one signs beside it for `overlap_s`. The caller holds the row's lock."""
    secret = signing.make_secret()
    endpoint.old_secret, endpoint.old_secret_until = endpoint.secret, at + timedelta(seconds=overlap_s)
    endpoint.secret = _sealed(endpoint, secret)
    endpoint.version += 1
    endpoint.save(update_fields=["secret", "old_secret", "old_secret_until", "version"])
    _record(by, "webhook.rotated", endpoint, after={"overlap_s": overlap_s}, at=at, request_id=request_id)
    return endpoint, secret


@transaction.atomic
def remove(*, by: Principal, endpoint: Endpoint, at: datetime, request_id: str = "") -> None:
    """Remove the endpoint and give up what is on its way to it. Doing it again changes nothing."""
    if endpoint.deleted_at is not None:
        return
    endpoint.deleted_at = at
    endpoint.version += 1
    endpoint.save(update_fields=["deleted_at", "version"])
    _give_up(endpoint, "the webhook was removed")
    _record(by, "webhook.deleted", endpoint, before={"url": endpoint.url}, at=at, request_id=request_id)


@transaction.atomic
def send_test(*, endpoint: Endpoint, at: datetime) -> Delivery:
    """Put a message of topic `webhook.test` on its way to this endpoint. Raises EndpointIsDisabled."""
    _check_enabled(endpoint)
    body = messages.body(topic=events.TEST, payload={"id": endpoint.public_id, "version": endpoint.version}, at=at)
    return Delivery.objects.create(
        endpoint=endpoint, message_id=ids.new(), topic=events.TEST, body=body, due_at=at, created_at=at
    )


@transaction.atomic
def replay(*, delivery: Delivery, at: datetime) -> Delivery:
    """Deliver once more, with the same id, from the first try. The caller holds the row's lock.

    Raises EndpointIsDisabled. A delivery that is on its way stays as it is.
    """
    _check_enabled(delivery.endpoint)
    if delivery.state != DeliveryState.PENDING:
        delivery.state, delivery.attempts, delivery.due_at = DeliveryState.PENDING, 0, at
        delivery.delivered_at, delivery.claim_token, delivery.claim_until = None, None, None
        delivery.version += 1
        delivery.save()
    return delivery


@transaction.atomic
def disable(*, endpoint: Endpoint, reason: str, at: datetime) -> None:
    """Stop delivering to an endpoint that says it is gone, and tell the others of its organization."""
    endpoint = Endpoint.objects.select_for_update(no_key=True).get(pk=endpoint.pk)
    if endpoint.disabled_at is not None:
        return
    endpoint.disabled_at, endpoint.disabled_reason = at, reason[:100]
    endpoint.version += 1
    endpoint.save(update_fields=["disabled_at", "disabled_reason", "version"])
    _give_up(endpoint, reason)
    messages.post(
        topic="webhook.disabled",
        key=f"{endpoint.public_id}:{endpoint.version}",
        payload={"id": endpoint.public_id, "version": endpoint.version},
        organization_id=endpoint.organization_id,
        at=at,
    )


def signing_secrets(endpoint: Endpoint, *, at: datetime) -> list[str]:
    """Return what signs now: the present secret, and while rotating the old one."""
    sealed = [endpoint.secret]
    if endpoint.old_secret is not None and endpoint.old_secret_until and endpoint.old_secret_until > at:
        sealed.append(endpoint.old_secret)
    return [sealing.unseal(bytes(value), context=_context(endpoint)).decode() for value in sealed]


def _give_up(endpoint: Endpoint, why: str) -> None:
    Delivery.objects.filter(endpoint=endpoint, state=DeliveryState.PENDING).update(
        state=DeliveryState.FAILED, last_error=why[:300], claim_token=None, claim_until=None
    )


def _check_enabled(endpoint: Endpoint) -> None:
    if endpoint.disabled_at is not None:
        raise EndpointIsDisabled("The webhook is disabled. Enable it first.", state="disabled", actions=[])


def _check_events(subscribed: Sequence[str]) -> None:
    errors: list[dict[str, Any]] = [
        {
            "pointer": f"/events/{index}",
            "code": "unknown_event",
            "detail": "There is no such event.",
            "nearest": nearest(event, events.EVENTS),
        }
        for index, event in enumerate(subscribed)
        if event not in events.EVENTS
    ]
    if errors:
        raise InvalidInput("Some events are not known.", errors=errors)


def _sealed(endpoint: Endpoint, secret: str) -> bytes:
    return sealing.seal(secret.encode(), context=_context(endpoint))


def _context(endpoint: Endpoint) -> str:
    return f"{endpoint.organization_id}||webhook:{endpoint.pk}"


def _record(
    by: Principal,
    action: str,
    endpoint: Endpoint,
    *,
    at: datetime,
    request_id: str,
    before: Any = None,
    after: Any = None,
) -> None:
    log.record(
        actor=by.actor,
        organization=endpoint.organization_id,
        action=action,
        target=endpoint.public_id,
        before=before,
        after=after,
        request_id=request_id,
        at=at,
    )
