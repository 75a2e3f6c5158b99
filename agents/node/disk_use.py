"""What tenants have on this host's disk: volumes that are to be removed are, and how full each one is is told.

Nothing is removed that the server did not name. A removal that fails (something still uses it) is tried again, and one
that is done is told by an event: by each life of the agent that is ordered to, since its last one may not have been.
"""

import os
import threading
from typing import TYPE_CHECKING

from agents.node.engines import EngineDown, EngineError, NoSuchContainer
from agents.node.workload import Workload

if TYPE_CHECKING:
    from agents.node.reconciler import Reconciler

FIRST_LOOK_S = 30.0
LOOK_EVERY_S = float(os.environ.get("GPUYARD_AGENT_DISK_LOOK_S", "300"))  # an engine counts files for it


class DiskUse:
    def __init__(self, reconciler: "Reconciler") -> None:
        self._r = reconciler
        self._to_drop: set[str] = set()
        self._dropped: set[str] = set()
        self._look_s = 0.0
        self._looking = threading.Lock()

    def drop(self, places: set[str]) -> None:
        """Take in which volumes are to be removed."""
        if places - self._to_drop:
            self._r.orphans.collect_now()
        self._to_drop, self._dropped = places, self._dropped & places

    def remove(self) -> None:
        """Remove what is to be removed and nothing uses. Raises EngineDown."""
        with self._r.lock:
            live = [workload for workload in self._r.workloads.values() if not workload.over]
            used = {place for workload in live for place in places_of(workload)}
            due = sorted(self._to_drop - self._dropped - used)
        for place in due:
            try:
                self._r.engine.remove_scratch(place)
            except NoSuchContainer:
                pass  # it is gone already, which is what was wanted
            except EngineDown:
                raise
            except EngineError:
                continue
            with self._r.lock:
                self._dropped.add(place)
            self._r.event("volume_gone", "", place=place)
            self._r.told.ring()

    def look(self, now: float) -> None:
        """Measure what is ready, in a thread: an engine may be slow."""
        ready = [workload for workload in self._r.workloads.values() if workload.step == "ready"]
        if not ready:
            self._look_s = now + min(FIRST_LOOK_S, LOOK_EVERY_S)
        elif now >= self._look_s and self._looking.acquire(blocking=False):
            self._look_s = now + LOOK_EVERY_S
            threading.Thread(target=self._measure, args=(ready,), name="disk-use", daemon=True).start()

    def due_s(self) -> float:
        return self._look_s

    def _measure(self, ready: list[Workload]) -> None:
        try:
            places = {place for workload in ready for place in places_of(workload)}
            sizes = self._r.engine.sizes_mib(places)
        except EngineError:
            return  # the next look tries again
        finally:
            self._looking.release()
        with self._r.lock:
            for workload in ready:
                workload.volumes_mib = {place: sizes[place] for place in places_of(workload) if place in sizes}
        self._r.told.ring()


def places_of(workload: Workload) -> list[str]:
    """Return the engine's names of what a workload has on the disk: its scratch and its volumes."""
    return [workload.scratch, *(str(volume.get("place")) for volume in workload.spec.get("volumes") or [])]
