"""Receipts of use (AGENT.md section 6): signed, chained per (lease, member, epoch), kept until the server has them.

They price nothing: the server charges by its own clock. They bound what it may charge, and settle disputes.
"""

import hashlib
from collections.abc import Callable
from typing import Any

from agents import protocol
from agents.node import clocks
from agents.node.identity import Identity
from agents.node.journal import Journal
from agents.node.workload import Workload

BEAT_S = 600.0


class Receipts:
    """Writes one receipt per start and stop, and a beat every ten minutes between."""

    def __init__(self, *, identity: Identity, journal: Journal, sample: Callable[[], list[dict[str, Any]]]) -> None:
        self._identity, self._journal, self._sample = identity, journal, sample
        self._beat_s: dict[tuple[str, int, int], float] = {}

    def write(self, workload: Workload, kind: str) -> None:
        """Write a receipt of one kind: start, beat or stop."""
        devices = workload.devices
        energy_mj, busy = self._figures(devices)
        self._beat_s[workload.key] = clocks.boot_s()
        if kind == "stop":
            self._beat_s.pop(workload.key, None)

        def seal(n: int, prev: str) -> tuple[dict[str, Any], str]:
            body = {
                "n": n,
                "lease": workload.lease,
                "member": workload.member,
                "epoch": workload.epoch,
                "prev": prev,
                "kind": kind,
                "boot_id": clocks.boot_id(),
                "t_boot_s": int(clocks.boot_s()),
                "container": workload.container,
                "image_digest": workload.image_digest,
                "devices": devices,
                "energy_mj": energy_mj,
                "busy_s": busy,
            }
            whole = {**body, "sig": self._identity.sign(protocol.canonical_json(body))}
            return whole, hashlib.sha256(protocol.canonical_json(whole)).hexdigest()

        self._journal.put_receipt(workload.key, seal)

    def mend(self, workloads: list[Workload]) -> None:
        """Write the start or the stop that a sudden death kept us from writing after its step was in the journal."""
        for workload in workloads:
            last = self._journal.last_receipt(workload.key)
            if workload.step == "ready" and last == "":
                self.write(workload, "start")
            elif workload.step != "ready" and last in ("start", "beat"):
                self.write(workload, "stop")

    def beat(self, workloads: list[Workload]) -> None:
        """Write the beats that are due of workloads that are ready."""
        now = clocks.boot_s()
        for workload in workloads:
            if workload.step == "ready" and now - self._beat_s.setdefault(workload.key, now) >= BEAT_S:
                self.write(workload, "beat")

    def _figures(self, devices: list[str]) -> tuple[int | None, int | None]:
        """Return the devices' energy counters added up, and busy seconds: None where a device gives none."""
        rows = {row["uuid"]: row["readings"] for row in self._sample()}
        energies = [rows.get(uuid, {}).get("energy_mj") for uuid in devices]
        known = [energy for energy in energies if energy is not None]
        return (sum(known) if known and len(known) == len(devices) else None), None
