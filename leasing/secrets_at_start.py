"""What a lease takes from its organization's vault: checked when it is asked for, sealed for the host when it starts.

A value is in clear only between the vault and the seal, in memory. Each start takes the value of that moment; what runs
keeps the one that it was started with.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from agents import sealed_values
from agents.models import Host
from apikit import sealing
from apikit.errors import InvalidInput
from apikit.nearest import nearest
from leasing.models import Lease
from tenants import vault
from tenants.models import Organization, Secret


def check(*, organization: Organization, asked: Mapping[str, Any]) -> None:
    """Raise InvalidInput unless each name that is asked for has a value, and the registry's one reads as a login."""
    names = list(asked.get("secrets") or [])
    login = asked.get("registry_secret")
    if not names and login is None:
        return
    faults = [_fault(f"/secrets/{index}", "bad_value", "It is named twice.") for index in _doubles(names)]
    unknown = set(vault.missing(organization_id=organization.pk, names=[*names, login] if login else names))
    known = list(Secret.objects.filter(organization=organization).values_list("name", flat=True)) if unknown else []
    where = [(f"/secrets/{index}", name) for index, name in enumerate(names)]
    for pointer, name in [*where, *([("/registry_secret", login)] if login else [])]:
        if name in unknown:
            faults.append(_fault(pointer, "bad_value", "No secret has this name.", nearest=nearest(name, known)))
    if login and login not in unknown and _login(vault.reveal(_named(organization.pk, login))) is None:
        faults.append(_fault("/registry_secret", "bad_value", "The secret's value must read username:password."))
    if faults:
        raise InvalidInput.of(faults)


def sealed_for(lease: Lease, *, rank: int, host: Host) -> str:
    """Return what the lease takes from the vault, sealed for one host; "" if it takes nothing.

    A name without a value is left out: the host says that it is missing, and the lease ends with that.
    """
    names = _names(lease)
    if not names:
        return ""
    values = vault.values_of(organization_id=lease.organization_id, names=names)
    return sealed_values.seal(
        host=host,
        reference=lease.public_id,
        member=rank,
        epoch=lease.epoch,
        secrets={name: values[name] for name in lease.secrets if name in values},
        registry=_login(values.get(lease.registry_secret, "")),
    )


def record(lease: Lease, *, hosts: Iterable[Host], at: datetime) -> None:
    """Write down which hosts got what; last of all, since it holds the lock of the organization's audit chain."""
    if names := _names(lease):
        for host in hosts:
            receiver = f"{lease.public_id} on {host.public_id}"
            vault.record_handed_out(organization_id=lease.organization_id, names=names, receiver=receiver, at=at)


def was_lacking(lease: Lease, *, at: datetime) -> bool:
    """Return whether a start at `at` did not get all that the lease names, by what the vault has now.

    A value that we cannot unseal is no fault of its tenant: it was not lacking.
    """
    there = Secret.objects.filter(organization=lease.organization_id, name__in=_names(lease), created_at__lte=at)
    there = there.exclude(replaced_at__gt=at)
    if set(_names(lease)) - set(there.values_list("name", flat=True)):
        return True
    login = there.filter(name=lease.registry_secret).first()
    try:
        return login is not None and _login(vault.reveal(login)) is None
    except sealing.CannotUnseal:
        return False


def _names(lease: Lease) -> list[str]:
    return [*lease.secrets, *([lease.registry_secret] if lease.registry_secret else [])]


def _login(value: str) -> tuple[str, str] | None:
    """Return user name and password of a secret that reads `username:password`, else None."""
    username, colon, password = value.strip().partition(":")
    return (username, password) if username and colon and password else None


def _named(organization_id: UUID, name: str) -> Secret:
    return Secret.objects.get(organization=organization_id, name=name)


def _doubles(names: list[str]) -> list[int]:
    return [index for index, name in enumerate(names) if name in names[:index]]


def _fault(pointer: str, code: str, detail: str, **facts: Any) -> dict[str, Any]:
    return {"pointer": pointer, "code": code, "detail": detail, **facts}
