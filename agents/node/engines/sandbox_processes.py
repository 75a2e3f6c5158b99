"""Which processes of this machine belong to a workload of the process sandbox, and waiting for their ends.

A process counts as a workload's only if its environment names the workload and its folder: pids are reused, and two
agents on one machine may each have a workload of the same name.
"""

import contextlib
import os
import select
from collections.abc import Callable
from pathlib import Path

MARK = "GPUYARD_CONTAINER"
PLACE = "GPUYARD_SANDBOX"


def send(number: int, pids: list[int], *, group: bool) -> None:
    """Send a signal to each of the processes, or to the whole group of each."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            if group:
                os.killpg(os.getpgid(pid), number)
            else:
                os.kill(pid, number)


def ring_at_end(handle: int, ring: Callable[[], None]) -> None:
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    poll.poll()
    os.close(handle)
    ring()


def await_one(pids: list[int], wait_s: float) -> None:
    """Return when one of the processes has ended, or after `wait_s`."""
    poll = select.poll()
    handles = []
    for pid in pids:
        with contextlib.suppress(OSError):
            handles.append(os.pidfd_open(pid))
            poll.register(handles[-1], select.POLLIN)
    if len(handles) == len(pids):
        poll.poll(int(wait_s * 1000))
    for handle in handles:
        os.close(handle)


def environment_of(pid: int) -> dict[str, str]:
    """Return the environment with which a process was started; empty when it is gone or not ours to read."""
    try:
        raw = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return {}
    parts = (part.partition(b"=") for part in raw.split(b"\0") if part)
    return {name.decode(errors="replace"): value.decode(errors="replace") for name, _, value in parts}


def is_of(pid: int, folder: Path) -> bool:
    """Return whether a live process (no zombie) carries the mark of the workload that has this folder.

    The name alone is not enough: two agents on one machine may each have a workload of the same name.
    """
    seen = environment_of(pid)
    if seen.get(MARK) != folder.name or seen.get(PLACE, str(folder)) != str(folder):
        return False
    stat = read_text(Path(f"/proc/{pid}/stat")) or ""
    return stat.rpartition(")")[2].split()[:1] not in ([], ["Z"], ["X"])


def pids_of(folder: Path) -> list[int]:
    """Return every process that carries the mark of the workload with this folder, also those that left its session."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and is_of(int(name), folder)]


def workload_pid(launcher: int) -> int:
    """Return the launcher's child, which is the workload itself."""
    text = read_text(Path(f"/proc/{launcher}/task/{launcher}/children")) or ""
    return int(text.split()[0]) if text.split() else launcher


def read_text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return None
