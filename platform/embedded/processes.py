"""Processes of this machine: is one alive, is it the one we mean, end it, and wait for a condition with a deadline."""

import ctypes
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

POLL_S = 0.05
PORTS = range(20_000, 32_000)
PR_SET_PDEATHSIG = 1  # linux/prctl.h


class DeadlinePassed(Exception):
    """A condition did not come true in its time."""


def poll_until(condition: Callable[[], bool], *, within_s: float, what: str) -> None:
    """Return as soon as `condition()` is true. Raises DeadlinePassed, which names `what`, after `within_s` seconds."""
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            raise DeadlinePassed(f"{what} did not happen within {within_s:g} s.")
        time.sleep(POLL_S)


def is_alive(pid: int) -> bool:
    """Say whether `pid` runs. A zombie does not; one that is our own child is reaped on the way."""
    try:
        if os.waitpid(pid, os.WNOHANG)[0] == pid:
            return False
    except ChildProcessError:
        pass  # not our child: its parent reaps it
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return _state(pid) != "Z"


def _state(pid: int) -> str:
    """Return the process's state as one letter; Z if it went away while we looked."""
    if Path("/proc/self").exists():
        try:
            # After the last ")", since a process may put anything into its own name.
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return "Z"
    return _ps(pid, "stat=")[:1] or "Z"


def _ps(pid: int, column: str) -> str:
    """Ask `ps`, where there is no /proc (macOS)."""
    shown = subprocess.run(["ps", "-o", column, "-p", str(pid)], capture_output=True, text=True, check=False)
    return shown.stdout.strip()


def command_line(pid: int) -> str:
    """Return the command line of a process, or "" if it is gone."""
    if Path("/proc/self").exists():
        try:
            return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ").strip()
        except (FileNotFoundError, ProcessLookupError):
            return ""
    return _ps(pid, "args=")


def end(pid: int, *, first: signal.Signals = signal.SIGTERM, within_s: float) -> None:
    """End a process: `first`, and SIGKILL if it is still there after `within_s` seconds."""
    for number, patience_s in ((first, within_s), (signal.SIGKILL, 10.0)):
        try:
            os.kill(pid, number)
            poll_until(lambda: not is_alive(pid), within_s=patience_s, what=f"The end of process {pid}")
        except ProcessLookupError:
            return
        except DeadlinePassed:
            if number is signal.SIGKILL:
                raise
        else:
            return


def signal_when_parent_dies(number: signal.Signals) -> Callable[[], None]:
    """Return a `preexec_fn` that makes the kernel send `number` to the child when its parent dies (Linux only).

    The parent's thread that starts the child must be its main thread, for the kernel means the thread.
    """
    parent = os.getpid()
    if not sys.platform.startswith("linux"):
        return lambda: None
    libc = ctypes.CDLL(None, use_errno=True)

    def in_the_child() -> None:
        libc.prctl(PR_SET_PDEATHSIG, number)
        if os.getppid() != parent:  # it died between fork and prctl
            os.kill(os.getpid(), number)

    return in_the_child


def free_port() -> int:
    """Return a loopback TCP port that nobody listens on at the moment.

    Below the kernel's range for outgoing connections: in it, a client that calls while the server is down can be
    given the server's own port, talk to itself, and keep the server from coming back.
    """
    candidates = list(PORTS)
    random.shuffle(candidates)
    for port in candidates:
        if is_port_free(port):
            return port
    raise OSError(f"No loopback port of {PORTS} is free.")


def is_port_free(port: int) -> bool:
    try:
        with socket.create_server(("127.0.0.1", port)):
            return True
    except OSError:
        return False
