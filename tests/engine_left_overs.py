"""What a test's engine leaves where its run was killed before it could end it: processes, mounts, a network, a folder.

The folder says which process it belongs to. The next run that starts an engine clears what belongs to a dead one.
"""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path

PREFIX, OWNER = "gyd", "owner"
END_S = 20


def new_folder() -> Path:
    """Return a folder for an engine of this process. It is short: a UNIX socket's path has 107 characters."""
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    (folder / OWNER).write_text(f"{os.getpid()} {_began(os.getpid())}")
    return folder


def clear_dead() -> None:
    """Clear the engines of runs that are dead."""
    for owner in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{OWNER}"):
        with suppress(OSError, ValueError):
            pid, began = owner.read_text().split(" ", 1)
            if _began(int(pid)) != began:
                clear(owner.parent)


def clear(folder: Path) -> None:
    """End all processes of an engine and its containers, and take its mounts, its network and its folder away."""
    ids = [entry.name for entry in (folder / "data" / "containers").glob("*")]
    deadline = time.monotonic() + END_S
    while (pids := _processes(folder, ids)) and time.monotonic() < deadline:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for mount in reversed([mount for mount in mounts if mount.startswith(f"{folder}/")]):
        subprocess.run(["umount", "-l", mount], capture_output=True, check=False)
    if (Path("/run/netns") / folder.name).exists():
        subprocess.run(["ip", "netns", "del", folder.name], capture_output=True, timeout=20, check=False)
    shutil.rmtree(folder, ignore_errors=True)


def _processes(folder: Path, ids: list[str]) -> list[int]:
    """Return the live processes that name the folder, are in the engine's own network, or in a container's group."""
    network = Path("/run/netns") / folder.name
    own = network.stat().st_ino if network.exists() else None
    found = []
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        place = Path(f"/proc/{pid}")
        with suppress(OSError):
            if pid == os.getpid() or (place / "stat").read_text().rpartition(")")[2].split()[0] in ("Z", "X"):
                continue
            named = f"{folder}/".encode() in (place / "cmdline").read_bytes()
            inside = own is not None and (place / "ns" / "net").stat().st_ino == own
            groups = (place / "cgroup").read_text()
            if named or inside or any(name in groups for name in ids):
                found.append(pid)
    return found


def _began(pid: int) -> str:
    """Return when a process began, in ticks since boot; "" if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""
