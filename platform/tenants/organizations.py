"""The life of an organization."""

import re
import zoneinfo
from datetime import datetime
from uuid import UUID

from django.db import transaction
from django.db.models import QuerySet

from accounts.models import User
from apikit.errors import DomainError, InvalidInput
from audit import log
from tenants.models import Membership, Organization, Role


class SlugTaken(DomainError):
    slug = "validation-error"
    title = "The request was read and refused"
    status = 422


class Banned(DomainError):
    slug = "permission-denied"
    title = "The caller may not do this"
    status = 403


def refuse_banned(organization: Organization) -> None:
    """Raise Banned. Who holds the organization's lock is not overtaken by a ban that came after the request did."""
    if organization.banned_at is not None:
        raise Banned(f"{organization.name} is banned from this platform: {organization.banned_reason}")


@transaction.atomic
def found(
    *,
    name: str,
    owner: User | None,
    currency: str,
    at: datetime,
    slug: str | None = None,
    time_zone: str = "UTC",
    gpu_quota: int = 64,
    actor: str = "system:organizations",
) -> Organization:
    """Make an organization with its first member, who owns it (None: no member yet). Raises InvalidInput, SlugTaken.

    slug: made from the name where it is None. time_zone: in which its months begin and end.
    """
    slug = slug or _slug_of(name)
    if time_zone not in zoneinfo.available_timezones():
        fault = {"pointer": "/time_zone", "code": "bad_value", "detail": "No time zone of the IANA data base."}
        raise InvalidInput("There is no such time zone.", errors=[fault])
    if Organization.objects.filter(slug=slug).exists():
        raise SlugTaken(f"There is an organization “{slug}” already.", errors=[])
    organization = Organization.objects.create(
        name=name, slug=slug, currency=currency, time_zone=time_zone, gpu_quota=gpu_quota, created_at=at
    )
    if owner is not None:
        Membership.objects.create(organization=organization, user=owner, role=Role.OWNER, created_at=at)
    log.record(
        actor=actor,
        organization=organization.pk,
        action="organization.founded",
        target=organization.public_id,
        after={"name": name, "owner": owner.public_id if owner else None},
        at=at,
    )
    return organization


@transaction.atomic
def ban(*, organization_id: UUID, reason: str, by: str, at: datetime) -> Organization:
    """Refuse every key and member of an organization from now on; a later reason replaces the first."""
    organization = Organization.objects.select_for_update(no_key=True).get(pk=organization_id)
    before = organization.banned_reason or None
    organization.banned_at = organization.banned_at or at
    organization.banned_reason = reason[:300]
    organization.version += 1
    organization.save(update_fields=["banned_at", "banned_reason", "version"])
    _note_ban(organization, "organization.banned", before=before, reason=reason, by=by, at=at)
    return organization


@transaction.atomic
def unban(*, organization_id: UUID, reason: str, by: str, at: datetime) -> Organization:
    """Let its keys and members in again; one that is not banned stays as it is."""
    organization = Organization.objects.select_for_update(no_key=True).get(pk=organization_id)
    if organization.banned_at is None:
        return organization
    before, organization.banned_at, organization.banned_reason = organization.banned_reason, None, ""
    organization.version += 1
    organization.save(update_fields=["banned_at", "banned_reason", "version"])
    _note_ban(organization, "organization.unbanned", before=before, reason=reason, by=by, at=at)
    return organization


def _note_ban(
    organization: Organization, action: str, *, before: str | None, reason: str, by: str, at: datetime
) -> None:
    log.record(
        actor=by,
        organization=organization.pk,
        action=action,
        target=organization.public_id,
        before={"banned": before},
        after={"banned": organization.banned_reason or None},
        why=reason,
        at=at,
    )


def by_name() -> QuerySet[Organization]:
    """Return all organizations, for an operator to choose from."""
    return Organization.objects.order_by("name")


def _slug_of(name: str) -> str:
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:64]
    if not slug:
        fault = {"pointer": "/slug", "code": "required", "detail": "The name has no Latin letters; give a slug."}
        raise InvalidInput("A slug is needed.", errors=[fault])
    return slug
