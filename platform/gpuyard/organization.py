"""Who may act for an organization, what it keeps (secrets, volumes), and whom it tells (webhooks)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpuyard.calls import Call
from gpuyard.json_object import Object
from gpuyard.methods import Resource, listing, operation
from gpuyard.objects import ApiKey, Webhook


class ApiKeys[M](Resource[M]):
    @listing("api_key_list", "/api-keys")
    def list(self, *, limit: int | None = None) -> Call[ApiKey]:
        return Call(ApiKey, query={"limit": limit})

    @operation("api_key_create", "POST", "/api-keys")
    def create(self, *, name: str, scopes: Sequence[str], expires_at: str | None = None) -> Call[ApiKey]:
        """Make a key. Its `secret` is in this answer and never shown again."""
        return Call(ApiKey, body={"name": name, "scopes": [*scopes], "expires_at": expires_at})

    @operation("api_key_get", "GET", "/api-keys/{id}")
    def get(self, key_id: str, /) -> Call[ApiKey]:
        return Call(ApiKey, (key_id,))

    @operation("api_key_update", "PATCH", "/api-keys/{id}")
    def update(self, key_id: str, /, *, if_match: str, **changes: Any) -> Call[ApiKey]:
        return Call(ApiKey, (key_id,), body=changes, headers={"If-Match": if_match})

    @operation("api_key_delete", "DELETE", "/api-keys/{id}")
    def delete(self, key_id: str, /) -> Call[Object]:
        return Call(Object, (key_id,))

    @operation("api_key_rotate", "POST", "/api-keys/{id}/actions/rotate")
    def rotate(self, key_id: str, /, *, overlap_s: int | None = None) -> Call[ApiKey]:
        """Make the key's successor; the old one lives on for overlap_s seconds."""
        return Call(ApiKey, (key_id,), body={"overlap_s": overlap_s})


class Members[M](Resource[M]):
    @listing("member_list", "/members")
    def list(self, *, limit: int | None = None) -> Call[Object]:
        return Call(Object, query={"limit": limit})

    @operation("member_create", "POST", "/members")
    def create(self, *, email: str, role: str) -> Call[Object]:
        return Call(Object, body={"email": email, "role": role})

    @operation("member_get", "GET", "/members/{id}")
    def get(self, member_id: str, /) -> Call[Object]:
        return Call(Object, (member_id,))

    @operation("member_update", "PATCH", "/members/{id}")
    def update(self, member_id: str, /, *, if_match: str, role: str) -> Call[Object]:
        return Call(Object, (member_id,), body={"role": role}, headers={"If-Match": if_match})

    @operation("member_delete", "DELETE", "/members/{id}")
    def delete(self, member_id: str, /) -> Call[Object]:
        return Call(Object, (member_id,))


class Groups[M](Resource[M]):
    @listing("group_list", "/groups")
    def list(self, *, limit: int | None = None) -> Call[Object]:
        return Call(Object, query={"limit": limit})

    @operation("group_create", "POST", "/groups")
    def create(self, *, name: str, role: str) -> Call[Object]:
        """Make a group; whoever is put in may do what `role` may, beside his own."""
        return Call(Object, body={"name": name, "role": role})

    @operation("group_get", "GET", "/groups/{id}")
    def get(self, group_id: str, /) -> Call[Object]:
        return Call(Object, (group_id,))

    @operation("group_update", "PATCH", "/groups/{id}")
    def update(self, group_id: str, /, *, if_match: str, **changes: Any) -> Call[Object]:
        """Change name or role. if_match: the group's `etag`."""
        return Call(Object, (group_id,), body=changes, headers={"If-Match": if_match})

    @operation("group_delete", "DELETE", "/groups/{id}")
    def delete(self, group_id: str, /) -> Call[Object]:
        return Call(Object, (group_id,))

    @listing("group_member_list", "/groups/{id}/members")
    def members(self, group_id: str, /, *, limit: int | None = None) -> Call[Object]:
        return Call(Object, (group_id,), {"limit": limit})

    @operation("group_member_add", "POST", "/groups/{id}/members")
    def add(self, group_id: str, /, *, member_id: str) -> Call[Object]:
        return Call(Object, (group_id,), body={"member_id": member_id})

    @operation("group_member_remove", "DELETE", "/groups/{id}/members/{member_id}")
    def remove(self, group_id: str, member_id: str, /) -> Call[Object]:
        return Call(Object, (group_id, member_id))


class AuditEvents[M](Resource[M]):
    @listing("audit_event_list", "/audit-events")
    def list(self, /, *, limit: int | None = None, **filters: Any) -> Call[Object]:
        return Call(Object, query={"limit": limit, **filters})


class Secrets[M](Resource[M]):
    @listing("secret_list", "/secrets")
    def list(self, *, limit: int | None = None) -> Call[Object]:
        """Iterate over names; a value is never shown."""
        return Call(Object, query={"limit": limit})

    @operation("secret_create", "POST", "/secrets")
    def create(self, *, name: str, value: str) -> Call[Object]:
        """Keep a value under a name; a name that is known gets the new value."""
        return Call(Object, body={"name": name, "value": value})

    @operation("secret_get", "GET", "/secrets/{id}")
    def get(self, secret_id: str, /) -> Call[Object]:
        """Return the name and its dates; the value is never shown."""
        return Call(Object, (secret_id,))

    @operation("secret_delete", "DELETE", "/secrets/{id}")
    def delete(self, secret_id: str, /) -> Call[Object]:
        return Call(Object, (secret_id,))


class Volumes[M](Resource[M]):
    @listing("volume_list", "/volumes")
    def list(self, *, limit: int | None = None) -> Call[Object]:
        return Call(Object, query={"limit": limit})

    @operation("volume_create", "POST", "/volumes")
    def create(self, *, name: str, size_gib: int, region: str | None = None) -> Call[Object]:
        """Make a volume; it lives on the host of the first lease that mounts it, and is charged from then on."""
        return Call(Object, body={"name": name, "size_gib": size_gib, "region": region})

    @operation("volume_get", "GET", "/volumes/{id}")
    def get(self, volume_id: str, /) -> Call[Object]:
        return Call(Object, (volume_id,))

    @operation("volume_delete", "DELETE", "/volumes/{id}")
    def delete(self, volume_id: str, /) -> Call[Object]:
        """Destroy it with all that is in it; the answer says whether its host has confirmed that."""
        return Call(Object, (volume_id,))


class Webhooks[M](Resource[M]):
    @listing("webhook_list", "/webhooks")
    def list(self, *, limit: int | None = None) -> Call[Webhook]:
        return Call(Webhook, query={"limit": limit})

    @operation("webhook_create", "POST", "/webhooks")
    def create(self, /, *, url: str, events: Sequence[str], **fields: Any) -> Call[Webhook]:
        """Register an endpoint. Its signing `secret` is in this answer and never shown again."""
        return Call(Webhook, body={"url": url, "events": [*events], **fields})

    @operation("webhook_get", "GET", "/webhooks/{id}")
    def get(self, webhook_id: str, /) -> Call[Webhook]:
        return Call(Webhook, (webhook_id,))

    @operation("webhook_update", "PATCH", "/webhooks/{id}")
    def update(self, webhook_id: str, /, *, if_match: str, **changes: Any) -> Call[Webhook]:
        return Call(Webhook, (webhook_id,), body=changes, headers={"If-Match": if_match})

    @operation("webhook_delete", "DELETE", "/webhooks/{id}")
    def delete(self, webhook_id: str, /) -> Call[Object]:
        return Call(Object, (webhook_id,))

    @operation("webhook_test", "POST", "/webhooks/{id}/actions/test")
    def test(self, webhook_id: str, /) -> Call[Object]:
        return Call(Object, (webhook_id,), body={})

    @operation("webhook_rotate", "POST", "/webhooks/{id}/actions/rotate")
    def rotate(self, webhook_id: str, /, *, overlap_s: int | None = None) -> Call[Webhook]:
        """Make a new signing `secret`; both sign for overlap_s seconds."""
        return Call(Webhook, (webhook_id,), body={"overlap_s": overlap_s})

    @listing("webhook_delivery_list", "/webhooks/{id}/deliveries")
    def deliveries(self, webhook_id: str, /, *, limit: int | None = None, state: str | None = None) -> Call[Object]:
        return Call(Object, (webhook_id,), {"limit": limit, "state": state})

    @operation("webhook_delivery_get", "GET", "/webhooks/{id}/deliveries/{delivery_id}")
    def delivery(self, webhook_id: str, delivery_id: str, /) -> Call[Object]:
        return Call(Object, (webhook_id, delivery_id))

    @operation("webhook_delivery_replay", "POST", "/webhooks/{id}/deliveries/{delivery_id}/actions/replay")
    def replay(self, webhook_id: str, delivery_id: str, /) -> Call[Object]:
        return Call(Object, (webhook_id, delivery_id), body={})
