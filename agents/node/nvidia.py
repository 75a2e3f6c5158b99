"""NVIDIA devices, seen through a probe process that may hang or die without taking the agent with it (AGENT.md 1).

The parent keeps the time: a sample that is later than SAMPLE_LATE_S makes the host `driver_unresponsive`. The probe is
asked to end (SIGTERM) and never killed while it answers: a killed client has frozen a GPU before (dcgm-exporter#84).
One that hangs is killed after that; if it survives (a call into a dead driver), no other is started beside it. The next
starts after 30 s, then after twice as long, up to 10 min.
"""

import json
import os
import select
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agents.node import bytecode, clocks, device_work
from agents.node.drivers import DeviceFault, Facts

SAMPLE_LATE_S = 20.0  # 15 s between two, and 5 s for one
FIRST_INVENTORY_S = 15.0
RESTART_MIN_S, RESTART_MAX_S = 30.0, 600.0
GOOD_LIFE_S = 120.0
LOOK_S, TERM_WAIT_S = 5.0, 5.0
# What NVML says at its start, as conditions of the host.
CONDITION_OF_CODE = {9: "driver_missing", 12: "driver_missing", 18: "driver_mismatch", 4: "driver_no_permission"}
CAUSED_BY_WORK = frozenset({"processes", "memory_used_mib", "utilization_percent", "memory_utilization_percent"})
CDI_FOLDERS = (Path("/etc/cdi"), Path("/var/run/cdi"))


def restart_after_s(short_lives: int, *, first_s: float = RESTART_MIN_S) -> float:
    """Return the wait before the next probe, after so many lives in a row that were short: first_s, then doubling."""
    return min(first_s * 2.0 ** min(short_lives - 1, 16), RESTART_MAX_S) if short_lives else 1.0


class NvidiaDriver:
    """The Driver of NVIDIA GPUs. on_change: called when the server should hear of something at once. compiled: a folder
    for the probe's compiled modules."""

    name = "nvidia"
    simulated = False

    def __init__(
        self,
        *,
        on_change: Callable[[], None] | None = None,
        now_s: Callable[[], float] = clocks.boot_s,
        restart_min_s: float = RESTART_MIN_S,
        compiled: Path | None = None,
    ) -> None:
        self._changed = on_change or (lambda: None)
        self._now_s, self._restart_min_s, self._compiled = now_s, restart_min_s, compiled
        self._lock = threading.Lock()
        self._facts = Facts(gpus=[])
        self._devices: dict[str, dict[str, Any]] = {}
        self._sampled_s: float | None = None
        self._xids: dict[str, list[int]] = {}
        self._sent_xids: dict[str, int] = {}
        self._worked_s: dict[str, float] = {}  # when a child of ours was last on a device
        self._condition = ""
        self._stuck: list[subprocess.Popen[str]] = []
        self._process: subprocess.Popen[str] | None = None
        self._inventoried = threading.Event()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="probe", daemon=True)
        self._thread.start()

    def inventory(self) -> Facts:
        self._inventoried.wait(FIRST_INVENTORY_S)
        with self._lock:
            return self._facts

    def sample(self) -> list[dict[str, Any]]:
        with self._lock:
            now, at = self._now_s(), self._sampled_s
            age_s = 0 if at is None else int(now - at)
            late = at is None or now - at > SAMPLE_LATE_S
            self._sent_xids = {uuid: len(xids) for uuid, xids in self._xids.items()}
            rows = []
            for gpu in self._facts.gpus:
                uuid = gpu["uuid"]
                row = self._devices.get(gpu["uuid"], {"state": "unresponsive", "readings": {}})
                state = "unresponsive" if late and row["state"] == "ok" else row["state"]
                rows.append(
                    {
                        "uuid": gpu["uuid"],
                        "state": state,
                        "age_s": max(1, age_s) if self._shows_own_work(uuid) else age_s,
                        "readings": self._without_own_work(uuid, row["readings"]),
                        "xids": list(self._xids.get(gpu["uuid"], ())),
                    }
                )
            return rows

    def _shows_own_work(self, uuid: str) -> bool:
        """Return whether the last sample is no younger than our own child's last work on the device."""
        worked_s = self._worked_s.get(uuid)
        return worked_s is not None and (self._sampled_s is None or self._sampled_s <= worked_s)

    def _without_own_work(self, uuid: str, readings: dict[str, Any]) -> dict[str, Any]:
        """Leave out what our own child may have caused."""
        if not self._shows_own_work(uuid):
            return readings
        return {name: value for name, value in readings.items() if name not in CAUSED_BY_WORK}

    def taken(self) -> None:
        with self._lock:
            for uuid, count in self._sent_xids.items():
                del self._xids[uuid][:count]

    def add_xid(self, uuid: str, xid: int) -> None:
        """Take in an Xid that the kernel log tells of."""
        with self._lock:
            self._xids.setdefault(uuid, []).append(xid)
        self._changed()

    def conditions(self) -> list[str]:
        with self._lock:
            found = {self._condition} if self._condition else set()
            if self._sampled_s is not None and self._now_s() - self._sampled_s > SAMPLE_LATE_S:
                found.add("driver_unresponsive")
            return sorted(found)

    def state(self) -> str:
        return ",".join(self.conditions()) or "ok"

    def environment(self, devices: list[str]) -> dict[str, str]:
        return {"NVIDIA_VISIBLE_DEVICES": "void"} if _has_cdi() else {}

    def device_requests(self, devices: list[str]) -> list[dict[str, Any]]:
        """Return CDI devices where a CDI specification names them, else a request of the nvidia runtime."""
        if not devices:
            return []
        if _has_cdi():
            return [{"Driver": "cdi", "DeviceIDs": [f"nvidia.com/gpu={uuid}" for uuid in devices]}]
        return [{"Driver": "nvidia", "DeviceIDs": devices, "Capabilities": [["gpu", "compute", "utility"]]}]

    def device_nodes(self, devices: list[str]) -> list[str]:
        return []

    def visible_command(self) -> list[str]:
        return ["nvidia-smi", "-L"]

    def visible_in(self, output: str) -> list[str]:
        """Return the UUIDs of lines such as "GPU 0: NVIDIA L4 (UUID: GPU-...)"."""
        found = []
        for line in output.splitlines():
            _, mark, rest = line.partition("(UUID: ")
            if mark and line.startswith("GPU "):
                found.append(rest.rstrip().rstrip(")"))
        return found

    def figures(self, uuid: str, *, seed: str, within_s: float) -> dict[str, int]:
        answer = self._work("figures", uuid, within_s=within_s)
        return {name: int(value) for name, value in answer.get("figures", {}).items()}

    def overwrite(self, uuid: str, *, within_s: float) -> int | None:
        overwritten: int | None = self._work("overwrite", uuid, within_s=within_s).get("overwritten_mib")
        return overwritten

    def _work(self, verb: str, uuid: str, *, within_s: float) -> dict[str, Any]:
        """Have a child work on a device. While it does, and until a sample that is younger, readings show the child."""
        with self._lock:
            self._worked_s[uuid] = float("inf")
        try:
            answer = device_work.ask(verb, uuid, within_s=within_s)
        finally:
            with self._lock:
                self._worked_s[uuid] = self._now_s()
        if "fault" in answer:
            raise DeviceFault(str(answer["fault"]))
        return answer

    def close(self) -> None:
        """Ask the probe to end, and wait a moment; one that hangs is left alone."""
        self._closed.set()
        process = self._process
        if process is not None and process.poll() is None:
            process.terminate()
            try:
                process.wait(3)
            except subprocess.TimeoutExpired:
                self._stuck.append(process)

    def _keep(self) -> None:
        """Keep one probe alive: start, read, judge, wait, again."""
        short_lives = 0
        while not self._closed.is_set():
            began_s = self._now_s()
            self._one_life()
            short_lives = 0 if self._now_s() - began_s >= GOOD_LIFE_S else short_lives + 1
            self._inventoried.set()  # without a driver there is an inventory too: an empty one
            self._changed()
            self._closed.wait(restart_after_s(short_lives, first_s=self._restart_min_s))

    def _one_life(self) -> None:
        self._stuck = [process for process in self._stuck if process.poll() is None]
        if self._stuck:
            return  # one that hangs is enough
        process = subprocess.Popen(
            [sys.executable, "-m", "agents.node.probe"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, **bytecode.environment(self._compiled), "PYTHONUNBUFFERED": "1"},
        )
        self._process = process
        threading.Thread(target=self._read, args=(process,), name="probe-lines", daemon=True).start()
        self._wait_for(process)
        if process.poll() is None:
            self._stuck.append(process)
        elif process.returncode != 0:
            with self._lock:  # without a last word: the library has taken its process with it
                self._condition = self._condition or "driver_unresponsive"

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if process is self._process:
                self._take(json.loads(line))

    def _wait_for(self, process: subprocess.Popen[str]) -> None:
        """Return when the probe has ended, or when it was given up: asked to end, then killed, since it hangs."""
        began_s = self._now_s()
        while not _ended(process, LOOK_S):
            with self._lock:
                last_s = max(began_s, self._sampled_s or 0)
            if self._now_s() - last_s > SAMPLE_LATE_S:
                self._changed()
                process.terminate()
                if not _ended(process, TERM_WAIT_S):
                    process.kill()
                    _ended(process, TERM_WAIT_S)
                return

    def _take(self, message: dict[str, Any]) -> None:
        kind = message["kind"]
        with self._lock:
            if kind == "inventory":
                self._condition = ""
                self._facts = Facts(
                    gpus=message["gpus"],
                    driver_version=message["driver_version"],
                    cuda_version=message["cuda_version"],
                )
            elif kind == "sample":
                self._sampled_s = self._now_s()
                self._devices = {row["uuid"]: row for row in message["devices"]}
            elif kind == "event" and message["uuid"]:
                self._xids.setdefault(message["uuid"], []).append(message["xid"])
            elif kind == "bye" and message["code"]:
                self._condition = CONDITION_OF_CODE.get(message["code"], "driver_unresponsive")
        if kind == "inventory":
            self._inventoried.set()
        if kind != "sample":
            self._changed()


def _ended(process: subprocess.Popen[str], wait_s: float) -> bool:
    """Wait for the end of a process at most `wait_s`, without looking at it in between."""
    if process.poll() is not None:
        return True
    handle = os.pidfd_open(process.pid)
    try:
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        poll.poll(int(wait_s * 1000))
    finally:
        os.close(handle)
    return process.poll() is not None


def _has_cdi() -> bool:
    return any(any(folder.glob("nvidia*")) for folder in CDI_FOLDERS if folder.is_dir())
