"""Routes of webhooks, below /api/v1/."""

from django.urls import path

from outbox import api

urlpatterns = [
    path("webhooks", api.WebhookCollection.as_view(), name="webhook_list"),
    path("webhooks/<str:id>", api.WebhookItem.as_view(), name="webhook"),
    path("webhooks/<str:id>/actions/test", api.WebhookTest.as_view(), name="webhook_test"),
    path("webhooks/<str:id>/actions/rotate", api.WebhookRotate.as_view(), name="webhook_rotate"),
    path("webhooks/<str:id>/deliveries", api.DeliveryCollection.as_view(), name="webhook_delivery_list"),
    path("webhooks/<str:id>/deliveries/<str:delivery_id>", api.DeliveryItem.as_view(), name="webhook_delivery"),
    path(
        "webhooks/<str:id>/deliveries/<str:delivery_id>/actions/replay",
        api.DeliveryReplay.as_view(),
        name="webhook_delivery_replay",
    ),
]
