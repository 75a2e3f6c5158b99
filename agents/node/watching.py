"""Looking after what is ready: has it ended, does it still see its GPUs, does its health check pass.

A failing health check ends no seconds and stops nothing: the host has given what was leased, and the tenant's program
is his own. It is shown to him (`unhealthy`), and gone as soon as one check passes.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agents.node import health_check
from agents.node.bringing_up import BringUp
from agents.node.engines import Container
from agents.node.workload import Key, Workload
from agents.protocol import HealthCheck, WorkloadSpec

if TYPE_CHECKING:
    from agents.node.reconciler import Reconciler

PROBE_AGAIN_S = 600.0


@dataclass
class _Health:
    check: HealthCheck
    next_s: float
    failures: int = 0


class Watching:
    def __init__(self, reconciler: "Reconciler") -> None:
        self._r = reconciler
        self._probed_s: dict[Key, float] = {}
        self._health: dict[Key, _Health] = {}

    def due_s(self) -> Iterable[float]:
        """Return when the next health checks are due, in seconds since boot."""
        return [health.next_s for key, health in self._health.items() if key not in self._r.jobs]

    def look(self, workload: Workload, container: Container | None, now: float) -> None:
        if container is not None and container.running:
            self._look_inside(workload, now)
            return
        if self._r.observing.listed_s <= workload.since_s:
            self._r.look_again()  # the list is older than the workload: it proves nothing
            return
        self._health.pop(workload.key, None)
        code = container.exit_code if container is not None else None
        workload.exit_code = code
        detail = f"ended with code {code}" if container is not None else "its container was removed by somebody else"
        self._r.event_of(workload, "exited", detail, exit_code=code)
        self._r.move(workload, "exited", detail=detail)

    def forget(self, workload: Workload) -> None:
        """It is not ready any more: nothing of it is looked at."""
        self._health.pop(workload.key, None)
        self._probed_s.pop(workload.key, None)

    def _look_inside(self, workload: Workload, now: float) -> None:
        health = self._health.get(workload.key)
        if health is None and (check := health_check.of(WorkloadSpec.from_json(workload.spec))) is not None:
            health = self._health[workload.key] = _Health(check, now + check.interval_s)
        if health is not None and now >= health.next_s:
            health.next_s = now + health.check.interval_s
            self._r.run_job(workload, lambda: self._ask(workload, health), "health")
            return
        last = self._probed_s.setdefault(workload.key, now)
        if now - last >= PROBE_AGAIN_S:
            self._probed_s[workload.key] = now
            self._r.run_job(workload, BringUp(self._r, workload).probe_again, "probe")

    def _ask(self, workload: Workload, health: _Health) -> None:
        said = health_check.ask(self._r.engine, workload.container or workload.name, health.check)
        with self._r.lock:
            health.failures = 0 if said is None else health.failures + 1
            settled = health.failures == 0 or health.failures >= health.check.failures
            shown = (said or "") if settled else workload.unhealthy
            if shown == workload.unhealthy:
                return
            if bool(shown) != bool(workload.unhealthy):
                kind = "unhealthy" if shown else "healthy"
                self._r.event_of(workload, kind, shown or "its health check passes again")
            workload.unhealthy = shown
        self._r.told.ring()
