"""Routes of the organization's own affairs, below /api/v1/."""

from django.urls import path

from tenants import api

urlpatterns = [
    path("api-keys", api.ApiKeyCollection.as_view(), name="api_key_list"),
    path("api-keys/<str:id>", api.ApiKeyItem.as_view(), name="api_key"),
    path("api-keys/<str:id>/actions/rotate", api.ApiKeyRotate.as_view(), name="api_key_rotate"),
    path("members", api.MemberCollection.as_view(), name="member_list"),
    path("members/<str:id>", api.MemberItem.as_view(), name="member"),
    path("audit-events", api.AuditEventCollection.as_view(), name="audit_event_list"),
]
