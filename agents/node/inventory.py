"""What this machine is: the document that the server hashes, keeps and compares (see the end of agents/protocol.py)."""

import os
import platform
import shutil
import socket
from pathlib import Path
from typing import Any

from agents.node.drivers import Driver
from agents.node.engines import Engine, EngineError

MIB = 1024 * 1024
# Free space moves all the time; the document changes only when it moves by this much.
DISK_STEP_MIB = 8 * 1024


def machine(state: Path) -> dict[str, Any]:
    """Return the figures of CPU, memory and disk of the real machine, in MiB."""
    disk = shutil.disk_usage(state)
    return {
        "cpu_count": len(os.sched_getaffinity(0)),
        "cpu_model": _cpu_model(),
        "ram_mib": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // MIB,
        "disk_mib": disk.total // MIB,
        "disk_free_mib": disk.free // MIB // DISK_STEP_MIB * DISK_STEP_MIB,
    }


def document(
    *, driver: Driver, engine: Engine, figures: dict[str, Any], ports: tuple[int, int] | None, name: str
) -> dict[str, Any]:
    """Return the whole inventory. figures: `machine`'s, or those that a simulated host was given."""
    facts = driver.inventory()
    try:
        version = engine.version()
    except EngineError:
        version = ""
    return {
        "hostname": name or socket.gethostname(),
        "os": _os_name(),
        "kernel": platform.release(),
        "simulated": driver.simulated,
        "engine": {"name": engine.name, "version": version, "disk_quota": engine.disk_quota},
        "driver_version": facts.driver_version,
        "cuda_version": facts.cuda_version,
        **figures,
        "ports": list(ports) if ports else None,
        "gpus": facts.gpus,
        "toolkit": facts.toolkit,
    }


def fingerprint(driver: Driver) -> dict[str, Any]:
    """Return what tells this machine from another one; the ids of the machine itself only as hashes."""
    facts = driver.inventory()
    return {
        "machine_id_hash": _hash_of(Path("/etc/machine-id")),
        "dmi_uuid": _hash_of(Path("/sys/class/dmi/id/product_uuid")),
        "gpu_uuids": [gpu["uuid"] for gpu in facts.gpus],
        "pci_ids": [gpu["pci_device_id"] for gpu in facts.gpus],
    }


def _hash_of(path: Path) -> str:
    import hashlib

    try:
        text = path.read_text().strip()
    except OSError:
        return ""
    return hashlib.sha256(f"gpuyard {text}".encode()).hexdigest() if text else ""


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        return ""
    return platform.machine()


def _os_name() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "Linux")
    except OSError:
        return "Linux"
