"""Secrets of an organization: stored under a name, replaced, forgotten. Only a container that names one gets its value.

A value is sealed for its organization and name, so a row that is copied elsewhere cannot be read there.
"""

from collections.abc import Iterable
from datetime import datetime
from uuid import UUID

from django.db import transaction

from apikit import sealing
from apikit.errors import InvalidInput
from audit import log
from tenants.models import Organization, Secret

LIMIT = 200  # names per organization


def _place(organization_id: UUID, name: str) -> str:
    return f"{organization_id}|secret|{name}"


@transaction.atomic
def store(
    *, organization: Organization, name: str, value: str, at: datetime, actor: str, request_id: str = ""
) -> tuple[Secret, bool]:
    """Keep `value` under `name` and return its row, and whether the name is new; a known name gets the new value.

    What runs keeps the value with which it was started. Raises InvalidInput at the limit of names.
    """
    Organization.objects.select_for_update(no_key=True).get(pk=organization.pk)
    sealed = sealing.seal(value.encode(), context=_place(organization.pk, name))
    secret = Secret.objects.filter(organization=organization, name=name).first()
    is_new = secret is None
    if secret is None:
        if Secret.objects.filter(organization=organization).count() >= LIMIT:
            fault = {"pointer": "/name", "code": "too_many", "detail": f"At most {LIMIT} names; delete one first."}
            raise InvalidInput("There is no room for another secret.", errors=[fault])
        secret = Secret.objects.create(organization=organization, name=name, sealed=sealed, created_at=at)
    else:
        secret.sealed, secret.replaced_at, secret.version = sealed, at, secret.version + 1
        secret.save(update_fields=["sealed", "replaced_at", "version"])
    _record("secret.created" if is_new else "secret.replaced", secret, at=at, actor=actor, request_id=request_id)
    return secret, is_new


@transaction.atomic
def forget(*, secret: Secret, at: datetime, actor: str, request_id: str = "") -> None:
    """Delete the value with its name. What runs keeps it."""
    _record("secret.deleted", secret, at=at, actor=actor, request_id=request_id)
    secret.delete()


def reveal(secret: Secret) -> str:
    """Return the value, for whoever starts the container. Raises sealing.CannotUnseal."""
    return sealing.unseal(bytes(secret.sealed), context=_place(secret.organization_id, secret.name)).decode()


def values_of(*, organization_id: UUID, names: Iterable[str]) -> dict[str, str]:
    """Return the values by name, for a container that starts; unknown names are left out. Raises CannotUnseal.

    The caller writes down who got them (`record_handed_out`), after its other locks.
    """
    found = Secret.objects.filter(organization=organization_id, name__in=set(names))
    return {secret.name: reveal(secret) for secret in found}


@transaction.atomic
def record_handed_out(*, organization_id: UUID, names: Iterable[str], receiver: str, at: datetime) -> None:
    """Write down that `receiver`, such as a lease on a host, was given the values of these names."""
    for secret in Secret.objects.filter(organization=organization_id, name__in=set(names)).order_by("name"):
        log.record(
            actor="system:start", organization=organization_id, action="secret.handed_out", target=secret.public_id,
            after={"name": secret.name, "version": secret.version, "receiver": receiver}, at=at,
        )  # fmt: skip


def missing(*, organization_id: UUID, names: Iterable[str]) -> list[str]:
    """Return those of the names under which nothing is kept, in their order."""
    wanted = list(names)
    known = Secret.objects.filter(organization=organization_id, name__in=wanted).values_list("name", flat=True)
    return [name for name in wanted if name not in set(known)] if wanted else []


def _record(action: str, secret: Secret, *, at: datetime, actor: str, request_id: str) -> None:
    log.record(
        actor=actor, organization=secret.organization_id, action=action, target=secret.public_id,
        after={"name": secret.name, "version": secret.version}, request_id=request_id, at=at,
    )  # fmt: skip
