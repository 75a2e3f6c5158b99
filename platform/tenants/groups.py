"""Groups of members, each with a role. Nobody gives what he lacks, neither to a group nor by putting somebody in."""

from datetime import datetime

from django.db import transaction

from apikit.errors import DomainError
from audit import log
from tenants import quotas
from tenants.group_models import Group, GroupMember
from tenants.members import check_grant
from tenants.models import Membership, Role
from tenants.principal import Principal


class NameTaken(DomainError):
    slug = "validation-error"
    title = "The request was read and refused"
    status = 422


@transaction.atomic
def make(*, by: Principal, name: str, role: Role, at: datetime, request_id: str = "") -> Group:
    """Make an empty group. Raises MayNotGrant, NameTaken."""
    organization = quotas.lock(by.organization.pk)
    check_grant(by, role)
    _check_name(by, name)
    group = Group.objects.create(organization=organization, name=name, role=role, created_at=at)
    _record(by, "group.made", group, before=None, after=_shown(group), at=at, request_id=request_id)
    return group


@transaction.atomic
def change(
    *, by: Principal, group: Group, name: str | None, role: Role | None, at: datetime, request_id: str = ""
) -> Group:
    """Give a group another name or role: everybody in it may do what the new one may, from now on.

    Raises MayNotGrant (for the new role), NameTaken.
    """
    quotas.lock(by.organization.pk)
    before = _shown(group)
    if name is not None and name != group.name:
        _check_name(by, name)
        group.name = name
    if role is not None and role != group.role:
        check_grant(by, role)
        group.role = role
    if _shown(group) == before:
        return group
    group.version += 1
    group.save(update_fields=["name", "role", "version"])
    _record(by, "group.changed", group, before=before, after=_shown(group), at=at, request_id=request_id)
    return group


@transaction.atomic
def dissolve(*, by: Principal, group: Group, at: datetime, request_id: str = "") -> None:
    """Delete a group; who was in it keeps his own role."""
    quotas.lock(by.organization.pk)
    inside = [row.membership.public_id for row in group.inside.select_related("membership").order_by("pk")]
    before = {**_shown(group), "members": inside}
    _record(by, "group.dissolved", group, before=before, after=None, at=at, request_id=request_id)
    group.delete()


@transaction.atomic
def put_in(*, by: Principal, group: Group, membership: Membership, at: datetime, request_id: str = "") -> GroupMember:
    """Put a member of the organization into a group; he may be in it already. Raises MayNotGrant."""
    quotas.lock(by.organization.pk)
    check_grant(by, Role(group.role))
    row, is_new = GroupMember.objects.get_or_create(group=group, membership=membership, defaults={"created_at": at})
    if is_new:
        _changed_inside(by, "group.member_added", group, membership, at=at, request_id=request_id)
    return row


@transaction.atomic
def take_out(*, by: Principal, group: Group, membership: Membership, at: datetime, request_id: str = "") -> None:
    """Take a member out of a group. What his keys could do by it alone, they cannot any more."""
    quotas.lock(by.organization.pk)
    if GroupMember.objects.filter(group=group, membership=membership).delete()[0]:
        _changed_inside(by, "group.member_removed", group, membership, at=at, request_id=request_id)


def _changed_inside(
    by: Principal, action: str, group: Group, membership: Membership, *, at: datetime, request_id: str
) -> None:
    group.version += 1
    group.save(update_fields=["version"])
    after = {"member": membership.public_id, "role": group.role}
    _record(by, action, group, before=None, after=after, at=at, request_id=request_id)


def _check_name(by: Principal, name: str) -> None:
    if Group.objects.filter(organization=by.organization, name=name).exists():
        fault = {"pointer": "/name", "code": "bad_value", "detail": "There is a group of this name already."}
        raise NameTaken("There is a group of this name already.", errors=[fault])


def _shown(group: Group) -> dict[str, object]:
    return {"name": group.name, "role": group.role}


def _record(
    by: Principal, action: str, group: Group, *, before: object, after: object, at: datetime, request_id: str
) -> None:
    log.record(
        actor=by.actor, organization=by.organization.pk, action=action, target=group.public_id, before=before,
        after=after, request_id=request_id, at=at,
    )  # fmt: skip
