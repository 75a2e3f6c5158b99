"""Makes this host run what is wanted, and nothing else (AGENT.md sections 4 and 5).

`apply` takes in one answer of the server, `tick` compares wanted with observed and starts jobs; a job is a thread that
brings one workload up or takes it down. Both change workloads under one lock, and only through `move`, which writes the
journal first. The engine's list is the truth about containers; whatever rings the bell is a hint to look again.
"""

import threading
from collections.abc import Callable
from typing import Any

from agents import protocol
from agents.node import clocks
from agents.node.bell import Bell
from agents.node.bringing_up import BringUp
from agents.node.drivers import Driver
from agents.node.engines import LABEL_EPOCH, LABEL_LEASE, LABEL_MEMBER, Container, Engine, EngineError
from agents.node.journal import Journal
from agents.node.receipts import Receipts
from agents.node.taking_down import take_down
from agents.node.workload import ON_THE_WAY, Key, Workload

LIST_EVERY_S = 30.0
ORPHAN_AFTER_S = 60.0
RETRY_ENGINE_S = 5.0
SECOND_LOOKS_S = (0.2, 1.0)
PROBE_AGAIN_S = 600.0
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
    ) -> None:
        self.host, self.engine, self.driver, self.journal = host, engine, driver, journal
        self.told, self.work, self.now_s, self.port_range = told, work, now_s, port_range
        self._receipts = receipts
        self.boot_id = boot_id or clocks.boot_id()
        self.lock = threading.RLock()
        self.workloads: dict[Key, Workload] = {}
        self.engine_fault = ""
        self._jobs: dict[Key, threading.Thread] = {}
        self._up: dict[Key, BringUp] = {}
        self._observed: dict[str, Container] | None = None
        self._listed_s = -1e9
        self._stale = True
        self._hinted_s = -1e9
        self._orphans: dict[str, float] = {}
        self._answered_s: float | None = None
        self._silence_limit_s = 30.0
        self._synced = False
        self._probed_s: dict[Key, float] = {}

    # From the server

    def apply(self, answer: protocol.SyncAnswer, *, reported_gone: set[Key]) -> None:
        """Take in an answer. reported_gone: what the answered request said was gone, so that it can be forgotten."""
        with self.lock:
            now = self.now_s()
            self._answered_s, self._silence_limit_s = now, answer.silence_limit_s
            if answer.desired is not None:
                self._want([protocol.DesiredWorkload.from_json(row) for row in answer.desired])
                self._synced = True
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

    def _want(self, desired: list[protocol.DesiredWorkload]) -> None:
        keys = set()
        for row in desired:
            key = (row.lease, row.member, row.epoch)
            keys.add(key)
            known = self.workloads.get(key)
            if known is None:
                self._admit(row)
            elif known.spec_hash != row.spec_hash:
                self._event(known, "refused_epoch", "the same epoch came with another spec; what runs is kept")
            else:
                known.wanted, known.valid_for_s, known.stop_grace_s = True, row.valid_for_s, row.stop_grace_s
        for key, workload in self.workloads.items():
            if workload.wanted and key not in keys:
                workload.wanted = False
                self.save(workload)

    def _admit(self, row: protocol.DesiredWorkload) -> None:
        """Take in a workload never seen before, unless its epoch or its spec forbids it: then it is gone at once."""
        workload = Workload(
            lease=row.lease,
            member=row.member,
            epoch=row.epoch,
            spec_hash=row.spec_hash,
            spec=row.spec,
            valid_for_s=row.valid_for_s,
            stop_grace_s=row.stop_grace_s,
            deadline_s=self.now_s() + row.valid_for_s,
        )
        self.workloads[workload.key] = workload
        fault = self._refusal(workload)
        if fault is None:
            self.save(workload)
            return
        workload.step, workload.failure, workload.detail = "gone", *fault
        self._event(workload, "refused_epoch" if fault[0] == "stale_epoch" else "refused", fault[1])
        self.told.ring()

    def _refusal(self, workload: Workload) -> tuple[str, str] | None:
        """Return (failure, sentence) when the workload must not be started here, else None."""
        if protocol.digest(workload.spec) != workload.spec_hash:
            return "bad_spec", "the spec does not have the hash that was said to be its own"
        try:
            protocol.WorkloadSpec.from_json(workload.spec)
        except protocol.ProtocolError as fault:
            return "bad_spec", str(fault)
        highest = self.journal.highest_epoch(lease=workload.lease, member=workload.member, devices=workload.devices)
        if workload.epoch < highest:
            return "stale_epoch", f"epoch {workload.epoch} is over: this host has seen {highest}"
        if workload.epoch <= self.journal.stopped_epoch(lease=workload.lease, member=workload.member):
            return "stale_epoch", f"epoch {workload.epoch} was stopped here and is not started again"
        return None

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
            observed = self._list()
            for workload in self.workloads.values():
                container = observed.get(workload.name) if observed is not None else None
                if container is not None and container.running and workload.step == "ready":
                    workload.container = container.id
                    self._event(workload, "adopted", "found running after a restart of the agent")

    # One look

    def tick(self) -> float:
        """Start whatever is due, and return after how many seconds to look again if nothing rings."""
        # Outside the lock: an engine that hangs must not keep us from telling the server so.
        if self._is_list_due(self.now_s()):
            self._list()
        with self.lock:
            now = self.now_s()
            if self._observed is not None:
                for key in sorted(self.workloads):
                    self._step(self.workloads[key], self._observed, now)
                self._stop_orphans(self._observed, now)
            if self._receipts is not None:
                self._receipts.beat(list(self.workloads.values()))
            return self._next_look_s(self.now_s())

    def look_again(self) -> None:
        """Hint: something may have changed in the engine."""
        self._hinted_s = self.now_s()
        self._stale = True
        self.work.ring()

    def _is_list_due(self, now: float) -> bool:
        return (
            self._stale
            or self._observed is None
            or now - self._listed_s >= LIST_EVERY_S
            or any(self._listed_s < due <= now for due in self._second_looks_s())
        )

    def _second_looks_s(self) -> list[float]:
        """Return when to list again after the last hint: an engine tells of an end before its own list shows it."""
        return [self._hinted_s + later for later in SECOND_LOOKS_S]

    def idle(self) -> bool:
        """Return whether no job runs (for tests and for an orderly end)."""
        with self.lock:
            return not self._jobs

    def _next_look_s(self, now: float) -> float:
        if self._observed is None:
            return RETRY_ENGINE_S
        waits = [LIST_EVERY_S, *(due - now for due in self._second_looks_s() if due > self._listed_s)]
        waits += [w.deadline_s - now for w in self.workloads.values() if w.deadline_s is not None and not w.over]
        waits += [first + ORPHAN_AFTER_S - now for first in self._orphans.values()]
        return max(0.05, min(waits))

    def _list(self) -> dict[str, Container] | None:
        self._stale, began_s = False, self.now_s()
        try:
            self._observed = {container.name: container for container in self.engine.containers(self.host)}
        except EngineError as fault:
            self.engine_fault, self._observed = str(fault), None
            return None
        self.engine_fault, self._listed_s = "", began_s
        return self._observed

    def _step(self, workload: Workload, observed: dict[str, Container], now: float) -> None:
        must_end = self._must_end(workload, now)
        if workload.key in self._jobs:
            if must_end and workload.key in self._up:
                self._up[workload.key].cancel()
            return
        if workload.over:
            return
        if must_end:
            self._take_down(workload)
        elif workload.step == "ready":
            self._watch_over(workload, observed.get(workload.name), now)
        elif workload.step == "absent" or workload.step in ON_THE_WAY:
            self._bring_up(workload, now)
        elif workload.step in ("stopping", "stuck"):
            self._take_down(workload)

    def _must_end(self, workload: Workload, now: float) -> bool:
        if not workload.wanted:
            return True
        if any(other.wanted and other.epoch > workload.epoch for other in self._same_member(workload)):
            return True
        if workload.deadline_s is None or now < workload.deadline_s:
            return False
        if workload.step not in ("absent", "exited", "stopping", "stuck", "gone"):
            late = now - workload.deadline_s
            self._event(workload, "deadline_stop", f"no answer renewed it; its time ended {late:.1f} s ago")
            workload.detail = "stopped by its dead-man timer: the control plane was not heard in time"
            workload.failure = protocol.NOT_RENEWED
        return True

    def _same_member(self, workload: Workload) -> list[Workload]:
        return [
            other
            for other in self.workloads.values()
            if (other.lease, other.member) == (workload.lease, workload.member) and other is not workload
        ]

    def _watch_over(self, workload: Workload, container: Container | None, now: float) -> None:
        if container is not None and container.running:
            last = self._probed_s.setdefault(workload.key, now)
            if now - last >= PROBE_AGAIN_S:
                self._probed_s[workload.key] = now
                self._run(workload, BringUp(self, workload).probe_again, "probe")
            return
        if self._listed_s <= workload.since_s:
            self.look_again()  # the list is older than the workload: it proves nothing
            return
        code = container.exit_code if container is not None else None
        workload.exit_code = code
        detail = f"ended with code {code}" if container is not None else "its container was removed by somebody else"
        self._event(workload, "exited", detail, exit_code=code)
        self.move(workload, "exited", detail=detail)

    def _bring_up(self, workload: Workload, now: float) -> None:
        if not self._synced or not self.heard_lately(now):
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
            waiting = f"waits until {rivals[0].name} has left its GPUs"
            if workload.detail != waiting:
                self.move(workload, "absent", detail=waiting)
            return
        job = BringUp(self, workload)
        self._up[workload.key] = job
        self._run(workload, job.run, "up")

    def heard_lately(self, now: float) -> bool:
        """Return whether the server was heard within its silence limit: nothing new starts unheard."""
        return self._answered_s is not None and now - self._answered_s <= self._silence_limit_s

    def _take_down(self, workload: Workload) -> None:
        self._run(workload, lambda: take_down(self, workload), "down")

    def _run(self, workload: Workload, act: Callable[[], None], what: str) -> None:
        def job() -> None:
            try:
                act()
            except EngineError as fault:
                with self.lock:
                    self.engine_fault = str(fault)
            finally:
                with self.lock:
                    self._jobs.pop(workload.key, None)
                    self._up.pop(workload.key, None)
                    self._stale = True
                self.work.ring()

        thread = threading.Thread(target=job, name=f"{what}-{workload.name}", daemon=True)
        self._jobs[workload.key] = thread
        thread.start()

    def _stop_orphans(self, observed: dict[str, Container], now: float) -> None:
        """Stop containers with our labels that nobody knows, one sync and 60 s after they were first seen."""
        known = {workload.name for workload in self.workloads.values() if not workload.over}
        strangers = {name for name in observed if name not in known}
        self._orphans = {name: self._orphans.get(name, now) for name in strangers}
        if not self._synced:
            return
        for name, first in list(self._orphans.items()):
            if now - first < ORPHAN_AFTER_S:
                continue
            container = observed[name]
            self._orphans.pop(name)
            self.event("orphan_stopped", f"{name} has our labels, and nobody wants it", container=name)
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
            if orphan.name == name and orphan.key not in self.workloads:
                self.workloads[orphan.key] = orphan
                self._take_down(orphan)

    # The only ways to change or tell something

    def move(self, workload: Workload, step: str, *, detail: str = "", failure: str | None = None) -> None:
        """Put the workload into `step`: first in the journal, then for the server."""
        with self.lock:
            before, workload.step, workload.detail = workload.step, step, detail
            if step != before:
                workload.since_s = self.now_s()
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

    def event(self, kind: str, detail: str, **facts: Any) -> None:
        self.journal.put("event", {"kind": kind, "at": clocks.wall_iso(), "detail": detail, **facts})

    def _event(self, workload: Workload, kind: str, detail: str, **facts: Any) -> None:
        self.event(kind, detail, lease=workload.lease, member=workload.member, epoch=workload.epoch, **facts)
