"""The doors of an organization's own affairs: API keys, members, audit events."""

from typing import Any

from django.db.models import QuerySet
from rest_framework.request import Request
from rest_framework.response import Response

from apikit import pagination
from apikit.instants import instant, instant_or_none
from apikit.strict_fields import Choice, Instant, Integer, ListOf, Name, StrictSerializer, Text
from audit.models import Entry
from tenants import keys, members, roles
from tenants.access import OrganizationView
from tenants.models import ApiKey, Membership, Role


class ApiKeyBody(StrictSerializer):
    name = Name()
    scopes = ListOf(child=Choice(choices=roles.SCOPES), min_length=1, max_length=len(roles.SCOPES))
    expires_at = Instant(required=False, allow_null=True, default=None)


class ApiKeyChange(StrictSerializer):
    name = Name()


class RotateBody(StrictSerializer):
    overlap_s = Integer(min_value=0, max_value=keys.OVERLAP_LIMIT_S, default=0)


class MemberBody(StrictSerializer):
    # It becomes the name to sign in with, which has 150 characters at most.
    email = Text(max_length=150, pattern=r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+")
    role = Choice(choices=Role.values)


class MemberChange(StrictSerializer):
    role = Choice(choices=Role.values)


def render_key(key: ApiKey) -> dict[str, Any]:
    over = key.revoked_at is not None or key.replaced_by_id is not None
    return {
        "id": key.public_id,
        "version": key.version,
        "actions": [] if over else ["rotate"],
        "name": key.name,
        "prefix": f"gy_live_{key.public}",
        "scopes": key.scopes,
        "created_at": instant(key.created_at),
        "expires_at": instant_or_none(key.expires_at),
        "revoked_at": instant_or_none(key.revoked_at),
        "last_used_at": instant_or_none(key.last_used_at),
    }


def render_member(membership: Membership) -> dict[str, Any]:
    return {
        "id": membership.public_id,
        "version": membership.version,
        "actions": [],
        "user_id": membership.user.public_id,
        "email": membership.user.email,
        "role": membership.role,
        "created_at": instant(membership.created_at),
    }


def render_entry(entry: Entry) -> dict[str, Any]:
    return {
        "id": entry.public_id,
        "position": entry.position,
        "at": instant(entry.at),
        "actor": entry.actor,
        "action": entry.action,
        "target": entry.target,
        "before": entry.before,
        "after": entry.after,
        "why": entry.why,
        "request_id": entry.request_id,
        "sha256": bytes(entry.sha256).hex(),
    }


class _KeyView(OrganizationView):
    def keys(self) -> QuerySet[ApiKey]:
        """One's own keys, and others' for those who manage them."""
        reach = "write" if self.request.method not in {"GET", "HEAD"} else "read"
        rows = self.mine(ApiKey)
        return rows if self.principal.may(f"keys_of_others:{reach}") else rows.filter(created_by=self.principal.person)


class ApiKeyCollection(_KeyView):
    policy = {"get": "keys:read", "post": "keys:write"}
    query = {"get": pagination.PARAMETERS}
    shows_secret = True

    def get(self, request: Request) -> Response:
        return self.page(self.keys(), render_key)

    def post(self, request: Request) -> Response:
        asked = self.read(ApiKeyBody)
        key, secret = keys.grant(by=self.principal, **asked, at=self.at, request_id=self.request_id)
        body = {**render_key(key), "secret": secret}
        return self.created(body, version=key.version, location=f"/api-keys/{key.public_id}")


class ApiKeyItem(_KeyView):
    policy = {"get": "keys:read", "patch": "keys:write", "delete": "keys:write"}

    def get(self, request: Request, id: str) -> Response:
        key = self.found(self.keys(), "key", id)
        return self.one(render_key(key), version=key.version)

    def patch(self, request: Request, id: str) -> Response:
        asked = self.read(ApiKeyChange)
        key = self.found(self.keys().select_for_update(no_key=True), "key", id)
        self.check_version(key.version, required=True)
        key = keys.rename(
            key=key, name=asked["name"], at=self.at, actor=self.principal.actor, request_id=self.request_id
        )
        return self.one(render_key(key), version=key.version)

    def delete(self, request: Request, id: str) -> Response:
        key = self.found(self.keys().select_for_update(no_key=True), "key", id)
        self.check_version(key.version)
        keys.revoke(key=key, at=self.at, actor=self.principal.actor, request_id=self.request_id)
        return Response(status=204)


class ApiKeyRotate(_KeyView):
    policy = {"post": "keys:write"}
    shows_secret = True

    def post(self, request: Request, id: str) -> Response:
        """The new key with its secret; the old one lives on for `overlap_s`."""
        asked = self.read(RotateBody, optional=True)
        key = self.found(self.keys().select_for_update(no_key=True), "key", id)
        self.check_version(key.version)
        old, new, secret = keys.rotate(
            key=key, by=self.principal, overlap_s=asked["overlap_s"], at=self.at, request_id=self.request_id
        )
        body = {**render_key(new), "secret": secret, "replaces": render_key(old)}
        return self.created(body, version=new.version, location=f"/api-keys/{new.public_id}")


class MemberCollection(OrganizationView):
    policy = {"get": "members:read", "post": "members:write"}
    query = {"get": pagination.PARAMETERS}

    def get(self, request: Request) -> Response:
        return self.page(self.mine(Membership).select_related("user"), render_member)

    def post(self, request: Request) -> Response:
        asked = self.read(MemberBody)
        membership = members.add(
            by=self.principal,
            email=asked["email"],
            role=Role(asked["role"]),
            at=self.at,
            request_id=self.request_id,
        )
        location = f"/members/{membership.public_id}"
        return self.created(render_member(membership), version=membership.version, location=location)


class MemberItem(OrganizationView):
    policy = {"get": "members:read", "patch": "members:write", "delete": "members:write"}

    def get(self, request: Request, id: str) -> Response:
        membership = self.found(self.mine(Membership).select_related("user"), "member", id)
        return self.one(render_member(membership), version=membership.version)

    def patch(self, request: Request, id: str) -> Response:
        asked = self.read(MemberChange)
        membership = self.found(self.mine(Membership).select_for_update(no_key=True), "member", id)
        self.check_version(membership.version, required=True)
        membership = members.change_role(
            by=self.principal,
            membership=membership,
            role=Role(asked["role"]),
            at=self.at,
            request_id=self.request_id,
        )
        return self.one(render_member(membership), version=membership.version)

    def delete(self, request: Request, id: str) -> Response:
        membership = self.found(self.mine(Membership).select_for_update(no_key=True), "member", id)
        self.check_version(membership.version)
        members.remove(by=self.principal, membership=membership, at=self.at, request_id=self.request_id)
        return Response(status=204)


class AuditEventCollection(OrganizationView):
    policy = {"get": "audit:read"}
    query = {"get": pagination.PARAMETERS}

    def get(self, request: Request) -> Response:
        return self.page(self.mine(Entry, owner="organization_id"), render_entry, key="position")
