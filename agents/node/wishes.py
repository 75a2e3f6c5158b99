"""The fixed verbs that the server may wish for. Each is done once per id, in a thread, and answered by an event."""

import threading
from collections.abc import Callable
from typing import Any

from agents import protocol
from agents.node import exec_wish, port_listening
from agents.node.drivers import DeviceFault, Driver
from agents.node.engines import Engine, EngineError
from agents.node.reconciler import Reconciler

REMEMBERED = 1000
CLOCK_LIMIT_S = 30
# A test is answered within a minute: so long for a device, and for all of them.
DEVICE_S, DEVICES_S = 5.0, 30.0


class Wishes:
    """Does what is wished. A wish stays in every answer until the server has its event; so an id is done once."""

    def __init__(
        self,
        *,
        reconciler: Reconciler,
        driver: Driver,
        engine: Engine,
        conditions: Callable[[], list[str]],
        diagnose: Callable[[], dict[str, Any]],
        host_figures: Callable[[], dict[str, int]],
        upgrade: Callable[[dict[str, Any]], None],
    ) -> None:
        self._reconciler, self._driver, self._engine = reconciler, driver, engine
        self._conditions, self._diagnose, self._host_figures = conditions, diagnose, host_figures
        self._upgrade = upgrade
        self._done: dict[str, None] = {}

    def take(self, wish: dict[str, Any]) -> None:
        """Begin a wish, unless it was begun before."""
        name = str(wish.get("id") or f"{wish.get('verb')}")
        if name in self._done:
            return
        self._done[name] = None
        if len(self._done) > REMEMBERED:
            del self._done[next(iter(self._done))]
        threading.Thread(target=self._do, args=(wish,), name=f"wish-{name}", daemon=True).start()

    def _do(self, wish: dict[str, Any]) -> None:
        verb = str(wish.get("verb", ""))
        if verb == "selftest":
            self._reconciler.event("selftest", "", **self.selftest(wish))
        elif verb == "exec":
            self._reconciler.event("exec", "", **exec_wish.run(self._reconciler, wish))
        elif verb == "listen":
            self._listen(wish)
        elif verb == "upgrade":
            self._upgrade(wish)
        elif verb == "diagnose":
            self._reconciler.event("diagnosis", "", id=wish.get("id"), **self._diagnose())
        else:
            self._reconciler.event("wish_refused", f"this agent does not know {verb!r:.40}", id=wish.get("id"))
        self._reconciler.told.ring()

    def _listen(self, wish: dict[str, Any]) -> None:
        """Listen at ports of the owner's range that no container of ours has, until a workload comes."""

        def said(ports: list[int]) -> None:
            self._reconciler.event("listen", "", id=wish.get("id"), ports=ports)
            self._reconciler.told.ring()

        def is_over() -> bool:  # a container that starts meanwhile may want one of them
            return bool(self._reconciler.workloads)

        given = None if is_over() else self._reconciler.port_range
        port_listening.listen(wish, given=given, said=said, is_over=is_over)

    def selftest(self, wish: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to a challenge: a proof for each device that is there, figures of those that nobody uses,
        and the host's own checks. A device that is measured and found not to work gives no proof, and says why."""
        seed, level = str(wish.get("seed", "")), str(wish.get("level", ""))
        answering = {row["uuid"] for row in self._driver.sample() if row["state"] == "ok"}
        asked = [str(uuid) for uuid in wish.get("devices") or [] if uuid in answering]
        share_s = min(DEVICE_S, DEVICES_S / max(1, len(asked)))
        checks = [self._engine_check(), self._driver_check(), self._strangers(), *self._condition_checks()]
        return {
            "id": wish.get("id"),
            "seed": seed,
            "simulated": self._driver.simulated,
            "checks": checks,
            "devices": [self._device(uuid, seed=seed, within_s=share_s if level != "L0" else 0) for uuid in asked],
            "host_figures": self._host_figures() if level != "L0" else {},
        }

    def _device(self, uuid: str, *, seed: str, within_s: float) -> dict[str, Any]:
        proof = protocol.selftest_proof(seed=seed, device=uuid)
        if not within_s:
            return {"uuid": uuid, "proof": proof, "figures": {}}
        with self._reconciler.claims.claim(uuid) as is_ours:
            try:
                figures = self._driver.figures(uuid, seed=seed, within_s=within_s) if is_ours else {}
            except DeviceFault as fault:
                return {"uuid": uuid, "proof": "", "figures": {}, "fault": str(fault)[:200]}
        return {"uuid": uuid, "proof": proof, "figures": figures}

    def _engine_check(self) -> dict[str, Any]:
        try:
            return _check("engine", True, f"{self._engine.name} {self._engine.version()}")
        except EngineError as fault:
            return _check("engine", False, str(fault))

    def _driver_check(self) -> dict[str, Any]:
        faults = self._driver.conditions()
        return _check("driver", not faults, ", ".join(faults) or str(self._driver.inventory().driver_version or ""))

    def _strangers(self) -> dict[str, Any]:
        """Whoever computes on a device that no workload of ours holds was not sent by us."""
        with self._reconciler.lock:
            held = {uuid for workload in self._reconciler.workloads.values() for uuid in workload.devices}
        found = [
            f"pid {process['pid']} on {row['uuid']}"
            for row in self._driver.sample()
            if row["uuid"] not in held
            for process in row["readings"].get("processes", ())
        ]
        return _check("foreign_processes", not found, ", ".join(found)[:200])

    def _condition_checks(self) -> list[dict[str, Any]]:
        conditions = set(self._conditions())
        return [
            _check("disk", "disk_pressure" not in conditions, "less than a twentieth is free"),
            _check("clock", "clock_skew" not in conditions, f"more than {CLOCK_LIMIT_S} s off"),
        ]


def _check(name: str, passed: bool, detail: str) -> dict[str, Any]:
    return {"check": name, "passed": passed, "detail": "" if passed and name in ("disk", "clock") else detail}
