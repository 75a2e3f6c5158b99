"""Makes this host run what is wanted, and nothing else (AGENT.md sections 4 and 5).

`apply` takes in one answer of the server, `tick` compares wanted with observed and starts jobs; a job is a thread that
brings one workload up or takes it down. Both change workloads under one lock, and only through `move`, which writes the
journal first. The engine's list is the truth about containers; whatever rings the bell is a hint to look again.
"""

import threading
from collections.abc import Callable
from typing import Any

from agents import protocol
from agents.node import admission, clocks
from agents.node.bell import Bell
from agents.node.bringing_up import BringUp
from agents.node.claims import Claims
from agents.node.disk_use import DiskUse
from agents.node.drivers import Driver
from agents.node.engines import Container, Engine, EngineError
from agents.node.for_root import ForRoot
from agents.node.journal import Journal
from agents.node.kept_scratch import KeptScratch
from agents.node.observing import LIST_EVERY_S, Observing
from agents.node.orphans import Orphans
from agents.node.private_files import PrivateFiles
from agents.node.receipts import Receipts
from agents.node.taking_down import take_down
from agents.node.watching import Watching
from agents.node.workload import ON_THE_WAY, Key, Workload

RETRY_ENGINE_MIN_S, RETRY_ENGINE_MAX_S = 0.25, 5.0
DEADLINE_LAG_PART = 4


class Reconciler:
    """The steps of all workloads of one host.

    told: rung when the server should hear of a change at once. work: rung when `tick` should run.
    """

    def __init__(
        self,
        *,
        host: str,
        engine: Engine,
        driver: Driver,
        journal: Journal,
        told: Bell,
        work: Bell,
        now_s: Callable[[], float] = clocks.boot_s,
        boot_id: str | None = None,
        port_range: tuple[int, int] | None = None,
        receipts: Receipts | None = None,
        private_files: PrivateFiles | None = None,
        unseal: Callable[[bytes], bytes] | None = None,
        for_root: ForRoot | None = None,
    ) -> None:
        self.host, self.engine, self.driver, self.journal = host, engine, driver, journal
        self.told, self.work, self.now_s, self.port_range = told, work, now_s, port_range
        self._receipts, self.private_files, self.unseal = receipts, private_files, unseal
        self._for_root, self.boot_id = for_root, boot_id or clocks.boot_id()
        self.lock = threading.RLock()
        self.workloads: dict[Key, Workload] = {}
        self.jobs: dict[Key, threading.Thread] = {}
        self._up: dict[Key, BringUp] = {}
        self.observing = Observing(engine=engine, host=host, now_s=now_s)
        self.orphans, self.claims = Orphans(self), Claims(self)
        self.kept_scratch, self.disk_use = KeptScratch(self), DiskUse(self)
        self._said: set[str] = set()
        self._answered_s: float | None = None
        self._silence_limit_s = 30.0
        self.synced = False
        self.watching = Watching(self)

    # From the server

    def apply(self, answer: protocol.SyncAnswer, *, reported_gone: set[Key]) -> None:
        """Take in an answer. reported_gone: what the answered request said was gone, so that it can be forgotten."""
        with self.lock:
            now = self.now_s()
            self._answered_s, self._silence_limit_s = now, answer.silence_limit_s
            if answer.desired is not None:
                admission.take_in(self, [protocol.DesiredWorkload.from_json(row) for row in answer.desired])
                self.synced = True
                self.kept_scratch.take({row["lease"] for row in answer.desired} | set(answer.scratch))
                self.disk_use.drop({str(place) for place in answer.drop_volumes})
            for key, workload in list(self.workloads.items()):
                valid_for_s = answer.valid_for_s.get(workload.text_key)
                if valid_for_s is None and answer.desired is not None and workload.wanted:
                    valid_for_s = workload.valid_for_s
                if workload.wanted and valid_for_s is not None:
                    workload.deadline_s, workload.valid_for_s = now + valid_for_s, valid_for_s
                if workload.over and not workload.wanted and key in reported_gone:
                    del self.workloads[key]
                    self.journal.forget(key)
            self._save_deadlines()
            if self._for_root is not None:
                self._for_root.write(self.workloads.values())
        self.work.ring()

    def _save_deadlines(self) -> None:
        """Keep renewed deadlines when the journal's lag by a quarter: after a crash, what runs must not end too early
        for want of a write, and a write for each answer would wear the owner's disk."""
        lagging = [
            w
            for w in self.workloads.values()
            if w.deadline_s is not None
            and not w.over
            and w.deadline_s - (w.saved_deadline_s or 0) > w.valid_for_s / DEADLINE_LAG_PART
        ]
        if lagging:
            self.journal.save_all(lagging, boot_id=self.boot_id)

    def save_all(self) -> None:
        """Keep everything as it is now, before an orderly end."""
        with self.lock:
            self.journal.save_all(list(self.workloads.values()), boot_id=self.boot_id)

    # To the server

    def reports(self) -> list[dict[str, Any]]:
        with self.lock:
            return [workload.report() for _, workload in sorted(self.workloads.items())]

    def gone(self) -> set[Key]:
        with self.lock:
            return {key for key, workload in self.workloads.items() if workload.over}

    # Start of the agent

    def recover(self) -> None:
        """Take up what an earlier agent left: the journal's workloads, and their containers where they still are."""
        with self.lock:
            for workload in self.journal.workloads(boot_id=self.boot_id):
                self.workloads[workload.key] = workload
            if self._receipts is not None:
                self._receipts.mend(list(self.workloads.values()))
            self.observing.list()
            observed = self.observing.containers or {}
            for workload in self.workloads.values():
                container = observed.get(workload.name)
                if container is not None and container.running and workload.step == "ready":
                    workload.container = container.id
                    self.event_of(workload, "adopted", "found running after a restart of the agent")

    # One look

    def tick(self) -> float:
        """Start whatever is due, and return after how many seconds to look again if nothing rings."""
        # Outside the lock: an engine that hangs must not keep us from telling the server so.
        if self.observing.is_due(self.now_s()):
            self.observing.list()
        with self.lock:
            now = self.now_s()
            observed = self.observing.containers
            if observed is not None:
                for key in sorted(self.workloads):
                    self._step(self.workloads[key], observed, now)
                self.orphans.stop(observed, now)
                self.disk_use.look(now)
            if self._receipts is not None:
                self._receipts.beat(list(self.workloads.values()))
            return self._next_look_s(self.now_s())

    def look_again(self) -> None:
        """Hint: something may have changed in the engine."""
        self.observing.hint()
        self.work.ring()

    def idle(self) -> bool:
        """Return whether no job runs (for tests and for an orderly end)."""
        with self.lock:
            return not self.jobs

    def _next_look_s(self, now: float) -> float:
        if self.observing.containers is None:
            # An engine that is being started is back in a second, and what is overdue has waited for it.
            return min(RETRY_ENGINE_MIN_S * 2.0 ** min(self.observing.failures - 1, 16), RETRY_ENGINE_MAX_S)
        waits = [LIST_EVERY_S, *(due - now for due in self.observing.due_s())]
        waits += [w.deadline_s - now for w in self.workloads.values() if w.deadline_s is not None and not w.over]
        waits += [due - now for due in (*self.orphans.due_s(), *self.watching.due_s(), self.disk_use.due_s())]
        return max(0.05, min(waits))

    def _step(self, workload: Workload, observed: dict[str, Container], now: float) -> None:
        must_end = self._must_end(workload, now)
        if workload.key in self.jobs:
            if must_end and workload.key in self._up:
                self._up[workload.key].cancel()
            return
        if workload.over:
            return
        if must_end:
            self.take_down(workload)
        elif workload.step == "ready":
            self.watching.look(workload, observed.get(workload.name), now)
        elif workload.step == "absent" or workload.step in ON_THE_WAY:
            self._bring_up(workload, now)
        elif workload.step in ("stopping", "cleaning", "stuck"):
            self.take_down(workload)

    def _must_end(self, workload: Workload, now: float) -> bool:
        if not workload.wanted:
            return True
        if any(other.wanted and other.epoch > workload.epoch for other in self._same_member(workload)):
            return True
        if workload.deadline_s is None or now < workload.deadline_s:
            return False
        if workload.step not in ("absent", "exited", "stopping", "cleaning", "stuck", "gone"):
            late = now - workload.deadline_s
            self.event_of(workload, "deadline_stop", f"no answer renewed it; its time ended {late:.1f} s ago")
            workload.detail = "stopped by its dead-man timer: the control plane was not heard in time"
            workload.failure = protocol.NOT_RENEWED
        return True

    def _same_member(self, workload: Workload) -> list[Workload]:
        return [
            other
            for other in self.workloads.values()
            if (other.lease, other.member) == (workload.lease, workload.member) and other is not workload
        ]

    def _bring_up(self, workload: Workload, now: float) -> None:
        if not self.synced or not self.heard_lately(now):
            return
        if claimed := self.claims.on(workload.devices):
            self._wait(workload, f"waits for the self-test of {len(claimed)} of its GPUs")
            return
        rivals = [
            other
            for other in self.workloads.values()
            if other is not workload
            and not other.over
            and (other.shares_device_with(workload) or other in self._same_member(workload))
            and (other.step != "absent" or other.key < workload.key)
        ]
        if rivals:
            self._wait(workload, f"waits until {rivals[0].name} has left its GPUs")
            return
        job = BringUp(self, workload)
        self._up[workload.key] = job
        self.run_job(workload, job.run, "up")

    def _wait(self, workload: Workload, why: str) -> None:
        if workload.detail != why:
            self.move(workload, "absent", detail=why)

    def heard_lately(self, now: float) -> bool:
        """Return whether the server was heard within its silence limit: nothing new starts unheard."""
        return self._answered_s is not None and now - self._answered_s <= self._silence_limit_s

    def take_down(self, workload: Workload) -> None:
        self.run_job(workload, lambda: take_down(self, workload), "down")

    def run_job(self, workload: Workload, act: Callable[[], None], what: str) -> None:
        def job() -> None:
            try:
                act()
            except EngineError as fault:
                with self.lock:
                    self.observing.fault = str(fault)
            finally:
                with self.lock:
                    self.jobs.pop(workload.key, None)
                    self._up.pop(workload.key, None)
                    self.observing.outdate()
                self.work.ring()

        thread = threading.Thread(target=job, name=f"{what}-{workload.name}", daemon=True)
        self.jobs[workload.key] = thread
        thread.start()

    # The only ways to change or tell something

    def move(self, workload: Workload, step: str, *, detail: str = "", failure: str | None = None) -> None:
        """Put the workload into `step`: first in the journal, then for the server."""
        with self.lock:
            before, workload.step, workload.detail = workload.step, step, detail
            if step != before:
                workload.since_s = self.now_s()
            if step != "ready":
                self.watching.forget(workload)
            if failure is not None:
                workload.failure = failure
            self.save(workload)
            if self._receipts is not None and "ready" in (before, step) and before != step:
                self._receipts.write(workload, "start" if step == "ready" else "stop")
            if step == "gone":
                self.journal.remember_stop(lease=workload.lease, member=workload.member, epoch=workload.epoch)
        self.told.ring()

    def save(self, workload: Workload) -> None:
        self.journal.save(workload, boot_id=self.boot_id)

    def say_once(self, kind: str, detail: str) -> None:
        """Tell of a lasting fact about this host once in the life of the agent."""
        if kind not in self._said:
            self._said.add(kind)
            self.event(kind, detail)

    def event(self, kind: str, detail: str, **facts: Any) -> None:
        self.journal.put("event", {"kind": kind, "at": clocks.wall_iso(), "detail": detail, **facts})

    def event_of(self, workload: Workload, kind: str, detail: str, **facts: Any) -> None:
        self.event(kind, detail, lease=workload.lease, member=workload.member, epoch=workload.epoch, **facts)
