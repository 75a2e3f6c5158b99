"""Simulated devices: a pool for demonstrations and tests. Everything they report says that they are simulated.

Devices come from catalogue slugs ("A100_80G x8"), with UUIDs that stay the same for a state folder. A scenario file
makes them fail: {"devices": {"0": {"state": "lost", "readings": {"temperature_c": 91}, "xids": [79]}}, "conditions":
[..]}, read again whenever it changes. Each list of Xids is told once per change of the file.
"""

import hashlib
import json
import re
import uuid
from importlib import resources
from pathlib import Path
from typing import Any

from agents.node.drivers import DeviceFault, Facts

_SPEC = re.compile(r"\s*([A-Za-z0-9_.-]+)\s*(?:[x×*]\s*([0-9]{1,3}))?\s*\Z")
MAX_DEVICES = 64
VISIBLE = "GPUYARD_GPU_UUIDS"


class BadSpec(ValueError):
    """The simulated devices asked for cannot be made; the sentence says which and what would be right."""


def read_specs(texts: list[str]) -> list[dict[str, Any]]:
    """Return one model row (sim_models.json) per device that "SLUG xN" texts ask for. Raises BadSpec."""
    models = json.loads(resources.files("agents.node").joinpath("data/sim_models.json").read_text())
    rows: list[dict[str, Any]] = []
    for text in ",".join(texts).split(","):
        match = _SPEC.match(text)
        if match is None:
            raise BadSpec(f"{text!r:.60} is not of the form 'A100_80G x8'")
        slug = match[1].upper().replace("-", "_")
        if slug not in models:
            raise BadSpec(f"no model {slug!r:.60} in the catalogue")
        rows += [{"slug": slug, **models[slug]}] * int(match[2] or 1)
    if not 0 < len(rows) <= MAX_DEVICES:
        raise BadSpec(f"between 1 and {MAX_DEVICES} devices, not {len(rows)}")
    return rows


def simulated_figures(row: dict[str, Any]) -> dict[str, float]:
    """Return what a device of this model (a row of sim_models.json) is simulated to reach."""
    found: dict[str, float] = {}
    if "memory_bandwidth_gb_s" in row:
        found["memory_mib_per_s"] = row["memory_bandwidth_gb_s"] * 1e9 / 2**20 * 0.82
    if "fp16_tensor_dense_tflops" in row:
        found["fp16_gflops"] = row["fp16_tensor_dense_tflops"] * 1000 * 0.7
    if "pcie_gen" in row:
        found["h2d_mib_per_s"] = found["d2h_mib_per_s"] = 3_000 * 2.0 ** (row["pcie_gen"] - 1)
    if row["memory_mib"]:
        found["memory_tested_mib"] = row["memory_mib"] * 0.88
    return found


class SimDriver:
    """The Driver of simulated devices. seed: text that stays the same for this host; UUIDs are made from it."""

    name = "sim"
    simulated = True

    def __init__(
        self,
        *,
        specs: list[str],
        seed: str,
        driver_version: str | None = "570.86.15",
        cuda_version: str | None = "12.8",
        scenario: Path | None = None,
    ) -> None:
        self._rows = read_specs(specs)
        self._seed = uuid.uuid5(uuid.NAMESPACE_OID, f"gpuyard simulated devices of {seed}")
        nvidia = all(row["vendor"] == "nvidia" for row in self._rows)
        self._driver_version = driver_version if nvidia else None
        self._cuda_version = cuda_version if nvidia else None
        self._scenario_path = scenario
        self._scenario: dict[str, Any] = {}
        self._scenario_mtime = 0
        self._xids: dict[int, list[int]] = {}
        self._told: set[int] = set()

    def uuid_of(self, index: int) -> str:
        return f"SIM-{uuid.uuid5(self._seed, str(index))}"

    def inventory(self) -> Facts:
        uuids = [self.uuid_of(index) for index in range(len(self._rows))]
        gpus = []
        for index, row in enumerate(self._rows):
            linked = [other for i, other in enumerate(uuids) if i != index and self._rows[i]["slug"] == row["slug"]]
            gpus.append(
                {
                    "uuid": uuids[index],
                    "index": index,
                    "name": row["name"],
                    "slug": row["slug"],
                    "simulated": True,
                    "pci_device_id": row["pci_device_id"],
                    "pci_bus_id": f"0000:{index + 1:02x}:00.0",
                    "memory_mib": row["memory_mib"],
                    "compute_capability": row["compute_capability"],
                    "nvlink_peers": linked if row["nvlink"] else [],
                    "mig": None,
                    "vbios": None,
                    "serial": None,
                }
            )
        return Facts(gpus=gpus, driver_version=self._driver_version, cuda_version=self._cuda_version)

    def sample(self) -> list[dict[str, Any]]:
        self._read_scenario()
        faults = self._scenario.get("devices", {})
        reports = []
        for index, row in enumerate(self._rows):
            fault = faults.get(str(index), {})
            state = str(fault.get("state", "ok"))
            readings: dict[str, Any] = {}
            if state != "lost":
                readings = {"temperature_c": 35, "utilization_percent": 0, "memory_total_mib": row["memory_mib"]}
                readings |= {"memory_used_mib": 0, **fault.get("readings", {})}
            xids = list(self._xids.get(index, ()))
            if xids:
                self._told.add(index)
            reports.append(
                {"uuid": self.uuid_of(index), "state": state, "age_s": 0, "readings": readings, "xids": xids}
            )
        return reports

    def taken(self) -> None:
        for index in self._told:
            self._xids.pop(index, None)
        self._told.clear()

    def add_xid(self, uuid: str, xid: int) -> None:
        index = next((i for i in range(len(self._rows)) if self.uuid_of(i) == uuid), None)
        if index is not None:
            self._xids.setdefault(index, []).append(xid)

    def conditions(self) -> list[str]:
        return [str(name) for name in self._scenario.get("conditions", ())]

    def state(self) -> str:
        return "simulated"

    def environment(self, devices: list[str]) -> dict[str, str]:
        listed = ",".join(devices)
        return {VISIBLE: listed, "CUDA_VISIBLE_DEVICES": listed, "GPUYARD_SIMULATED": "1"}

    def device_requests(self, devices: list[str]) -> list[dict[str, Any]]:
        return []

    def device_nodes(self, devices: list[str]) -> list[str]:
        return []

    def visible_command(self) -> list[str]:
        return ["env"]  # in every image that has a shell; printenv is not

    def visible_in(self, output: str) -> list[str]:
        lines = (line.partition("=") for line in output.splitlines())
        listed = next((value for name, _, value in lines if name == VISIBLE), "")
        return [part for part in listed.strip().split(",") if part]

    def figures(self, uuid: str, *, seed: str, within_s: float) -> dict[str, int]:
        """Nothing is measured, and nothing takes time: a share of the published figures, a little other each time.

        A model whose figures nobody published has none here either. The scenario's `figures` of a device come on top.
        """
        self._read_scenario()
        index = next(i for i in range(len(self._rows)) if self.uuid_of(i) == uuid)
        fault = self._scenario.get("devices", {}).get(str(index), {})
        if "memory" in fault:
            raise DeviceFault(str(fault["memory"]))
        wobble = 0.98 + 0.04 * hashlib.sha256(f"{uuid} {seed}".encode()).digest()[0] / 255
        found = simulated_figures(self._rows[index])
        scripted: dict[str, int] = fault.get("figures", {})
        return {name: int(value * wobble) for name, value in found.items()} | scripted

    def overwrite(self, uuid: str, *, within_s: float) -> int | None:
        """There is no memory."""
        return None

    def close(self) -> None:
        """Nothing is held."""

    def _read_scenario(self) -> None:
        path = self._scenario_path
        try:
            mtime = path.stat().st_mtime_ns if path else 0
        except FileNotFoundError:
            mtime = 0
        if mtime == self._scenario_mtime:
            return
        self._scenario_mtime = mtime
        self._scenario = json.loads(path.read_text()) if path and mtime else {}
        for index, fault in self._scenario.get("devices", {}).items():
            self._xids[int(index)] = [int(xid) for xid in fault.get("xids", ())]
