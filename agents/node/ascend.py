"""Ascend NPUs, by what `npu-smi info` prints: a table whose columns are found by their titles.

Two tables are known: that of the training cards (910 and later, with a column of HBM) and that of the inference cards
(310, 310P, with a column Device and ordinary memory). The form is Huawei's "npu-smi Command Reference"; the tests read
texts of that form as machines have printed them in public documents. It was not tried on a real card.

A card has no UUID there: it is known by its PCI address. A container gets /dev/davinciN and the three managers'
nodes (AGENT.md section 16).
"""

import re
import subprocess
import threading
from collections.abc import Callable
from typing import Any

from agents.node import clocks
from agents.node.drivers import Facts

COMMAND = ["npu-smi", "info"]
SAMPLE_EVERY_S = 15.0
LATE_S = 20.0
COMMAND_TIMEOUT_S = 5.0
MANAGERS = ("/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc")
_VERSION = re.compile(r"npu-smi\s+(\S+)\s+Version:\s*(\S+)")
_USAGE = re.compile(r"([0-9]+)\s*/\s*([0-9]+)")


class AscendDriver:
    """The Driver of Ascend NPUs. ask: returns what `npu-smi info` prints; raises OSError where there is none."""

    name = "ascend"
    simulated = False

    def __init__(self, *, ask: Callable[[], str] | None = None, now_s: Callable[[], float] = clocks.boot_s) -> None:
        self._ask, self._now_s = ask or _run, now_s
        self._lock = threading.Lock()
        self._rows: list[dict[str, Any]] = []
        self._version: str | None = None
        self._sampled_s: float | None = None
        self._fault = ""

    def inventory(self) -> Facts:
        self._look()
        gpus = [
            {
                "uuid": row["uuid"],
                "index": index,
                "name": f"Ascend {row['name']}",
                "pci_device_id": None,
                "pci_bus_id": row["bus_id"],
                "memory_mib": row["readings"].get("memory_total_mib"),
                "compute_capability": None,
                "nvlink_peers": [],
                "mig": None,
                "vbios": None,
                "serial": None,
            }
            for index, row in enumerate(self._rows)
        ]
        return Facts(gpus=gpus, driver_version=self._version, cuda_version=None)

    def sample(self) -> list[dict[str, Any]]:
        self._look()
        with self._lock:
            age_s = 0 if self._sampled_s is None else int(self._now_s() - self._sampled_s)
            late = self._sampled_s is None or age_s > LATE_S
            return [
                {
                    "uuid": row["uuid"],
                    "state": "unresponsive" if late else row["state"],
                    "age_s": age_s,
                    "readings": row["readings"],
                    "xids": [],
                }
                for row in self._rows
            ]

    def taken(self) -> None:
        """There is nothing that must be told only once: Xids are NVIDIA's."""

    def add_xid(self, uuid: str, xid: int) -> None:
        """An Xid is NVIDIA's, and none of these cards can have one."""

    def conditions(self) -> list[str]:
        return [self._fault] if self._fault else []

    def state(self) -> str:
        return self._fault or "ok"

    def environment(self, devices: list[str]) -> dict[str, str]:
        return {}

    def device_requests(self, devices: list[str]) -> list[dict[str, Any]]:
        return []

    def device_nodes(self, devices: list[str]) -> list[str]:
        nodes = [f"/dev/davinci{row['npu']}" for row in self._rows if row["uuid"] in devices]
        return [*nodes, *MANAGERS] if nodes else []

    def visible_command(self) -> list[str]:
        return ["ls", "/dev"]

    def visible_in(self, output: str) -> list[str]:
        there = set(output.split())
        return [row["uuid"] for row in self._rows if f"davinci{row['npu']}" in there]

    def figures(self, uuid: str, *, seed: str, within_s: float) -> dict[str, int]:
        """Nothing is measured: that takes a program for these devices, and the platform has none."""
        return {}

    def overwrite(self, uuid: str, *, within_s: float) -> int | None:
        """There are no means: see `figures`."""
        return None

    def close(self) -> None:
        """Nothing is held."""

    def _look(self) -> None:
        """Ask again when the last answer is old; one that does not come leaves the last one to age."""
        with self._lock:
            if self._sampled_s is not None and self._now_s() - self._sampled_s < SAMPLE_EVERY_S:
                return
            try:
                text = self._ask()
            except FileNotFoundError:
                self._fault = "driver_missing"
                return
            except (OSError, subprocess.SubprocessError):
                self._fault = "driver_unresponsive"
                return
            self._rows, self._version = read(text)
            self._sampled_s, self._fault = self._now_s(), ""


def _run() -> str:
    done = subprocess.run(COMMAND, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=True)
    return done.stdout


def read(text: str) -> tuple[list[dict[str, Any]], str | None]:
    """Return one row per NPU, {npu, name, bus_id, uuid, state, readings}, and the version of the driver."""
    version = _VERSION.search(text)
    rows: list[dict[str, Any]] = []
    titles: list[str] = []
    above: list[str] | None = None
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")] if line.strip().startswith("|") else []
        if len(cells) != 3:
            continue
        if cells[1] in ("Process id", "Health", "Bus-Id"):
            titles, above = ([*titles, cells[2]] if cells[1] != "Process id" else []), None
        elif not titles:
            continue  # the table of processes
        elif above is None:
            above = cells
        else:
            rows.append(_row(above, cells, has_hbm="HBM" in titles[-1]))
            above = None
    return rows, version[2] if version else None


def _row(first: list[str], second: list[str], *, has_hbm: bool) -> dict[str, Any]:
    """Return one NPU from its two lines: `npu name | health | power temp huge pages`, `chip | bus | core% memory`."""
    npu, name = first[0].split()[:2]
    power, temperature = [*first[2].split(), "NA", "NA"][:2]
    usages = _USAGE.findall(second[2])
    used, total = usages[-1] if has_hbm or len(usages) == 1 else usages[0]
    figures = {
        "temperature_c": _integer(temperature),
        "power_mw": None if _decimal(power) is None else round((_decimal(power) or 0) * 1000),
        "utilization_percent": _integer(second[2].split()[0]),
        "memory_used_mib": int(used),
        "memory_total_mib": int(total),
    }
    return {
        "npu": int(npu),
        "name": name,
        "bus_id": second[1].lower(),
        "uuid": f"NPU-{second[1].lower()}",
        "state": "ok" if first[1] in ("OK", "Warning") else "reset_required",
        "readings": {key: value for key, value in figures.items() if value is not None},
    }


def _integer(text: str) -> int | None:
    return int(text) if text.isdecimal() else None


def _decimal(text: str) -> float | None:
    return float(text) if re.fullmatch(r"[0-9]+(\.[0-9]+)?", text) else None
