"""What a host says that it is: the inventory document becomes columns of the host and rows of devices.

A GPU that is not named well enough has no model and is not offered. The document comes only when its
hash has changed. New or vanished GPUs, another board address, VBIOS or memory
size make a verified host unverified at once, with the reason shown.
"""

from collections.abc import Mapping
from datetime import datetime
from ipaddress import ip_address
from typing import Any

from agents import enrolment, host_events, host_life, port_check
from agents.models import Device, Host
from agents.protocol import digest
from catalogue import matching
from catalogue.models import GpuModel

GPU_LIMIT = 64
_INTEGERS = {"cpu_count": 4096, "ram_mib": 2**32, "disk_mib": 2**40}
_HARDWARE = ("uuid", "pci_bus_id", "vbios", "memory_mib")  # of a GPU: another value is another machine


def apply(
    *, host: Host, document: Mapping[str, Any], stated_hash: str, peer: str, proven_at: datetime, at: datetime
) -> str | None:
    """Take the document in; return why it was not accepted, or None. The caller holds the host's lock.

    peer: the address that the request came from; used where the document names none. proven_at: until when it is
    proven that a GPU was there which is not there now.
    """
    if digest(document) != stated_hash:
        return "The inventory does not have the hash that was stated for it."
    gpus = _gpus(document)
    if isinstance(gpus, str):
        return gpus
    if bool(document.get("simulated")) != host.simulated:
        return "Simulated or not is settled when a host enrols."
    changed = _hardware_change(host.inventory, gpus) if host.inventory else ""
    _write_host(host, document, stated_hash, peer)
    _write_devices(host, gpus, proven_at, at)
    if enrolment.quarantine_shared_gpus(host_id=host.pk, uuids=[gpu["uuid"] for gpu in gpus], at=at):
        host.refresh_from_db(fields=["state"])
    if changed:
        host_events.record(host_id=host.pk, kind="host.hardware_changed", detail=changed, at=at)
        if host.state in {Host.State.ONLINE, Host.State.SUSPECT}:
            host_life.move(host, Host.State.UNVERIFIED, at=at, reason=changed)
        Host.objects.filter(pk=host.pk).update(tier=Host.Tier.UNVERIFIED, verified_at=None, level="", level_at=None)
        host.tier = Host.Tier.UNVERIFIED
    return None


def _gpus(document: Mapping[str, Any]) -> list[dict[str, Any]] | str:
    """Return the GPUs that can be read, each with a UUID of its own, or what is wrong with the list."""
    listed = document.get("gpus")
    if not isinstance(listed, list) or len(listed) > GPU_LIMIT:
        return f"The inventory must list at most {GPU_LIMIT} GPUs."
    seen: set[str] = set()
    for gpu in listed:
        uuid = gpu.get("uuid") if isinstance(gpu, dict) else None
        if not isinstance(uuid, str) or not 0 < len(uuid) <= 64 or uuid in seen:
            return "Each GPU has a UUID of its own, of at most 64 characters."
        seen.add(uuid)
    return listed


def _hardware_change(before: Mapping[str, Any], gpus: list[dict[str, Any]]) -> str:
    old = {gpu["uuid"]: gpu for gpu in before.get("gpus", [])}
    new = {gpu["uuid"]: gpu for gpu in gpus}
    if gone := sorted(old.keys() - new.keys()):
        return f"GPU {', '.join(gone)} is not there any more."
    if added := sorted(new.keys() - old.keys()):
        return f"GPU {', '.join(added)} is new."
    for uuid, gpu in new.items():
        moved = [name for name in _HARDWARE if gpu.get(name) != old[uuid].get(name)]
        if moved:
            return f"GPU {uuid} has another {' and '.join(moved)}."
    return ""


def _write_host(host: Host, document: Mapping[str, Any], stated_hash: str, peer: str) -> None:
    cpu_count, ram_mib, disk_mib = (_integer(document.get(name), most) for name, most in _INTEGERS.items())
    engine = document.get("engine")
    named = [_text(engine.get(name), 32) for name in ("name", "version")] if isinstance(engine, dict) else []
    was = host.address, host.inventory.get("ports")
    host.inventory, host.inventory_hash = dict(document), stated_hash
    host.cpu_milli, host.ram_mib, host.disk_mib = cpu_count * 1000, ram_mib, disk_mib
    host.engine = " ".join(part for part in named if part)[:32]
    host.driver_version = _text(document.get("driver_version"), 32)
    host.cuda_version = _text(document.get("cuda_version"), 16)
    host.address = _address(document.get("address")) or peer[:64]
    host.save(
        update_fields=[
            "inventory", "inventory_hash", "cpu_milli", "ram_mib", "disk_mib", "engine", "driver_version",
            "cuda_version", "address",
        ]
    )  # fmt: skip
    if was != (host.address, document.get("ports")):
        port_check.forget(host)


def _address(value: Any) -> str:
    """Return an IP address as text, "" for anything else: other hosts put it into rules of their firewalls.

    One with a zone (fe80::1%eth0) means nothing elsewhere, and its zone could be any text.
    """
    try:
        return "" if "%" in str(value) else str(ip_address(_text(value, 64)))
    except ValueError:
        return ""


def _write_devices(host: Host, gpus: list[dict[str, Any]], proven_at: datetime, at: datetime) -> None:
    there = {device.uuid: device for device in host.devices.all()}
    cliques = _cliques(gpus)
    for position, gpu in enumerate(gpus):
        device = there.pop(gpu["uuid"], None) or Device(host=host, uuid=gpu["uuid"], health_since=at)
        device.index = _integer(gpu.get("index"), GPU_LIMIT * 4) if "index" in gpu else position
        device.model = model_of(gpu, simulated=host.simulated)
        device.reported_name = _text(gpu.get("name"), 100)
        device.pci_device_id = _text(gpu.get("pci_device_id"), 16)
        device.pci_bus_id = _text(gpu.get("pci_bus_id"), 32)
        device.memory_mib = _integer(gpu.get("memory_mib"), 2**31) or None
        device.nvlink_clique = cliques.get(gpu["uuid"])
        if not device.present:
            # It came back: nothing is known of it until it has passed a self-test.
            device.health, device.health_reason, device.health_since = Device.Health.SELFTEST, "Is back.", at
        device.present = True
        device.save()
    for device in there.values():
        if device.present:
            reason = "The driver does not list it any more."
            Device.objects.filter(pk=device.pk).update(
                present=False, health=Device.Health.LOST, health_reason=reason, health_since=proven_at
            )
            host_events.record(host_id=host.pk, device_id=device.pk, kind="device.lost", detail=reason, at=at)


def model_of(gpu: Mapping[str, Any], *, simulated: bool) -> GpuModel | None:
    """Return the catalogue's model of a reported GPU, or None. Only a simulated one may name its slug itself."""
    if simulated:
        return GpuModel.objects.filter(slug=_text(gpu.get("slug"), 40)).first()
    return matching.match(
        driver_name=_text(gpu.get("name"), 100),
        pci_id=_text(gpu.get("pci_device_id"), 16),
        memory_mib=_integer(gpu.get("memory_mib"), 2**31) or None,
    )


def _cliques(gpus: list[dict[str, Any]]) -> dict[str, int]:
    """Return for each GPU with NVLink peers the number of its clique: GPUs that reach each other, counted from 0."""
    peers = {
        gpu["uuid"]: {peer for peer in gpu["nvlink_peers"] if isinstance(peer, str)}
        for gpu in gpus
        if isinstance(gpu.get("nvlink_peers"), list)
    }
    cliques: dict[str, int] = {}
    for uuid in peers:
        if uuid in cliques or not peers[uuid] & peers.keys():
            continue
        number, ahead = len(set(cliques.values())), [uuid]
        while ahead:
            here = ahead.pop()
            if here in peers and here not in cliques:
                cliques[here] = number
                ahead += sorted(peers[here])
    return cliques


def shares(host: Host, gpus: int) -> dict[str, int]:
    """Return the fixed share per GPU that a lease gets when it names none: 95 % of the machine, in equal parts.

    Of the disk, what volumes have left of it.
    """
    figures = {"cpu_milli": host.cpu_milli, "ram_mib": host.ram_mib}
    figures["disk_mib"] = max(0, host.disk_mib - host.volumes_mib)
    return {f"{name}_per_gpu": figure * 95 // 100 // max(gpus, 1) for name, figure in figures.items()}


def _integer(value: Any, most: int) -> int:
    return min(value, most) if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _text(value: Any, most: int) -> str:
    return value[:most] if isinstance(value, str) else ""
