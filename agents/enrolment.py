"""How a machine joins: a one-time token from its owner, and the keys that it made itself.

The token is 128 random bits, stored hashed, good once and for 15 minutes, and bound to an organization, a zone, a name
and an access class. It is burnt in the transaction that registers the keys.
"""

import hashlib
import re
import secrets
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import transaction

from agents import host_events, host_life, signing
from agents.models import Device, Enrolment, Host
from agents.protocol import EnrolAnswer, EnrolRequest
from apikit.errors import DomainError, InvalidInput
from catalogue.models import GpuModel, Zone
from tenants.models import Organization

TOKEN_PREFIX = "gyenrol_"  # noqa: S105 -- the visible beginning of every token, no secret
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
_PUBLIC_KEY = re.compile(r"[0-9a-f]{64}", re.ASCII)
_LISTS = ("gpu_uuids", "pci_ids")
_TEXTS = ("machine_id_hash", "dmi_uuid")


class TokenRefused(DomainError):
    slug = "unauthenticated"
    title = "The enrolment token is not good"
    status = 401


class NameTaken(DomainError):
    slug = "host-name-taken"
    title = "Another machine bears this name"


class KeyTaken(DomainError):
    slug = "host-key-taken"
    title = "This key belongs to a host already"


class SimulatedRefused(DomainError):
    slug = "simulated-hardware-refused"
    title = "Simulated hardware stands only in a simulated region"
    status = 422


@transaction.atomic
def invite(
    *,
    organization: Organization,
    zone: str,
    name: str,
    access: str,
    created_by: str,
    at: datetime,
    gpus: Mapping[str, int] | None = None,
) -> tuple[Enrolment, str]:
    """Make a one-time token; return its row and its text, which is shown once and not stored.

    gpus: what the owner says is in the machine, {model slug: count}; it is checked against what is found. Raises
    InvalidInput.
    """
    faults = []
    found_zone = Zone.objects.filter(slug=zone).first()
    if found_zone is None:
        faults.append({"pointer": "/zone", "code": "bad_value", "detail": "There is no such zone."})
    if not _NAME.fullmatch(name):
        detail = "A name has 1 to 63 lower case letters, digits and hyphens, and begins and ends with no hyphen."
        faults.append({"pointer": "/name", "code": "bad_name", "detail": detail})
    if access not in Host.Access.values:
        detail = f"One of {', '.join(Host.Access.values)}."
        faults.append({"pointer": "/access", "code": "bad_value", "detail": detail})
    declared = dict(gpus or {})
    unknown = set(declared) - set(GpuModel.objects.filter(slug__in=declared).values_list("slug", flat=True))
    faults += [
        {"pointer": f"/gpus/{slug[:40]}", "code": "bad_value", "detail": "There is no such GPU model."}
        for slug in sorted(unknown)
    ]
    if faults or found_zone is None:
        raise InvalidInput.of(faults)
    token = TOKEN_PREFIX + secrets.token_hex(16)
    enrolment = Enrolment.objects.create(
        organization=organization,
        zone=found_zone,
        name=name,
        access=access,
        declared={"gpus": declared} if declared else {},
        token_sha256=_hash(token),
        created_by=created_by[:80],
        created_at=at,
        expires_at=at + timedelta(seconds=settings.ENROLMENT_TOKEN_VALID_S),
    )
    return enrolment, token


@transaction.atomic
def revoke(*, enrolment: Enrolment, at: datetime) -> None:
    """Make the token worthless; one that was used or revoked stays as it is."""
    Enrolment.objects.filter(pk=enrolment.pk, used_at__isnull=True, revoked_at__isnull=True).update(revoked_at=at)


@transaction.atomic
def enrol(*, request: EnrolRequest, at: datetime) -> EnrolAnswer:
    """Register the machine's keys and burn its token; return its id and the keys to pin.

    The same token with the same key again gives the same answer, since an answer may be lost on its way. A machine that
    lost its disk comes back under its name, if it is the same board; another machine with that name is refused. A GPU
    that a live host has already, puts both in quarantine.

    Raises TokenRefused, InvalidInput (keys that are none), NameTaken, KeyTaken, SimulatedRefused.
    """
    _check_keys(request)
    enrolment = _usable(request, at=at)
    if enrolment.host is not None:
        return _answer(enrolment.host)
    _check_simulated(enrolment, simulated=request.simulated)
    key_id = signing.key_id(request.signing_key)
    host = _host_of(enrolment, request, at=at)
    if Host.objects.filter(key_id=key_id).exclude(pk=host.pk).exists():
        raise KeyTaken("Every machine makes a key of its own; this one was copied. Delete the agent's state folder.")
    host.signing_key, host.sealing_key, host.key_id = request.signing_key, request.sealing_key, key_id
    host.save()
    Enrolment.objects.filter(pk=enrolment.pk).update(used_at=at, host=host)
    host_events.record(host_id=host.pk, kind="host.enrolled", at=at, by=enrolment.created_by, facts={"key": key_id})
    quarantine_shared_gpus(host_id=host.pk, uuids=host.fingerprint.get("gpu_uuids", []), at=at)
    return _answer(host)


def quarantine_shared_gpus(*, host_id: Any, uuids: list[str], at: datetime) -> bool:
    """Quarantine this host and every other live one that has one of these GPUs; return whether there was any.

    One GPU cannot be in two machines: one of them lies, or was cloned, or the card was moved without its old host
    having left. A person decides.
    """
    shared = Device.objects.filter(uuid__in=uuids, present=True).exclude(host=host_id)
    others = shared.exclude(host__state=Host.State.RETIRED).values_list("host", flat=True).distinct()
    found = sorted({host_id, *others}) if others else []
    for suspect in found:
        host_life.quarantine(host_id=suspect, reason="A GPU of it is reported by two live hosts.", at=at)
    return bool(found)


def _check_keys(request: EnrolRequest) -> None:
    faults = [
        {"pointer": f"/{name}", "code": "bad_value", "detail": "A public key is 64 lower case hexadecimal digits."}
        for name in ("signing_key", "sealing_key")
        if not _PUBLIC_KEY.fullmatch(getattr(request, name))
    ]
    if faults:
        raise InvalidInput.of(faults)


def _usable(request: EnrolRequest, *, at: datetime) -> Enrolment:
    """Return the token's row, locked. One message for every reason: a token's state is nobody's business."""
    enrolment = (
        Enrolment.objects.select_for_update(of=("self",))
        .select_related("host", "organization", "zone__region")
        .filter(token_sha256=_hash(request.token))
        .first()
    )
    refused = TokenRefused("The token is unknown, used or over. The owner makes a new one.")
    if enrolment is None or enrolment.revoked_at is not None or enrolment.expires_at <= at:
        raise refused
    if enrolment.organization.banned_at is not None:
        raise refused
    if enrolment.host is not None and enrolment.host.signing_key != request.signing_key:
        raise refused
    return enrolment


def _check_simulated(enrolment: Enrolment, *, simulated: bool) -> None:
    if simulated != enrolment.zone.region.simulated:
        kind, place = ("Simulated", "a real") if simulated else ("Real", "a simulated")
        raise SimulatedRefused(f"{kind} hardware cannot stand in {place} region.", region=enrolment.zone.region.slug)
    if simulated and not settings.ALLOW_SIMULATED:
        raise SimulatedRefused("This installation takes no simulated hardware (ALLOW_SIMULATED).")


def _host_of(enrolment: Enrolment, request: EnrolRequest, *, at: datetime) -> Host:
    """Return the row to use: the old one for the same board, or a new one. It is saved by the caller."""
    fingerprint = _fingerprint(request.fingerprint)
    same_name = Host.objects.select_for_update().filter(owner=enrolment.organization, name=enrolment.name)
    host = same_name.exclude(state=Host.State.RETIRED).first()
    if host is None:
        return Host(
            owner=enrolment.organization,
            name=enrolment.name,
            zone=enrolment.zone,
            access=enrolment.access,
            declared=enrolment.declared,
            simulated=request.simulated,
            fingerprint=fingerprint,
            agent_version=request.version[:32],
            state_since=at,
            enrolled_at=at,
        )
    if not _same_machine(host, fingerprint, simulated=request.simulated):
        raise NameTaken(f"{enrolment.name} is another machine. Retire it, or choose another name.")
    if host.simulated != request.simulated or host.zone_id != enrolment.zone_id:
        raise NameTaken(f"{enrolment.name} stands in another zone. Retire it first.")
    host.boot_no = host.last_seq = host.last_created = 0
    host.instance, host.inventory_hash, host.enrolled_at = "", "", at
    host.fingerprint = fingerprint
    return host


def _same_machine(host: Host, fingerprint: Mapping[str, Any], *, simulated: bool) -> bool:
    """Tell by board, GPUs or system id. Simulated hosts on one machine share the first and the last."""
    names = ("gpu_uuids",) if simulated else ("dmi_uuid", "gpu_uuids", "machine_id_hash")
    return any(fingerprint.get(name) and fingerprint[name] == host.fingerprint.get(name) for name in names)


def _fingerprint(sent: Mapping[str, Any]) -> dict[str, Any]:
    """Keep what is known by name and of its kind, cut to a size."""
    kept: dict[str, Any] = {name: str(sent[name])[:128] for name in _TEXTS if isinstance(sent.get(name), str)}
    for name in _LISTS:
        if isinstance(sent.get(name), list):
            kept[name] = [item[:64] for item in sent[name][:64] if isinstance(item, str)]
    return kept


def _answer(host: Host) -> EnrolAnswer:
    return EnrolAnswer(
        host=host.public_id, key=host.key_id, control_keys=signing.control_keys(),
        release_key=settings.AGENT_RELEASE_KEY,
    )  # fmt: skip


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode(errors="replace")).hexdigest()
