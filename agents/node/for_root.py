"""What the core tells gpuyard-root (agents.node.root), which goes on when the core is dead.

Until when each workload may run, and what its container may reach: a file in memory, replaced at each answer that
renews something; a disk would wear.

{boot_id, host, workloads: [{name, deadline_s, grace_s, peers: [[address, first port, last port]]}]}; deadlines are in
seconds since boot.
"""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from agents.node import clocks
from agents.node.private_files import folder_in_memory
from agents.node.workload import Workload


def told_at(state: Path, *, wanted: str | None = None) -> Path:
    """Return the file of the agent with this state folder. Raises NoMemoryFolder."""
    folder = folder_in_memory(state, wanted=wanted)
    return folder.with_name(f"{folder.name}.for-root.json")


class ForRoot:
    """The core's side: `write` replaces the file."""

    def __init__(self, path: Path, *, host: str) -> None:
        self._path, self._host, self._last = path, host, ""

    def write(self, workloads: Iterable[Workload]) -> None:
        """Tell of every workload that may run; what has no deadline yet may not. What is stuck is overdue: perhaps only
        root can end it."""
        rows = [_row(w) for w in workloads if not w.over and (w.deadline_s is not None or w.step == "stuck")]
        text = json.dumps({"boot_id": clocks.boot_id(), "host": self._host, "workloads": rows})
        if text == self._last:
            return
        beside = self._path.with_suffix(".new")
        with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(text)
        beside.replace(self._path)
        self._last = text


def _row(workload: Workload) -> dict[str, Any]:
    return {
        "name": workload.name,
        "deadline_s": 0.0 if workload.step == "stuck" else workload.deadline_s,
        "grace_s": workload.stop_grace_s,
        "peers": peers(workload.spec),
    }


def peers(spec: dict[str, Any]) -> list[list[Any]]:
    """Return [address, first port, last port] of what the other members of its gang publish for it."""
    rendezvous = spec.get("rendezvous") or {}
    own, meet = str(rendezvous.get("NODE_RANK", "0")), str(rendezvous.get("MASTER_PORT", ""))
    addresses = str(rendezvous.get("GPUYARD_NODE_IPS", "")).split(",")
    ranges = str(rendezvous.get("GPUYARD_GANG_PORTS", "")).split(",")
    found: list[list[Any]] = []
    if len(addresses) < 2:
        return found
    if own != "0" and meet.isdigit():
        found.append([addresses[0], int(meet), int(meet)])
    for rank, (address, text) in enumerate(zip(addresses, ranges, strict=False)):
        first, _, last = text.partition("-")
        if str(rank) != own and first.isdigit() and last.isdigit():
            found.append([address, int(first), int(last)])
    return found
