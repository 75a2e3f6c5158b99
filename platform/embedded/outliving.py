"""A server that outlives whoever started it, and is found again through its home.

It runs in a session of its own, as an unprivileged account where we are root. Its port and password stay in its home,
so that the next `start` attaches to it, and a server that was killed comes back where its clients look for it.
"""

import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

from embedded import processes, server_home

TAIL_OF_LOG = 2_000  # characters


class StartFailed(Exception):
    """The server did not become ready; the message ends with the tail of its log."""


@dataclass(frozen=True)
class OutlivingServer(ABC):
    """A server of ours, running or not.

    home: its folder, owned by the account that it runs as (server_home).
    die_with_parent: end it, cleanly, when the process that started it dies; for throw-away servers.
    """

    name: ClassVar[str]
    end_signal: ClassVar[signal.Signals]
    # What a start may say that is over in a moment: it is tried again.
    passing_reasons: ClassVar[Sequence[str]] = ()

    home: Path
    die_with_parent: bool = False

    @classmethod
    def in_state_dir(cls, state_dir: Path) -> Self:
        """Return the server of this state folder; its home is made if it is not there."""
        return cls(server_home.make_home(state_dir, cls.name, server_home.unprivileged_account()))

    @classmethod
    def existing(cls, state_dir: Path) -> Self | None:
        """Return the server that this state folder already has, or None."""
        home = server_home.home_of(state_dir, cls.name)
        return cls(home) if home is not None else None

    @property
    def account(self) -> server_home.Account | None:
        return server_home.owner_of(self.home)

    @property
    def log(self) -> Path:
        return self.home / "log"

    @property
    def port(self) -> int:
        return int((self.home / "port").read_text())

    @property
    def password(self) -> str:
        return (self.home / "password").read_text().strip()

    @abstractmethod
    def pid(self) -> int | None:
        """Return the pid of the running server, or None; a pid that now belongs to another program is None."""

    @abstractmethod
    def answers(self) -> bool:
        """Say whether a client with the password gets an answer."""

    @abstractmethod
    def prepare(self) -> None:
        """Make what the server needs before it starts: its files and its password. May run again."""

    @abstractmethod
    def command(self) -> list[str]:
        """Return the command line. The server stays in the foreground and logs to its standard error."""

    @abstractmethod
    def is_up(self, pid: int) -> bool:
        """Say whether the process `pid`, which we have just started, has got as far as to be found by `pid()`."""

    def start(self, *, keep_port: bool = False, within_s: float = 60.0) -> Self:
        """Start the server or find it running, and return it when it answers.

        keep_port: wait for the port of last time, for clients that know it; otherwise a new one if that is taken.
        Raises StartFailed or processes.DeadlinePassed.
        """
        deadline = time.monotonic() + within_s
        self.prepare()
        while not ((self.home / "port").exists() and self.answers()):
            # Asked each time: a server that is going down has a pid at first, and is to be started when it is gone.
            if self.pid() is None:
                self._launch(keep_port=keep_port, deadline=deadline)
            if time.monotonic() > deadline:
                raise processes.DeadlinePassed(f"{self.name} did not answer within {within_s:g} s.")
            time.sleep(processes.POLL_S)
        return self

    def stop(self, *, within_s: float = 30.0) -> None:
        """End the server. No error if it is not running."""
        pid = self.pid()
        if pid is not None:
            processes.end(pid, first=self.end_signal, within_s=within_s)

    def _launch(self, *, keep_port: bool, deadline: float) -> None:
        """Start the process and wait until it is up. Returns without it after a passing refusal."""
        if not (self.home / "port").exists() or not (keep_port or processes.is_port_free(self.port)):
            server_home.write_private(self.home / "port", str(processes.free_port()), self.account)
        log_before = self.log.stat().st_size if self.log.exists() else 0
        child = self._spawn()
        processes.poll_until(
            lambda: child.poll() is not None or self.is_up(child.pid),
            within_s=max(1.0, deadline - time.monotonic()),
            what=f"The start of {self.name}",
        )
        if child.poll() is None:
            return
        said = self.log.read_bytes()[log_before:].decode(errors="replace")
        if time.monotonic() > deadline or not any(reason in said for reason in self.passing_reasons):
            raise StartFailed(f"{self.name} ended with {child.returncode}:\n{said[-TAIL_OF_LOG:]}")

    def _spawn(self) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            server_home.give(self.log, self.account)
            return subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=processes.signal_when_parent_dies(self.end_signal) if self.die_with_parent else None,
                **server_home.popen_arguments(self.account),
            )
