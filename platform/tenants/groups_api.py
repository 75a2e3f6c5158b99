"""The doors of groups: several members with one more role."""

from typing import Any

from django.db.models import Count, QuerySet
from rest_framework.request import Request
from rest_framework.response import Response

from apikit import pagination
from apikit.instants import instant
from apikit.strict_fields import Choice, Name, StrictSerializer, Text, fault
from tenants import groups
from tenants.access import OrganizationView
from tenants.api import render_member
from tenants.group_models import ROLES, Group
from tenants.models import Membership, Role


class GroupBody(StrictSerializer):
    name = Name()
    role = Choice(choices=[role.value for role in ROLES])


class GroupChange(StrictSerializer):
    name = Name(required=False)
    role = Choice(choices=[role.value for role in ROLES], required=False)

    def validate(self, values: dict[str, Any]) -> dict[str, Any]:
        if not values:
            raise fault("required", "Say name or role.", pointer="/name")
        return values


class GroupMemberBody(StrictSerializer):
    member_id = Text(max_length=64)


def render_group(group: Group) -> dict[str, Any]:
    return {
        "id": group.public_id,
        "version": group.version,
        "actions": [],
        "name": group.name,
        "role": group.role,
        "member_count": group.people,  # type: ignore[attr-defined]  # annotated by _GroupView.groups
        "created_at": instant(group.created_at),
    }


class _GroupView(OrganizationView):
    def groups(self) -> QuerySet[Group]:
        return self.mine(Group).annotate(people=Count("inside"))

    def locked(self, id: str) -> Group:
        """Return the group, locked, with its version compared where the caller says one."""
        group = self.found(self.mine(Group).select_for_update(no_key=True), "group", id)
        self.check_version(group.version, required=self.request.method == "PATCH")
        return group

    def shown(self, group: Group) -> Response:
        fresh = self.groups().get(pk=group.pk)
        return self.one(render_group(fresh), version=fresh.version)

    def member(self, text: str) -> Membership:
        return self.found(self.mine(Membership).select_related("user"), "member", text)

    def act(self) -> dict[str, Any]:
        return {"by": self.principal, "at": self.at, "request_id": self.request_id}


class GroupCollection(_GroupView):
    policy = {"get": "members:read", "post": "members:write"}
    query = {"get": pagination.PARAMETERS}

    def get(self, request: Request) -> Response:
        return self.page(self.groups(), render_group)

    def post(self, request: Request) -> Response:
        asked = self.read(GroupBody)
        made = groups.make(name=asked["name"], role=Role(asked["role"]), **self.act())
        shown = render_group(self.groups().get(pk=made.pk))
        return self.created(shown, version=made.version, location=f"/groups/{made.public_id}")


class GroupItem(_GroupView):
    policy = {"get": "members:read", "patch": "members:write", "delete": "members:write"}

    def get(self, request: Request, id: str) -> Response:
        group = self.found(self.groups(), "group", id)
        return self.one(render_group(group), version=group.version)

    def patch(self, request: Request, id: str) -> Response:
        asked = self.read(GroupChange)
        group = self.locked(id)
        role = Role(asked["role"]) if "role" in asked else None
        return self.shown(groups.change(group=group, name=asked.get("name"), role=role, **self.act()))

    def delete(self, request: Request, id: str) -> Response:
        groups.dissolve(group=self.locked(id), **self.act())
        return Response(status=204)


class GroupMembers(_GroupView):
    policy = {"get": "members:read", "post": "members:write"}
    query = {"get": pagination.PARAMETERS}

    def get(self, request: Request, id: str) -> Response:
        group = self.found(self.mine(Group), "group", id)
        inside = self.mine(Membership).filter(groups_in__group=group).select_related("user")
        return self.page(inside, render_member)

    def post(self, request: Request, id: str) -> Response:
        """Put a member in; once more changes nothing."""
        group = self.locked(id)
        asked = self.read(GroupMemberBody)
        groups.put_in(group=group, membership=self.member(asked["member_id"]), **self.act())
        return self.shown(group)


class GroupMemberItem(_GroupView):
    policy = {"delete": "members:write"}

    def delete(self, request: Request, id: str, member_id: str) -> Response:
        group = self.locked(id)
        inside = self.mine(Membership).filter(groups_in__group=group)
        groups.take_out(group=group, membership=self.found(inside, "member", member_id), **self.act())
        return Response(status=204)
