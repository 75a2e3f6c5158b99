"""What leaves the system, in the operators' admin: to look at, to disable, to send once more."""

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest

from apikit import clock
from outbox import endpoints
from outbox.models import Delivery, DeliveryState, Endpoint, Message


class _ReadOnly(admin.ModelAdmin):  # type: ignore[type-arg]
    show_full_result_count = False

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return False


@admin.register(Message)
class MessageAdmin(_ReadOnly):
    list_display = ["created_at", "topic", "key", "organization", "available_at", "relayed_at"]
    list_filter = ["topic", "relayed_at", "created_at"]
    search_fields = ["key", "organization__name", "=id"]
    list_select_related = ["organization"]
    ordering = ["-id"]

    def has_change_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return False


@admin.register(Endpoint)
class EndpointAdmin(_ReadOnly):
    """Secrets are not among the fields: nobody of ours needs to see them."""

    list_display = ["url", "organization", "disabled_at", "disabled_reason", "deleted_at", "created_at"]
    list_filter = ["disabled_at", "deleted_at", "organization"]
    search_fields = ["url", "organization__name", "=id"]
    list_select_related = ["organization"]
    fields = [
        "public_id", "organization", "url", "events", "disabled_at", "disabled_reason", "deleted_at",
        "old_secret_until", "version", "created_at",
    ]  # fmt: skip
    readonly_fields = (
        "public_id", "organization", "url", "events", "disabled_at", "disabled_reason", "deleted_at",
        "old_secret_until", "version", "created_at",
    )  # fmt: skip
    actions = ["disable_endpoints"]
    ordering = ["-id"]

    @admin.action(description="Disable the selected webhooks", permissions=["change"])
    def disable_endpoints(self, request: HttpRequest, chosen: QuerySet[Endpoint]) -> None:
        at = clock.now()
        for endpoint in chosen.order_by("pk"):
            endpoints.disable(endpoint=endpoint, reason="by an operator", at=at)
        self.message_user(request, f"{chosen.count()} webhooks are disabled.")


@admin.register(Delivery)
class DeliveryAdmin(_ReadOnly):
    list_display = ["created_at", "topic", "endpoint", "state", "attempts", "due_at", "last_status", "last_error"]
    list_filter = ["state", "topic", "last_status", "created_at"]
    search_fields = ["endpoint__url", "endpoint__organization__name", "=id", "=message_id"]
    list_select_related = ["endpoint"]
    actions = ["replay_deliveries"]
    ordering = ["-id"]
    fields = readonly_fields = (
        "public_id", "endpoint", "message_id", "topic", "body", "state", "attempts", "due_at", "claim_until",
        "last_status", "last_error", "delivered_at", "version", "created_at",
    )  # fmt: skip

    @admin.action(description="Send the selected deliveries once more", permissions=["change"])
    def replay_deliveries(self, request: HttpRequest, chosen: QuerySet[Delivery]) -> None:
        at = clock.now()
        replayed = 0
        finished = chosen.exclude(state=DeliveryState.PENDING).filter(endpoint__disabled_at__isnull=True)
        for delivery in finished.select_related("endpoint").order_by("pk"):
            endpoints.replay(delivery=delivery, at=at)
            replayed += 1
        self.message_user(request, f"{replayed} deliveries are on their way again.")
