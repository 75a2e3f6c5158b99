"""The conversation with the control plane: one signed request after the other, each with all there is to say.

News does not wait: a change of a workload's step rings `told`, the held request is left, and the next one carries it.
Silence is answered by waiting a random time (full jitter) that doubles up to a limit.
"""

import random
import threading
import time
from collections.abc import Callable
from typing import Any

from agents import protocol
from agents.node import clocks, watchdog
from agents.node.bell import Bell
from agents.node.drivers import Driver
from agents.node.identity import Identity, StateFolder
from agents.node.journal import Journal
from agents.node.log_shipping import LogShipping
from agents.node.reconciler import Reconciler
from agents.node.wire import Abandoned, NoContact, Refused, Wire
from agents.node.workload import Key

AGENT_VERSION = "0.1.0"
ANSWER_MARGIN_S = 10  # on top of the hold, for the way and a busy server
BACKOFF_MAX_S = 60.0
# While something runs, its dead-man timer is shorter than a minute: a control plane that is back must be heard in time.
BACKOFF_MAX_BUSY_S = 8.0
EVENTS_PER_SYNC = 100
SKEW_CONDITION_S = 30

Say = Callable[[str], None]


class Syncing:
    """Requests and answers of one agent process."""

    def __init__(
        self,
        *,
        folder: StateFolder,
        identity: Identity,
        wire: Wire,
        reconciler: Reconciler,
        driver: Driver,
        journal: Journal,
        inventory: Callable[[], dict[str, Any]],
        conditions: Callable[[], list[str]],
        wish: Callable[[dict[str, Any]], None],
        told: Bell,
        say: Say,
    ) -> None:
        self._folder, self._identity, self._wire = folder, identity, wire
        self._reconciler, self._driver, self._journal = reconciler, driver, journal
        self._inventory, self._conditions, self._wish = inventory, conditions, wish
        self._told, self._say = told, say
        self._logs = LogShipping(reconciler)
        self._instance = f"{random.SystemRandom().getrandbits(64):016x}"
        self._boot_no = folder.next_boot_no()
        self._seq = 0
        self._generation = -1
        self._hold_s = 5
        self._send_inventory = False
        self._failures = 0
        self._heard = False
        self._ended = threading.Event()

    @property
    def heard(self) -> bool:
        """Return whether this process had an answer that it may believe."""
        return self._heard

    def end(self) -> None:
        """Let `run` return; a held request is left."""
        self._ended.set()
        self._told.ring()

    def run(self) -> None:
        while not self._ended.is_set():
            self.once()

    def once(self) -> None:
        """Send one request, take in its answer, and wait as long as that asks for."""
        self._told.clear()
        gone = self._reconciler.gone()
        request = self._request()
        try:
            answer = self._wire.sync(
                identity=self._identity, request=request, timeout_s=self._hold_s + ANSWER_MARGIN_S, leave=self._told
            )
        except Abandoned:
            return
        except Refused as refused:
            self._refused(refused)
        except NoContact as fault:
            self._failed(str(fault))
        else:
            self._take(answer, gone=gone, request=request)

    def _request(self) -> protocol.SyncRequest:
        self._seq += 1
        inventory = self._inventory()
        return protocol.SyncRequest(
            boot_no=self._boot_no,
            seq=self._seq,
            instance=self._instance,
            boot_id=self._reconciler.boot_id,
            have_generation=self._generation,
            workloads=self._reconciler.reports(),
            devices=self._driver.sample(),
            inventory_hash=protocol.digest(inventory),
            inventory=inventory if self._send_inventory else None,
            events=self._journal.pending("event", limit=EVENTS_PER_SYNC),
            receipts=self._journal.pending("receipt", limit=EVENTS_PER_SYNC),
            logs=self._logs.chunks(),
            conditions=self._all_conditions(),
            version=AGENT_VERSION,
            rss_mib=rss_mib(),
            probe=self._driver.state(),
        )

    def _all_conditions(self) -> list[str]:
        found = set(self._conditions()) | set(self._driver.conditions())
        if self._reconciler.observing.fault:
            found.add("engine_down")
        if abs(self._wire.clock_offset_s) > SKEW_CONDITION_S:
            found.add("clock_skew")
        return sorted(found)

    def _take(self, answer: protocol.SyncAnswer, *, gone: set[Key], request: protocol.SyncRequest) -> None:
        if not self._heard or self._failures:
            self._say(f"in contact with the control plane (generation {answer.generation})")
        self._heard, self._failures = True, 0
        if answer.desired is not None or self._generation == -1:
            self._generation = answer.generation
        self._hold_s = min(60, max(0, answer.hold_s))
        self._send_inventory = "inventory" in answer.need
        self._driver.taken()
        for kind, name in (("event", "events"), ("receipt", "receipts")):
            if isinstance(answer.acks.get(name), int):
                self._journal.acknowledge(kind, n=answer.acks[name])
        self._logs.acknowledge(answer.acks.get("logs") or {})
        try:
            self._reconciler.apply(answer, reported_gone=gone)
        except protocol.ProtocolError as fault:
            self._generation = -1
            self._say(f"the list of wanted workloads cannot be read: {fault}")
        for wish in answer.wishes:
            self._wish(wish)
        if answer.wait_s > 0 and not self._send_inventory:
            self._pause(min(60, answer.wait_s))
        elif self._hold_s == 0 and not self._send_inventory:
            self._pause(1)

    def _refused(self, refused: Refused) -> None:
        """A clock that is off and a number that is used are mended at once; any other refusal is waited out."""
        if refused.slug == "agent-clock-skew" and self._failures == 0:
            self._wire.learn_time(str(refused.problem.get("server_time", "")))
            self._failures += 1
            self._say(f"the clock is {self._wire.clock_offset_s} s behind the control plane's; going on with theirs")
            return
        if refused.slug == "agent-replay":
            highest = refused.problem.get("boot_no")
            self._boot_no = self._folder.next_boot_no(at_least=highest if isinstance(highest, int) else 0)
            self._seq = 0
        self._failed(str(refused))

    def _failed(self, why: str) -> None:
        if self._failures in (0, 1, 5) or self._failures % 20 == 0:
            self._say(f"no contact: {why}")
        self._failures += 1
        self._generation = -1  # whatever was missed, the next answer brings the full list
        busy = bool(self._reconciler.reports())
        limit_s = min(BACKOFF_MAX_BUSY_S if busy else BACKOFF_MAX_S, 2.0 ** min(self._failures, 10))
        self._ended.wait(max(0.2, random.uniform(0, limit_s)))  # noqa: S311 -- spreads load, guards nothing

    def _pause(self, seconds: float) -> None:
        """Wait, but no longer than until there is news."""
        until = time.monotonic() + seconds
        while not self._ended.is_set() and (left := until - time.monotonic()) > 0:
            if self._told.wait(left):
                return


class Ticking:
    """The reconciler's loop, in a thread of its own."""

    def __init__(self, reconciler: Reconciler, work: Bell, say: Say) -> None:
        self._reconciler, self._work, self._say = reconciler, work, say
        self._ended = threading.Event()

    def end(self) -> None:
        self._ended.set()
        self._work.ring()

    def run(self) -> None:
        """Look whenever the bell rings or time has come. A fault of one look is said, and the next look is made."""
        while not self._ended.is_set():
            self._work.clear()
            try:
                wait_s = self._reconciler.tick()
                watchdog.tell("WATCHDOG=1")
            except Exception as fault:
                self._say(f"a look at the workloads failed: {type(fault).__name__}: {fault}")
                wait_s = 5.0
            self._work.wait(wait_s)


def rss_mib() -> int:
    """Return the resident memory of this process, in MiB, rounded up."""
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[1])
    return -(-pages * 4096 // (1024 * 1024))


def said(text: str) -> None:
    """Print one line for the journal of the machine."""
    print(f"{clocks.wall_iso()} {text}", flush=True)
