"""SIGKILL for every process of the platform in turn, in an order and at times that a seed decides."""

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psycopg

from agents.node.engines.sandbox_processes import MARK, environment_of
from embedded import processes, stack
from tests.running_stack import RunningStack

# How often each is killed for every 50 leases. `host`: its power is cut, with all that runs on it.
OFTEN = {
    "api": 5,
    "streams": 4,
    "worker-placement": 4,
    "worker-default": 4,
    "agent": 6,
    "postgres": 2,
    "postgres-backend": 3,
    "loops": 2,
    "beat": 1,
    "broker": 1,
    "host": 1,
}
GAP_S = (0.5, 3.0)
BACK_WITHIN_S = 90.0
STALLED_AFTER_S = 20.0  # then it is struck again, whether the clients get on or not
LOST_WITHIN_S = 120.0


def targets(*, leases: int, seed: int) -> list[str]:
    """Return what is killed, in order; each kind at least once."""
    rng = random.Random(seed)
    names = [name for name, often in OFTEN.items() for _ in range(max(1, round(often * leases / 50)))]
    rng.shuffle(names)
    return names


class Killer:
    """Kills the targets, one after the other, as soon as each runs again. `killed` counts them.

    progress: the share of the clients' work that is done, in 0..1. The kills keep step with it, so that a slow machine
    is struck as often per lease as a fast one.
    """

    def __init__(self, platform: RunningStack, names: list[str], *, seed: int, progress: Callable[[], float]) -> None:
        self.platform = platform
        self.killed: Counter[str] = Counter()
        self.faults: list[str] = []
        self._names = names
        self._progress = progress
        self._rng = random.Random(seed + 1)
        self._thread = threading.Thread(target=self._work, name="killer")
        self._power_cuts: list[threading.Thread] = []

    def start(self) -> None:
        self._thread.start()

    def wait(self) -> None:
        """Return when all are killed and every host has its power back."""
        self._thread.join()
        for thread in self._power_cuts:
            thread.join()

    def _work(self) -> None:
        for number, name in enumerate(self._names):
            time.sleep(self._rng.uniform(*GAP_S))
            self._keep_step(number / len(self._names))
            if name == "host":
                thread = threading.Thread(target=self._noted, args=(name, self._cut_power), name="power-cut")
                self._power_cuts.append(thread)
                thread.start()
            else:
                self._noted(name, lambda name=name: self._kill(name))  # type: ignore[misc]

    def _keep_step(self, share: float) -> None:
        with suppress(processes.DeadlinePassed):
            processes.poll_until(
                lambda: self._progress() + 0.1 >= share, within_s=STALLED_AFTER_S, what="Some progress"
            )

    def _noted(self, name: str, act: Callable[[], None]) -> None:
        try:
            act()
            self.killed[name] += 1
        except Exception as fault:
            self.faults.append(f"{name}: {type(fault).__name__}: {fault}")

    def _kill(self, name: str) -> None:
        victims: list[int] = []

        def found() -> bool:
            victims[:] = self._pids(name)
            return bool(victims)

        processes.poll_until(found, within_s=BACK_WITHIN_S, what=f"The return of {name}")
        with suppress(ProcessLookupError):  # it ended by itself a moment ago, which is as good
            os.kill(self._rng.choice(victims), signal.SIGKILL)

    def _pids(self, name: str) -> list[int]:
        """Return the pids of which one is to die: a master or one of its children, as chance will have it."""
        status = self.platform.status()
        if name in {"postgres", "broker", "postgres-backend"}:
            leader = status.get("servers", {}).get(name.partition("-")[0], {}).get("pid")
            children = _children(leader) if leader and name == "postgres-backend" else []
            return children or ([leader] if leader else [])
        table = status.get("processes", {})
        if name == "agent":
            running = sorted(entry for entry in table if entry.startswith("agent-") and table[entry]["pid"])
            name = self._rng.choice(running or [name])
        leader = table.get(name, {}).get("pid")
        return [leader, *filter(_is_ours, _children(leader))] if leader else []

    def _cut_power(self) -> None:
        """Let a host die with all that runs on it, and come back only when the platform has given it up."""
        names = [name for name in self.platform.status()["processes"] if name.startswith("agent-")]
        host = self._rng.choice(sorted(names)).removeprefix("agent-")
        stack.kill_host(self.platform.path, host)
        try:
            processes.poll_until(lambda: self._is_lost(host), within_s=LOST_WITHIN_S, what=f"The loss of {host}")
        finally:
            stack.revive_host(self.platform.path, host)

    def _is_lost(self, host: str) -> bool:
        try:
            return self.platform.rows("SELECT state FROM agents_host WHERE name = %(host)s", host=host) == [("lost",)]
        except psycopg.OperationalError:
            return False  # its turn to be killed


def _children(pid: int) -> list[int]:
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        return [int(child) for task in tasks for child in (task / "children").read_text().split()]
    except OSError:
        return []


def _is_ours(pid: int) -> bool:
    """Return whether a process is the platform's: an agent's children are also what its tenants run."""
    return MARK not in environment_of(pid)
