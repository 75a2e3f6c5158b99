"""Keeps the processes of the stack running: starts them, restarts what ends, and ends all of them.

One thread and a short tick. Each child leads a session of its own and gets SIGTERM from the kernel if we die, so that
nothing is left running unwatched; the servers (outliving.py) stay, for the next supervisor to attach to.
"""

import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from embedded import engine, leftovers, processes
from embedded.outliving import OutlivingServer, StartFailed
from embedded.process_table import Process
from embedded.stack_folder import StackFolder

TICK_S = 0.1
LONGEST_BACK_OFF_S = 20.0
STEADY_AFTER_S = 30.0  # a process that ran this long starts again at once when it ends
LOG_BYTES = 20 * 1024 * 1024


@dataclass
class Child:
    """A process of the table, and how it fares. Times are of the monotonic clock."""

    process: Process
    running: subprocess.Popen[bytes] | None = None
    started_at: float = 0.0
    ready: bool = False
    starts: int = 0
    quick_ends: int = 0
    start_after: float = 0.0
    last_exit: int | None = None

    def described(self) -> dict[str, Any]:
        return {
            "pid": self.running.pid if self.running else None,
            "ready": self.ready,
            "starts": self.starts,
            "last_exit": self.last_exit,
        }


class Supervisor:
    """servers: what must answer for the children to be of use. environment: what every child gets, whole."""

    def __init__(self, folder: StackFolder) -> None:
        self.folder = folder
        self.servers: Sequence[OutlivingServer] = ()
        self.environment: dict[str, str] = {leftovers.MARK: str(folder.path)}
        self.children: dict[str, Child] = {}
        self.stopping = False
        self._described: dict[str, Any] = {}
        self._server_start_after = 0.0

    def stop(self, *_: object) -> None:
        """Ask it to stop; a signal handler."""
        self.stopping = True

    def add(self, table: Sequence[Process]) -> None:
        """Start these processes too, at the next tick."""
        self.children |= {process.name: Child(process) for process in table}

    def remove(self, name: str) -> None:
        """End one process and forget it."""
        child = self.children.pop(name)
        if child.running is not None:
            _signal_group(child.running.pid, signal.SIGTERM)
            self._wait_or_kill(child, until=time.monotonic() + child.process.end_within_s)

    def run_until(self, done: Callable[[], bool]) -> None:
        """Watch everything until `done()` or until we are asked to stop."""
        while not (self.stopping or done()):
            self.tick()
            time.sleep(TICK_S)

    def tick(self) -> None:
        """Look once at everything: note what ended, start what is due, see what has become ready."""
        now = time.monotonic()
        self._watch_servers(now)
        for child in self.children.values():
            self._note_end(child, now)
            if self.folder.is_process_held(child.process.name):
                self._kill(child)
            elif child.running is None and now >= child.start_after:
                self._start(child, now)
            elif child.running is not None and not child.ready:
                child.ready = _is_ready(child.process)
        self.tell()

    def tell(self, **facts: Any) -> None:
        """Write status.json if anything in it has changed. facts: stay in it from now on, and in the log."""
        if facts:
            self._log(", ".join(f"{name}: {value}" for name, value in facts.items()))
        described = {
            **self._described,
            **facts,
            "supervisor_pid": os.getpid(),
            "servers": {server.name: {"pid": server.pid(), "port": server.port} for server in self.servers},
            "processes": {name: child.described() for name, child in self.children.items()},
        }
        if described != self._described:
            self._described = described
            self.folder.write("status", described)

    def all_ready(self) -> bool:
        return all(child.ready for child in self.children.values())

    def begin(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a command of the set-up, beside others; `finish` waits for it."""
        with self.folder.log(name).open("ab") as log:
            return subprocess.Popen(
                arguments,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                preexec_fn=processes.signal_when_parent_dies(signal.SIGTERM),
            )

    def finish(self, name: str, begun: subprocess.Popen[bytes], *, within_s: float) -> str:
        """Return what a begun command has printed. Raises StartFailed with its log's tail if it failed or is late."""
        try:
            printed = begun.communicate(timeout=within_s)[0].decode(errors="replace")
        except subprocess.TimeoutExpired:
            begun.kill()
            printed = begun.communicate()[0].decode(errors="replace") + f"\nkilled after {within_s:g} s"
        if begun.returncode != 0:
            tail = self.folder.log(name).read_text(errors="replace")[-2_000:]
            raise StartFailed(f"{name} ended with {begun.returncode}:\n{tail}{printed}")
        return printed

    def stop_children(self) -> None:
        """End every child and all that they started: SIGTERM to all at once, SIGKILL to the groups that stay."""
        for child in self.children.values():
            if child.running is not None:
                _signal_group(child.running.pid, signal.SIGTERM)
        asked_at = time.monotonic()
        for child in sorted(self.children.values(), key=lambda child: child.process.end_within_s):
            self._wait_or_kill(child, until=asked_at + child.process.end_within_s)
        leftovers.end(lambda: leftovers.children_of(self.folder.path))

    def _watch_servers(self, now: float) -> None:
        """Bring back a server that was killed, on the port that its clients know."""
        for server in self.servers:
            if server.pid() is None and now >= self._server_start_after:
                self._log(f"{server.name} is gone: starting it again")
                try:
                    server.start(keep_port=True)
                except (StartFailed, processes.DeadlinePassed) as fault:
                    self._server_start_after = now + LONGEST_BACK_OFF_S / 4
                    self._log(f"{server.name} did not start: {fault}")

    def _start(self, child: Child, now: float) -> None:
        log_path = self.folder.log(child.process.name)
        _shorten(log_path)
        with log_path.open("ab") as log:
            child.running = subprocess.Popen(
                child.process.command,
                env={**self.environment, **child.process.environment},
                cwd=self.folder.path,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=processes.signal_when_parent_dies(signal.SIGTERM),
            )
        child.started_at, child.starts = now, child.starts + 1

    def _note_end(self, child: Child, now: float) -> None:
        if child.running is None or child.running.poll() is None:
            return
        child.last_exit = child.running.returncode
        _signal_group(child.running.pid, signal.SIGKILL)  # what it left in its group
        steady = now - child.started_at >= STEADY_AFTER_S
        child.quick_ends = 0 if steady else child.quick_ends + 1
        back_off_s = 0.0 if steady else min(LONGEST_BACK_OFF_S, 0.25 * 2.0**child.quick_ends)
        child.running, child.ready, child.start_after = None, False, now + back_off_s
        self._log(f"{child.process.name} ended with {child.last_exit}; again in {back_off_s:g} s")

    def _wait_or_kill(self, child: Child, *, until: float) -> None:
        if child.running is not None:
            try:
                child.running.wait(max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                self._log(f"{child.process.name} did not end in {child.process.end_within_s:g} s: killed")
            self._kill(child)

    def _kill(self, child: Child) -> None:
        if child.running is not None:
            _signal_group(child.running.pid, signal.SIGKILL)
            child.last_exit = child.running.wait()
            child.running, child.ready = None, False

    def _log(self, sentence: str) -> None:
        with self.folder.log("supervisor").open("a") as log:
            log.write(f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ} {sentence}\n")


def _is_ready(process: Process) -> bool:
    if process.enrolled_in is not None:
        identity = process.enrolled_in / "identity.json"
        return identity.exists() and bool(json.loads(identity.read_text()).get("host"))
    return process.answers_at is None or _answers(process.answers_at)


def _answers(url: str) -> bool:
    """Say whether a web server answers there, be it with a refusal; an error of its own is no answer."""
    if url.startswith("unix:"):
        return engine.answers(Path(url.removeprefix("unix:")))
    try:
        with urllib.request.urlopen(url, timeout=2):  # noqa: S310 -- a URL of our own
            return True
    except urllib.error.HTTPError as refusal:
        return refusal.code < 500
    except OSError:
        return False


def _signal_group(leader: int, number: signal.Signals) -> None:
    try:
        os.killpg(leader, number)
    except (ProcessLookupError, PermissionError):  # gone; or (macOS) all of it are zombies
        return


def _shorten(log: Path) -> None:
    """Keep one older file beside a log that has grown long."""
    if log.exists() and log.stat().st_size > LOG_BYTES:
        log.replace(log.with_suffix(".old.log"))
