"""Who is calling, for which organization, and what he may do and see."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from django.db.models import Model, QuerySet
from rest_framework.permissions import BasePermission
from rest_framework.request import Request

from accounts.models import User
from tenants import roles
from tenants.models import ApiKey, Organization, Role


@dataclass(frozen=True)
class Principal:
    """Who is calling, for which organization: an API key, or a person in a session."""

    organization: Organization
    role: Role | None  # of the person, or of the key's maker; None: a key made by the platform
    scopes: frozenset[str] | None  # of the key; None: a person
    user: User | None = None
    api_key: ApiKey | None = None
    group_roles: frozenset[Role] = frozenset()  # what the person's groups add to his role
    is_authenticated: bool = field(default=True, init=False)

    @property
    def actor(self) -> str:
        """How the audit log names the caller."""
        if self.api_key is not None:
            return self.api_key.public_id
        return self.user.public_id if self.user else "system:unknown"

    @property
    def person(self) -> User | None:
        """Who answers for what is done: the person, or the maker of the key; None: a key made by the platform."""
        return self.user or (self.api_key.created_by if self.api_key else None)

    @cached_property
    def permissions(self) -> frozenset[str]:
        return roles.permissions(role=self.role, scopes=self.scopes, group_roles=self.group_roles)

    def may(self, permission: str) -> bool:
        return permission in self.permissions


def visible_to[Row: Model](model: type[Row], principal: Principal, *, owner: str = "organization") -> QuerySet[Row]:
    """Return the rows that belong to the caller's organization: the only way from a door to a table.

    owner: the path to the organization (`lease__organization`), or to a column with its id (`owner_id`).
    """
    return model._default_manager.filter(**{owner: principal.organization.pk})


def action_of(request: Request) -> str:
    method = str(request.method).lower()
    return "get" if method == "head" else method


class PolicyPermission(BasePermission):
    """Allows what the view's `policy` names for this method, if the caller has it. No entry: no."""

    def has_permission(self, request: Request, view: Any) -> bool:
        method = action_of(request)
        wanted = getattr(view, "policy", {}).get(method)
        if wanted is None or not isinstance(request.user, Principal):
            return False
        self.message = f"This needs the permission {wanted}."
        return request.user.may(wanted)
