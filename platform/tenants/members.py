"""Members and their roles. Nobody grants what he lacks; an organization keeps an owner."""

from datetime import datetime

from django.contrib.auth.hashers import make_password
from django.db import transaction

from accounts.models import User
from apikit.errors import DomainError
from audit import log
from tenants import keys, quotas, roles
from tenants.keys import MayNotGrant
from tenants.models import ApiKey, Membership, Organization, Role
from tenants.principal import Principal


class AlreadyMember(DomainError):
    slug = "validation-error"
    title = "The request was read and refused"
    status = 422


class LastOwner(DomainError):
    slug = "invalid-transition"
    title = "That cannot be done in this state"
    status = 409


@transaction.atomic
def add(*, by: Principal, email: str, role: Role, at: datetime, request_id: str = "") -> Membership:
    """Make the person with this address a member. He signs in by a reset of his password if he never did.

    Raises MayNotGrant, AlreadyMember.
    """
    organization = quotas.lock(by.organization.pk)
    check_grant(by, role)
    address = email.lower()
    user, _ = User.objects.get_or_create(email=address, defaults={"username": address, "password": make_password(None)})
    if Membership.objects.filter(organization=organization, user=user).exists():
        fault = {"pointer": "/email", "code": "bad_value", "detail": "This person is a member already."}
        raise AlreadyMember("This person is a member already.", errors=[fault])
    membership = Membership.objects.create(organization=organization, user=user, role=role, created_at=at)
    _record(by, "member.added", membership, before=None, after={"role": role}, at=at, request_id=request_id)
    return membership


@transaction.atomic
def change_role(*, by: Principal, membership: Membership, role: Role, at: datetime, request_id: str = "") -> Membership:
    """Give a member another role. Raises MayNotGrant (also for an owner, unless by an owner), LastOwner."""
    quotas.lock(by.organization.pk)
    membership = Membership.objects.select_for_update(no_key=True, of=("self",)).get(pk=membership.pk)
    _check_touch(by, membership)
    check_grant(by, role)
    if membership.role == role:
        return membership
    if membership.role == Role.OWNER:
        _check_another_owner(membership.organization, membership)
    before, membership.role = membership.role, role
    membership.version += 1
    membership.save(update_fields=["role", "version"])
    _record(
        by, "member.role_changed", membership, before={"role": before}, after={"role": role}, at=at,
        request_id=request_id,
    )  # fmt: skip
    return membership


@transaction.atomic
def remove(*, by: Principal, membership: Membership, at: datetime, request_id: str = "") -> None:
    """Remove a member and revoke the keys he made here. Raises MayNotGrant, LastOwner."""
    quotas.lock(by.organization.pk)
    membership = Membership.objects.select_for_update(of=("self",)).get(pk=membership.pk)
    _check_touch(by, membership)
    if membership.role == Role.OWNER:
        _check_another_owner(membership.organization, membership)
    made_by_him = ApiKey.objects.filter(organization=membership.organization, created_by=membership.user)
    for key in made_by_him.filter(keys.live(at=at)).order_by("pk"):
        keys.revoke(key=key, at=at, actor=by.actor, request_id=request_id)
    _record(
        by, "member.removed", membership, before={"role": membership.role}, after=None, at=at, request_id=request_id
    )
    membership.delete()


def check_grant(by: Principal, role: Role) -> None:
    """Raise MayNotGrant where the role may something that the caller may not."""
    lacking = roles.of_role(role) - by.permissions
    if lacking:
        raise MayNotGrant(f"Nobody grants what he lacks: {', '.join(sorted(lacking))}.", lacking=sorted(lacking))


def _check_touch(by: Principal, membership: Membership) -> None:
    if membership.role == Role.OWNER and not by.may("owners:write"):
        raise MayNotGrant("Only an owner changes owners.", lacking=["owners:write"])


def _check_another_owner(organization: Organization, membership: Membership) -> None:
    owners = Membership.objects.filter(organization=organization, role=Role.OWNER)
    if not owners.exclude(pk=membership.pk).exists():
        raise LastOwner("An organization keeps at least one owner.", actions=[])


def _record(
    by: Principal,
    action: str,
    membership: Membership,
    *,
    before: dict[str, str] | None,
    after: dict[str, str] | None,
    at: datetime,
    request_id: str,
) -> None:
    log.record(
        actor=by.actor,
        organization=membership.organization_id,
        action=action,
        target=membership.public_id,
        before=before,
        after={**(after or {}), "user": membership.user.public_id},
        request_id=request_id,
        at=at,
    )
