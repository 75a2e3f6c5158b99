"""AMD GPUs, as the amdgpu kernel driver shows them in sysfs: no library, no program, nothing that can hang for long.

Read are, below /sys/class/drm/card*/device: vendor, device, unique_id, mem_info_vram_total and _used (bytes),
gpu_busy_percent, current_link_width, max_link_width, pcie_replay_count, and of hwmon temp1_input (millidegrees) and
power1_average or power1_input, power1_cap (microwatts). Sources: docs.kernel.org, "AMDGPU Driver Information",
"GPU Power/Thermal Controls and Monitoring" and "Misc AMDGPU driver information". What a card does not have is None.

Not tried on a real card: tests read trees that were written after these documents. A container gets /dev/kfd and the
render nodes of its cards (AGENT.md section 16).
"""

import re
from pathlib import Path
from typing import Any

from agents.node.drivers import Facts

VENDOR = "0x1002"
_CARD = re.compile(r"card[0-9]+")


class AmdDriver:
    """The Driver of AMD GPUs. root: of the file system that is read."""

    name = "amd"
    simulated = False

    def __init__(self, *, root: Path = Path("/")) -> None:
        self._root = root

    def inventory(self) -> Facts:
        gpus = []
        for index, card in enumerate(self._cards()):
            vram = _number(card / "mem_info_vram_total")
            gpus.append(
                {
                    "uuid": _uuid(card),
                    "index": index,
                    "name": _text(card / "product_name") or f"AMD GPU {_text(card / 'device')}",
                    "pci_device_id": f"1002:{(_text(card / 'device') or '').removeprefix('0x')}",
                    "pci_bus_id": card.resolve().name,
                    "memory_mib": None if vram is None else vram >> 20,
                    "compute_capability": None,
                    "nvlink_peers": [],
                    "mig": None,
                    "vbios": _text(card / "vbios_version"),
                    "serial": _text(card / "serial_number"),
                }
            )
        version = _text(self._root / "sys/module/amdgpu/version")
        return Facts(gpus=gpus, driver_version=version, cuda_version=None)

    def sample(self) -> list[dict[str, Any]]:
        return [
            {"uuid": _uuid(card), "state": "ok", "age_s": 0, "readings": _readings(card), "xids": []}
            for card in self._cards()
        ]

    def taken(self) -> None:
        """There is nothing that must be told only once: Xids are NVIDIA's."""

    def add_xid(self, uuid: str, xid: int) -> None:
        """An Xid is NVIDIA's, and none of these cards can have one."""

    def conditions(self) -> list[str]:
        return [] if self._cards() else ["driver_missing"]

    def state(self) -> str:
        return ",".join(self.conditions()) or "ok"

    def environment(self, devices: list[str]) -> dict[str, str]:
        return {}

    def device_requests(self, devices: list[str]) -> list[dict[str, Any]]:
        return []

    def device_nodes(self, devices: list[str]) -> list[str]:
        nodes = [f"/dev/dri/{node}" for card in self._cards() if _uuid(card) in devices for node in _render(card)]
        return ["/dev/kfd", *nodes] if nodes else []

    def visible_command(self) -> list[str]:
        return ["ls", "/dev/dri"]

    def visible_in(self, output: str) -> list[str]:
        there = set(output.split())
        return [_uuid(card) for card in self._cards() if there & set(_render(card))]

    def figures(self, uuid: str, *, seed: str, within_s: float) -> dict[str, int]:
        """Nothing is measured: that takes a program for these devices, and the platform has none."""
        return {}

    def overwrite(self, uuid: str, *, within_s: float) -> int | None:
        """There are no means: see `figures`."""
        return None

    def close(self) -> None:
        """Nothing is held."""

    def _cards(self) -> list[Path]:
        """Return the device folders of all AMD cards, in the order of their bus addresses."""
        folder = self._root / "sys/class/drm"
        cards = [card / "device" for card in folder.iterdir() if _CARD.fullmatch(card.name)] if folder.is_dir() else []
        ours = [card for card in cards if _text(card / "vendor") == VENDOR]
        return sorted(ours, key=lambda card: card.resolve().name)


def _uuid(card: Path) -> str:
    """Return the card's own id; where it has none, its place in the machine: then it is only as good as that."""
    return f"AMD-{_text(card / 'unique_id') or card.resolve().name}"


def _render(card: Path) -> list[str]:
    folder = card / "drm"
    return sorted(n.name for n in folder.iterdir() if n.name.startswith("renderD")) if folder.is_dir() else []


def _readings(card: Path) -> dict[str, Any]:
    hwmon = next(iter(sorted((card / "hwmon").glob("hwmon*"))), card / "hwmon" / "none")
    power = _number(hwmon / "power1_average")
    figures = {
        "temperature_c": _scaled(_number(hwmon / "temp1_input"), 1000),
        "power_mw": _scaled(power if power is not None else _number(hwmon / "power1_input"), 1000),
        "power_limit_mw": _scaled(_number(hwmon / "power1_cap"), 1000),
        "utilization_percent": _number(card / "gpu_busy_percent"),
        "memory_used_mib": _scaled(_number(card / "mem_info_vram_used"), 1 << 20),
        "memory_total_mib": _scaled(_number(card / "mem_info_vram_total"), 1 << 20),
        "pcie_width": _number(card / "current_link_width"),
        "pcie_width_max": _number(card / "max_link_width"),
        "pcie_replays": _number(card / "pcie_replay_count"),
    }
    return {name: value for name, value in figures.items() if value is not None}


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip() or None
    except OSError:
        return None


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text is not None and text.isdecimal() else None


def _scaled(value: int | None, by: int) -> int | None:
    return None if value is None else value // by
