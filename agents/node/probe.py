"""The process that talks to NVIDIA's library, and may die of it: started by exec, it writes JSON lines and ends.

    {"kind": "inventory", "driver_version", "cuda_version", "gpus": [...]}
    {"kind": "sample", "devices": [DeviceReport without age]}
    {"kind": "event", "uuid", "xid"}
    {"kind": "bye", "reason", "code"}          code: NVML's, 0 for an orderly end

Each figure fails alone: what the driver does not support is left out, never 0. Nothing here keeps a deadline: the
parent does. It ends when the kernel module's version changes, at SIGTERM, over 64 MiB, or after a day.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml

from agents.node.nvml import FAST, SLOW, Absent, Figures, GpuFault, ask, code_of, identity, maybe, text

FAST_S = 15.0
SLOW_S = 600.0
LIFE_S = 24 * 3600
RSS_LIMIT_BYTES = 64 * 1024 * 1024
EVENT_WAIT_MS = 1000
XID_EVENT = 8  # nvmlEventTypeXidCriticalError
DRIVER_FILE = Path(os.environ.get("GPUYARD_PROC", "/proc")) / "driver/nvidia/version"


class Probe:
    """NVML opened once; handles by UUID, since the order of indexes changes over boots."""

    def __init__(self, write: Callable[[dict[str, Any]], None]) -> None:
        self._write = write
        self.uuids: list[str] = []
        self._slow: dict[str, Figures] = {}
        self._slow_s = -1e9
        # A function that this driver or device lacks is asked no more until the probe starts anew.
        self._absent: set[tuple[str, int]] = set()

    def inventory(self) -> dict[str, Any]:
        """Return the GPUs that can be opened; a device that fails here is left out, and its neighbours are not."""
        gpus, unreadable = [], []
        for index in range(pynvml.nvmlDeviceGetCount()):
            try:
                gpus.append(identity(index))
            except GpuFault as fault:
                unreadable.append({"index": index, "state": fault.state})
            except (Absent, pynvml.NVMLError):
                unreadable.append({"index": index, "state": "unreadable"})
        self.uuids = [gpu["uuid"] for gpu in gpus]
        cuda = pynvml.nvmlSystemGetCudaDriverVersion_v2()
        return {
            "kind": "inventory",
            "driver_version": text(pynvml.nvmlSystemGetDriverVersion()),
            "cuda_version": f"{cuda // 1000}.{cuda % 1000 // 10}",
            "gpus": gpus,
            "unreadable": unreadable,
        }

    def sample(self, now_s: float) -> dict[str, Any]:
        """Return one report per device of the inventory. Raises NVMLError 18 when the driver was changed."""
        slow_too = now_s - self._slow_s >= SLOW_S
        if slow_too:
            self._slow_s = now_s
        return {"kind": "sample", "devices": [self._report(uuid, slow_too) for uuid in self.uuids]}

    def _report(self, uuid: str, slow_too: bool) -> dict[str, Any]:
        try:
            handle = ask(pynvml.nvmlDeviceGetHandleByUUID, uuid)
            if slow_too:
                self._slow[uuid] = self._read(uuid, handle, SLOW)
            return {
                "uuid": uuid,
                "state": "ok",
                "readings": {**self._slow.get(uuid, {}), **self._read(uuid, handle, FAST)},
            }
        except GpuFault as fault:
            return {"uuid": uuid, "state": fault.state, "readings": {}}
        except Absent:
            return {"uuid": uuid, "state": "lost", "readings": {}}

    def _read(self, uuid: str, handle: Any, wanted: tuple[Callable[[Any], Figures], ...]) -> Figures:
        figures: Figures = {}
        for number, read in enumerate(wanted):
            known = (uuid, number if wanted is FAST else -1 - number)
            if known in self._absent:
                continue
            try:
                figures |= read(handle)
            except Absent:
                self._absent.add(known)
        return figures


class Events:
    """Xids as NVML tells them; where it tells none, the kernel log is all there is."""

    def __init__(self, uuids: list[str]) -> None:
        self._set: Any = None
        try:
            self._set = pynvml.nvmlEventSetCreate()
            for uuid in uuids:
                handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
                if pynvml.nvmlDeviceGetSupportedEventTypes(handle) & XID_EVENT:
                    pynvml.nvmlDeviceRegisterEvents(handle, XID_EVENT, self._set)
        except pynvml.NVMLError:
            self._set = None

    def wait(self, wait_ms: int) -> dict[str, Any] | None:
        """Return one event, or None after `wait_ms`."""
        if self._set is None:
            time.sleep(wait_ms / 1000)
            return None
        try:
            data = pynvml.nvmlEventSetWait_v2(self._set, wait_ms)
        except pynvml.NVMLError as fault:
            if code_of(fault) != pynvml.NVML_ERROR_TIMEOUT:
                time.sleep(wait_ms / 1000)
            return None
        uuid = maybe(lambda: text(pynvml.nvmlDeviceGetUUID(data.device)))
        return {"kind": "event", "uuid": uuid, "xid": int(data.eventData)}


def main() -> int:
    """Write the inventory, then samples and events until an end is due."""
    ended: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: ended.append(1))
    try:
        pynvml.nvmlInitWithFlags(0)
        probe = Probe(write)
        write(probe.inventory())
        events = Events(probe.uuids)
        return _loop(probe, events, ended)
    except pynvml.NVMLError as fault:
        write({"kind": "bye", "reason": str(fault), "code": code_of(fault)})
        return 1


def _loop(probe: Probe, events: Events, ended: list[int]) -> int:
    fast_s = float(os.environ.get("GPUYARD_PROBE_EVERY_S", FAST_S))
    began_s, version, due_s = time.monotonic(), _kernel_driver(), 0.0
    while True:
        now_s = time.monotonic()
        reason = _why_end(ended, version, now_s - began_s)
        if reason:
            write({"kind": "bye", "reason": reason, "code": 0})
            return 0
        if now_s >= due_s:
            write(probe.sample(now_s))
            due_s = now_s + fast_s
        event = events.wait(min(EVENT_WAIT_MS, max(1, int((due_s - time.monotonic()) * 1000))))
        if event is not None:
            write(event)


def _why_end(ended: list[int], version: str, lived_s: float) -> str:
    if ended:
        return "asked to end"
    if _kernel_driver() != version:
        return "the driver was changed"
    if lived_s > LIFE_S:
        return "a day is over"
    with open("/proc/self/statm") as file:
        rss = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return "it has grown too large" if rss > RSS_LIMIT_BYTES else ""


def _kernel_driver() -> str:
    try:
        return DRIVER_FILE.read_text()
    except OSError:
        return ""


def write(message: dict[str, Any]) -> None:
    """Write one line; when nobody reads any more, end."""
    try:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        os._exit(0)


def record() -> int:
    """Print what the library answers as one JSON document: inventory, one full sample, and how long each took."""
    try:
        pynvml.nvmlInitWithFlags(0)
    except pynvml.NVMLError as fault:
        print(json.dumps({"error": str(fault), "code": code_of(fault)}))
        return 1
    probe = Probe(write)
    began_s = time.monotonic()
    inventory = probe.inventory()
    inventoried_s = time.monotonic()
    sample = probe.sample(0.0)
    took = {
        "inventory_ms": round((inventoried_s - began_s) * 1000, 2),
        "sample_ms": round((time.monotonic() - inventoried_s) * 1000, 2),
    }
    print(json.dumps({"inventory": inventory, "sample": sample, "took": took}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
