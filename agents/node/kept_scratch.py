"""Whose scratch stays on this host when its container goes: the server says so, and the next epoch uses it again."""

from typing import TYPE_CHECKING

from agents.node.workload import Workload

if TYPE_CHECKING:
    from agents.node.reconciler import Reconciler


class KeptScratch:
    """The leases whose scratch is kept. Until the first answer of this agent's life, all of it is."""

    def __init__(self, reconciler: "Reconciler") -> None:
        self._r = reconciler
        self._leases: set[str] = set()

    def take(self, leases: set[str]) -> None:
        """Take in whose scratch is to be kept; what is over is removed at once."""
        if self._leases - leases:
            self._r.orphans.collect_now()
        self._leases = leases

    def is_of(self, lease: str) -> bool:
        return not self._r.synced or lease in self._leases

    def outlives(self, workload: Workload) -> bool:
        """Return whether the scratch of a workload that ends is used again, by the next epoch of its lease."""
        with self._r.lock:
            others = [w for w in self._r.workloads.values() if w is not workload and not w.over]
            return self.is_of(workload.lease) or any(w.scratch == workload.scratch for w in others)
