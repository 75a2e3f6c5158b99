"""The doors of webhooks and their deliveries."""

from typing import Any

from django.db.models import QuerySet
from rest_framework.request import Request
from rest_framework.response import Response

from apikit import outbound, pagination, strict_query
from apikit.instants import instant, instant_or_none
from apikit.strict_fields import Boolean, Integer, ListOf, StrictSerializer, Text
from audit import ids
from outbox import endpoints, events
from outbox.models import Delivery, DeliveryState, Endpoint
from tenants.access import OrganizationView


class EventList(ListOf):
    def __init__(self, **options: Any) -> None:
        limits = {"child": Text(max_length=64), "min_length": 1, "max_length": len(events.EVENTS)}
        super().__init__(**{**limits, **options})


class WebhookBody(StrictSerializer):
    url = Text(max_length=500)
    events = EventList()


class WebhookChange(StrictSerializer):
    url = Text(max_length=500, required=False)
    events = EventList(required=False)
    enabled = Boolean(required=False)


class WebhookRotation(StrictSerializer):
    overlap_s = Integer(min_value=0, max_value=30 * 24 * 3600, default=endpoints.OVERLAP_S)


class NoBody(StrictSerializer):
    pass


def render_endpoint(endpoint: Endpoint) -> dict[str, Any]:
    return {
        "id": endpoint.public_id,
        "version": endpoint.version,
        "actions": ["rotate"] if endpoint.disabled_at else ["rotate", "test"],
        "url": endpoint.url,
        "events": endpoint.events,
        "enabled": endpoint.disabled_at is None,
        "disabled_at": instant_or_none(endpoint.disabled_at),
        "disabled_reason": endpoint.disabled_reason or None,
        "created_at": instant(endpoint.created_at),
    }


def render_delivery(delivery: Delivery) -> dict[str, Any]:
    return {
        "id": delivery.public_id,
        "version": delivery.version,
        "actions": [] if delivery.state == DeliveryState.PENDING else ["replay"],
        "message_id": ids.encode("msg", delivery.message_id),
        "type": delivery.topic,
        "state": delivery.state,
        "attempts": delivery.attempts,
        "next_try_at": instant(delivery.due_at) if delivery.state == DeliveryState.PENDING else None,
        "last_status": delivery.last_status,
        "last_error": delivery.last_error or None,
        "delivered_at": instant_or_none(delivery.delivered_at),
        "created_at": instant(delivery.created_at),
    }


class _WebhookView(OrganizationView):
    def endpoints(self) -> QuerySet[Endpoint]:
        return self.mine(Endpoint).filter(deleted_at__isnull=True)

    def check_outside(self) -> None:
        """Names are looked up here, before any transaction: a name server may be slow."""
        url = self.request.data.get("url") if isinstance(self.request.data, dict) else None
        if isinstance(url, str):
            outbound.check(url)

    def locked(self, id: str) -> Endpoint:
        endpoint = self.found(self.endpoints().select_for_update(no_key=True), "webhook", id)
        self.check_version(endpoint.version)
        return endpoint


class WebhookCollection(_WebhookView):
    policy = {"get": "webhooks:read", "post": "webhooks:write"}
    query = {"get": pagination.PARAMETERS}
    shows_secret = True

    def get(self, request: Request) -> Response:
        return self.page(self.endpoints(), render_endpoint)

    def post(self, request: Request) -> Response:
        asked = self.read(WebhookBody)
        endpoint, secret = endpoints.register(
            by=self.principal, url=asked["url"], subscribed=asked["events"], at=self.at, request_id=self.request_id
        )
        body = {**render_endpoint(endpoint), "secret": secret}
        return self.created(body, version=endpoint.version, location=f"/webhooks/{endpoint.public_id}")


class WebhookItem(_WebhookView):
    policy = {"get": "webhooks:read", "patch": "webhooks:write", "delete": "webhooks:write"}

    def get(self, request: Request, id: str) -> Response:
        endpoint = self.found(self.endpoints(), "webhook", id)
        return self.one(render_endpoint(endpoint), version=endpoint.version)

    def patch(self, request: Request, id: str) -> Response:
        asked = self.read(WebhookChange)
        endpoint = self.found(self.endpoints().select_for_update(no_key=True), "webhook", id)
        self.check_version(endpoint.version, required=True)
        endpoint = endpoints.change(
            by=self.principal,
            endpoint=endpoint,
            url=asked.get("url"),
            subscribed=asked.get("events"),
            enabled=asked.get("enabled"),
            at=self.at,
            request_id=self.request_id,
        )
        return self.one(render_endpoint(endpoint), version=endpoint.version)

    def delete(self, request: Request, id: str) -> Response:
        endpoints.remove(by=self.principal, endpoint=self.locked(id), at=self.at, request_id=self.request_id)
        return Response(status=204)


class WebhookTest(_WebhookView):
    policy = {"post": "webhooks:write"}

    def post(self, request: Request, id: str) -> Response:
        """Send a `webhook.test` to it; the answer is the delivery, to be followed."""
        self.read(NoBody, optional=True)
        delivery = endpoints.send_test(endpoint=self.locked(id), at=self.at)
        place = f"/webhooks/{id}/deliveries/{delivery.public_id}"
        return self.created(render_delivery(delivery), version=delivery.version, location=place)


class WebhookRotate(_WebhookView):
    policy = {"post": "webhooks:write"}
    shows_secret = True

    def post(self, request: Request, id: str) -> Response:
        """Make a new signing secret, shown once; both sign for `overlap_s`."""
        asked = self.read(WebhookRotation, optional=True)
        endpoint, secret = endpoints.rotate(
            by=self.principal,
            endpoint=self.locked(id),
            overlap_s=asked["overlap_s"],
            at=self.at,
            request_id=self.request_id,
        )
        return self.one({**render_endpoint(endpoint), "secret": secret}, version=endpoint.version)


class _DeliveryView(_WebhookView):
    def deliveries(self, id: str) -> QuerySet[Delivery]:
        endpoint = self.found(self.endpoints(), "webhook", id)
        return self.mine(Delivery, owner="endpoint__organization").filter(endpoint=endpoint)


class DeliveryCollection(_DeliveryView):
    policy = {"get": "webhooks:read"}
    query = {"get": {**pagination.PARAMETERS, "state": strict_query.choice(*DeliveryState.values)}}

    def get(self, request: Request, id: str) -> Response:
        rows = self.deliveries(id)
        if "state" in self.parameters:
            rows = rows.filter(state=self.parameters["state"])
        return self.page(rows, render_delivery)


class DeliveryItem(_DeliveryView):
    policy = {"get": "webhooks:read"}

    def get(self, request: Request, id: str, delivery_id: str) -> Response:
        delivery = self.found(self.deliveries(id), "delivery", delivery_id)
        return self.one(render_delivery(delivery), version=delivery.version)


class DeliveryReplay(_DeliveryView):
    policy = {"post": "webhooks:write"}

    def post(self, request: Request, id: str, delivery_id: str) -> Response:
        """Send it once more, under the same message id."""
        self.read(NoBody, optional=True)
        rows = self.deliveries(id).select_related("endpoint").select_for_update(no_key=True, of=("self",))
        delivery = self.found(rows, "delivery", delivery_id)
        self.check_version(delivery.version)
        delivery = endpoints.replay(delivery=delivery, at=self.at)
        return self.one(render_delivery(delivery), version=delivery.version)
