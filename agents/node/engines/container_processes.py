"""What the kernel says of a container's processes, beside the engine's word.

An engine that dies between the start of a container and its own note of it comes back without knowing that it runs: it
lists it as never started, and removes it while its processes go on, on the tenant's GPUs. The kernel's control group
has the container's id in its name, whatever the engine knows.
"""

import os
import signal
import time
from pathlib import Path

INIT = b"docker-init"
PROC = Path("/proc")
ID_LENGTH = 64
LOOK_EVERY_S = 0.05


def of(container_id: str) -> list[int]:
    """Return the live processes in the control group of a container, by its full id."""
    if len(container_id) != ID_LENGTH:
        return []
    name, found = container_id.encode(), []
    for pid in (int(entry) for entry in os.listdir(PROC) if entry.isdigit()):
        try:
            groups = (PROC / str(pid) / "cgroup").read_bytes()
        except OSError:
            continue  # it has ended meanwhile
        if name in groups and is_alive(pid):
            found.append(pid)
    return found


def end(container_id: str, *, within_s: float) -> bool:
    """SIGKILL whatever is in the control group of a container that the engine says does not run; return whether nothing
    is left. Who may not send signals to a tenant's processes is told False at once: gpuyard-root may."""
    deadline = time.monotonic() + within_s
    while pids := of(container_id):
        signalled = sum(_kill(pid) for pid in pids)
        if not signalled or time.monotonic() > deadline:
            return False
        time.sleep(LOOK_EVERY_S)
    return True


def _kill(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except PermissionError:
        return False
    except ProcessLookupError:
        pass
    return True


def has_begun(pid: int | None) -> bool:
    """Return whether a container's first process has started the image's program.

    An engine's small init is that first process where there is one. Until its child has become the program (or has
    failed to: it is not in the image), both have the same command line.
    """
    try:
        own = Path(f"/proc/{pid}/cmdline").read_bytes()
        if INIT not in own.partition(b"\0")[0]:
            return True
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return any(Path(f"/proc/{child}/cmdline").read_bytes() not in (own, b"") for child in children)
    except OSError:
        return True  # not ours to see, or over: the engine's word is all there is


def is_alive(pid: int | None) -> bool:
    if pid is None:
        return False
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (FileNotFoundError, ProcessLookupError):
        return False
