"""Processes of a stack that nobody watches any more: found by the mark in their environment or by where they stand.

A supervisor that was killed with `kill -9` leaves its children to the kernel's signal (processes.signal_when_parent_
dies) and *their* children to chance. Workloads of the process sandbox live on by design, for their agent to adopt.
"""

import os
import signal
from collections.abc import Callable
from pathlib import Path

from embedded import processes

MARK = "GPUYARD_STACK"


def children_of(state_dir: Path) -> list[int]:
    """Return the pids of all processes that a supervisor of this stack started, and of theirs; not ourselves."""
    return _matching(lambda pid: _is_marked(pid, state_dir))


def workloads_in(folder: Path) -> list[int]:
    """Return the pids of the processes whose working folder is in `folder`: the workloads of sandboxes there."""
    return _matching(lambda pid: _stands_in(pid, folder))


def end(find: Callable[[], list[int]], *, within_s: float = 5.0) -> int:
    """End what `find` finds, until it finds nothing: SIGTERM first, SIGKILL after `within_s`. Returns how many."""
    ended = find()
    _signal(ended, signal.SIGTERM)
    try:
        processes.poll_until(lambda: not find(), within_s=within_s if ended else 0, what="The end of leftovers")
    except processes.DeadlinePassed:

        def kill_what_is_there() -> bool:
            left = find()  # again and again: what is killed may have started others
            _signal(left, signal.SIGKILL)
            return not left

        processes.poll_until(kill_what_is_there, within_s=10, what="The end of killed leftovers")
    return len(ended)


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def _matching(is_ours: Callable[[int], bool]) -> list[int]:
    if not Path("/proc/self").exists():
        return []  # macOS: children end with their groups, and nothing else is known
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [pid for pid in pids if pid != os.getpid() and is_ours(pid) and processes.is_alive(pid)]


def _is_marked(pid: int, state_dir: Path) -> bool:
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False  # gone, or another person's
    return f"{MARK}={state_dir}".encode() in environment


def _stands_in(pid: int, folder: Path) -> bool:
    try:
        # A folder that was removed shows as "... (deleted)", which is still inside.
        return Path(os.readlink(f"/proc/{pid}/cwd")).is_relative_to(folder)
    except OSError:
        return False
