"""Callers of the real doors of `tenants`: members with a role, each with a key of every scope or of some."""

from collections.abc import Callable
from typing import Any

import pytest

from accounts.models import User
from apikit import clock
from audit import ids
from tenants import keys, roles
from tenants.models import Membership, Organization, Role
from tests.apikit.conftest import Caller
from tests.factories import make_organization


def make_user(email: str | None = None) -> User:
    address = email or f"{ids.new().hex[-12:]}@example.org"
    return User.objects.create_user(address, address)


def make_member(organization: Organization, role: Role, user: User | None = None) -> Membership:
    return Membership.objects.create(organization=organization, user=user or make_user(), role=role)


class MemberCaller(Caller):
    """Calls with a key that a member with this role has made."""

    def __init__(self, organization: Organization, role: Role, scopes: tuple[str, ...] = roles.SCOPES) -> None:
        super().__init__(organization)
        self.membership = make_member(organization, role)
        self.key, self.secret = keys.create(
            organization=organization,
            name=role,
            scopes=scopes,
            expires_at=None,
            created_by=self.membership.user,
            at=clock.now(),
        )


@pytest.fixture
def as_member(db: None) -> Callable[..., MemberCaller]:
    def make(role: Role, organization: Organization | None = None, **options: Any) -> MemberCaller:
        return MemberCaller(organization or make_organization(), role, **options)

    return make
