"""Routes of the organization's own affairs, below /api/v1/."""

from django.urls import path

from tenants import api, groups_api

urlpatterns = [
    path("api-keys", api.ApiKeyCollection.as_view(), name="api_key_list"),
    path("api-keys/<str:id>", api.ApiKeyItem.as_view(), name="api_key"),
    path("api-keys/<str:id>/actions/rotate", api.ApiKeyRotate.as_view(), name="api_key_rotate"),
    path("members", api.MemberCollection.as_view(), name="member_list"),
    path("members/<str:id>", api.MemberItem.as_view(), name="member"),
    path("groups", groups_api.GroupCollection.as_view(), name="group_list"),
    path("groups/<str:id>", groups_api.GroupItem.as_view(), name="group"),
    path("groups/<str:id>/members", groups_api.GroupMembers.as_view(), name="group_members"),
    path("groups/<str:id>/members/<str:member_id>", groups_api.GroupMemberItem.as_view(), name="group_member"),
    path("audit-events", api.AuditEventCollection.as_view(), name="audit_event_list"),
]
