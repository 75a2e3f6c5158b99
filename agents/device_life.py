"""What an operator or owner does to a single device; what the device itself does is decided in `health`."""

from datetime import datetime
from uuid import UUID

from django.db import transaction

from agents import host_events, host_life, quiet
from agents.models import Device
from audit import log


@transaction.atomic
def cordon(*, device_id: UUID, reason: str, by: str, at: datetime) -> Device:
    """Let the device to nobody new; what runs on it goes on."""
    return _set(device_id, "device.cordoned", {"cordoned": True}, reason=reason, by=by, at=at)


@transaction.atomic
def uncordon(*, device_id: UUID, reason: str, by: str, at: datetime) -> Device:
    return _set(device_id, "device.uncordoned", {"cordoned": False}, reason=reason, by=by, at=at)


@transaction.atomic
def fail(*, device_id: UUID, reason: str, by: str, at: datetime) -> Device:
    """Take the device out until an operator restores it; leases on it are moved."""
    changes = {"health": Device.Health.FAILED, "health_reason": reason[:300], "health_since": at}
    return _set(device_id, "device.failed", changes, reason=reason, by=by, at=at)


@transaction.atomic
def restore(*, device_id: UUID, reason: str, by: str, at: datetime) -> Device:
    """Forget what was held against the device and have it tested: it serves again when it passes."""
    changes = {
        "health": Device.Health.SELFTEST, "health_reason": reason[:300], "health_since": at, "evidence": {},
    }  # fmt: skip
    return _set(device_id, "device.restored", changes, reason=reason, by=by, at=at)


def _set(device_id: UUID, kind: str, changes: dict[str, object], *, reason: str, by: str, at: datetime) -> Device:
    host = host_life.lock(Device.objects.values_list("host", flat=True).get(pk=device_id))
    device = Device.objects.get(pk=device_id)
    if all(getattr(device, name) == value for name, value in changes.items()):
        return device
    before = {"health": device.health, "cordoned": device.cordoned}
    for name, value in changes.items():
        setattr(device, name, value)
    device.save(update_fields=list(changes))
    quiet.forget(host.pk)
    host_events.record(host_id=host.pk, device_id=device.pk, kind=kind, detail=reason, by=by, at=at)
    after = {"health": device.health, "cordoned": device.cordoned}
    log.record(
        actor=by, organization=host.owner_id, action=kind, target=device.public_id, before=before, after=after,
        why=reason, at=at,
    )  # fmt: skip
    return device
