"""What must be true of the whole platform, whatever was killed: asked of its database, its doors and its hosts."""

import os
import threading
import time
from collections import defaultdict
from pathlib import Path

from agents.node.engines.sandbox_processes import MARK, environment_of
from agents.node.sim import VISIBLE
from tests.running_stack import RunningStack

HOSTS = [
    {"name": "a100-one", "gpus": ["A100_80G x4"]},
    {"name": "a100-two", "gpus": ["A100_80G x4"]},
    {"name": "l40s-one", "gpus": ["L40S_48G x4"]},
    {"name": "l40s-two", "gpus": ["L40S_48G x4"]},
]
DEVICES = {"A100_80G": 8, "L40S_48G": 8}
# Short fences, so that what a dead host held comes back within the test.
SETTINGS = {
    "WORKLOAD_VALID_FOR_S": "15",
    "WORKLOAD_STOP_GRACE_S": "3",
    "FENCE_MARGIN_S": "5",
    "HOST_SUSPECT_AFTER_S": "15",
    "HOST_SILENCE_LIMIT_S": "30",
    "HOST_SYNC_HOLD_S": "3",
}

_OVERLAPS = """
SELECT one.id, other.id FROM leasing_allocation one JOIN leasing_allocation other ON one.device_id = other.device_id
WHERE one.id < other.id AND one.units && other.units AND one.during && other.during
"""
_TWO_LEASES_FOR_A_KEY = """
SELECT labels ->> 'chaos', count(*) FROM leasing_lease GROUP BY labels ->> 'chaos' HAVING count(*) > 1
"""
_FORGOTTEN = """
SELECT id, state, now() - check_at FROM leasing_lease
WHERE state <> 'ended' AND check_at < now() - interval '60 s' AND (claim_until IS NULL OR claim_until < now())
"""
_HELD_FOR_NOBODY = """
SELECT held.id, lease.state FROM leasing_allocation held JOIN leasing_lease lease ON lease.id = held.lease_id
WHERE held.released_at IS NULL AND (lease.state = 'ended' OR held.epoch <> lease.epoch)
"""
_END_EVENTS = """
SELECT lease_id FROM leasing_leaseevent WHERE to_state = 'ended' GROUP BY lease_id HAVING count(*) > 1
"""


def overlapping_allocations(platform: RunningStack) -> list[tuple[object, ...]]:
    """Return pairs of allocations that hold the same units of a device at the same time, ever."""
    return platform.rows(_OVERLAPS)


def keys_with_two_leases(platform: RunningStack) -> list[tuple[object, ...]]:
    return platform.rows(_TWO_LEASES_FOR_A_KEY)


def forgotten_leases(platform: RunningStack) -> list[tuple[object, ...]]:
    """Return live leases that should have been looked at over a minute ago, and that nobody looks at."""
    return platform.rows(_FORGOTTEN)


def devices_held_for_nobody(platform: RunningStack) -> list[tuple[object, ...]]:
    return platform.rows(_HELD_FOR_NOBODY)


def leases_that_ended_twice(platform: RunningStack) -> list[tuple[object, ...]]:
    return platform.rows(_END_EVENTS)


def unrelayed_messages(platform: RunningStack) -> int:
    return int(platform.rows("SELECT count(*) FROM outbox_message WHERE relayed_at IS NULL")[0][0])


def states(platform: RunningStack) -> dict[str, tuple[str, str]]:
    """Return the state of each lease, and why it ends, by the key with which it was asked for."""
    query = "SELECT labels ->> 'chaos', state, ending_reason || ' ' || ending_detail FROM leasing_lease"
    return {key: (state, why.strip()) for key, state, why in platform.rows(query)}


def accounts_of_devices(platform: RunningStack) -> dict[str, dict[str, int]]:
    """Return per model: devices that are free by the API's offers, leased by its leases, and there at all."""
    found: dict[str, dict[str, int]] = {model: {"free": 0, "leased": 0, "all": n} for model, n in DEVICES.items()}
    for offer in platform.got("/offers")["items"]:
        found[offer["gpu_model"]]["free"] += offer["available"]
    query = (
        "SELECT model.slug, count(*) FROM leasing_allocation held JOIN agents_device device ON device.id ="
        " held.device_id JOIN catalogue_gpumodel model ON model.id = device.model_id WHERE held.released_at IS NULL"
        " GROUP BY model.slug"
    )
    for model, held in platform.rows(query):
        found[model]["leased"] = held
    return found


def wanted_containers(platform: RunningStack) -> set[str]:
    """Return the names of the containers that ought to run: one for each member of an active lease."""
    rows = platform.rows("SELECT reference, member, epoch FROM agents_workload WHERE wanted AND gone_at IS NULL")
    return {f"gy-{reference}-{member}-{epoch}" for reference, member, epoch in rows}


def running_containers(folder: Path) -> dict[str, tuple[int, tuple[str, ...]]]:
    """Return what the sandboxes in this folder really run: name -> (a pid of it, its GPUs), from the kernel's word."""
    found = {}
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        seen = environment_of(pid)
        if MARK in seen and Path(seen.get("HOME", "/")).is_relative_to(folder):
            found[seen[MARK]] = (pid, tuple(filter(None, seen.get(VISIBLE, "").split(","))))
    return found


class Watcher:
    """Looks all the time whether two containers use one device. `doubles` are those that were seen."""

    def __init__(self, folder: Path, *, every_s: float = 0.5) -> None:
        self.doubles: list[str] = []
        self.looks = 0
        self.seen: set[str] = set()
        self._folder, self._every_s = folder, every_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="watcher")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._stop.wait(self._every_s):
            self.doubles += doubles_in(self._folder)
            self.seen |= running_containers(self._folder).keys()
            self.looks += 1


def doubles_in(folder: Path) -> list[str]:
    """Return a sentence for each device that two containers use at the same time."""
    users: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for name, (pid, gpus) in running_containers(folder).items():
        for gpu in gpus:
            users[gpu].append((name, pid))
    suspicious = {gpu: both for gpu, both in users.items() if len(both) > 1}
    # The kernel was asked one process after the other: only those that are all still there were there together.
    return [
        f"{gpu}: {', '.join(name for name, _ in both)} at {time.time():.1f}"
        for gpu, both in suspicious.items()
        if all(environment_of(pid).get(MARK) == name for name, pid in both)
    ]
