"""What carries our labels and belongs to nobody: stopped and removed, not at once; never what is the owner's own."""

import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING

from agents.node import cleaning
from agents.node.engines import LABEL_EPOCH, LABEL_LEASE, LABEL_MEMBER, Container, EngineError
from agents.node.workload import Workload

if TYPE_CHECKING:
    from agents.node.reconciler import Reconciler

ORPHAN_AFTER_S = 60.0
COLLECT_EVERY_S = 60.0


class Orphans:
    """Containers with our labels that no workload knows, and when each was seen first (seconds since boot)."""

    def __init__(self, reconciler: "Reconciler") -> None:
        self._r = reconciler
        self._first_s: dict[str, float] = {}
        self._collect_s = 0.0  # when left-overs are looked for next
        self._collecting = threading.Lock()

    def due_s(self) -> Iterable[float]:
        """Return when each is to be stopped."""
        return [self._collect_s, *(first + ORPHAN_AFTER_S for first in self._first_s.values())]

    def collect_now(self) -> None:
        """Look for left-overs at the next look."""
        self._collect_s = 0.0
        self._r.work.ring()

    def _collect(self) -> None:
        """Remove networks and scratch that belong to nobody, in a thread: an engine may be slow."""

        def job() -> None:
            if not self._collecting.acquire(blocking=False):
                return
            try:
                cleaning.collect_left_overs(self._r)
            except EngineError:
                return  # in use, or the engine is away: the next look tries again
            finally:
                self._collecting.release()

        threading.Thread(target=job, name="left-overs", daemon=True).start()

    def stop(self, observed: dict[str, Container], now: float) -> None:
        """Stop those that nobody knew for ORPHAN_AFTER_S, but none before the first sync of this agent."""
        known = {workload.name for workload in self._r.workloads.values() if not workload.over}
        self._first_s = {name: self._first_s.get(name, now) for name in observed if name not in known}
        if not self._r.synced:
            return
        if self._r.private_files is not None:
            for name in set(self._r.private_files.names()) - known - set(observed):
                self._r.private_files.remove(name)  # its container is gone, and was not taken down by us
        if now >= self._collect_s:
            self._collect_s = now + COLLECT_EVERY_S
            self._collect()
        for name, first in list(self._first_s.items()):
            if now - first >= ORPHAN_AFTER_S:
                self._first_s.pop(name)
                self._stop(name, observed[name])

    def _stop(self, name: str, container: Container) -> None:
        self._r.event("orphan_stopped", f"{name} has our labels, and nobody wants it", container=name)
        labels = container.labels
        orphan = Workload(
            lease=labels.get(LABEL_LEASE, name),
            member=int(labels.get(LABEL_MEMBER, 0)),
            epoch=int(labels.get(LABEL_EPOCH, 0)),
            spec_hash="",
            spec={},
            valid_for_s=0,
            wanted=False,
            step="ready",
            container=container.id,
        )
        if orphan.name == name and orphan.key not in self._r.workloads:
            self._r.workloads[orphan.key] = orphan
            self._r.take_down(orphan)
