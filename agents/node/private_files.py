"""Files that a container gets and no disk ever holds: opened secrets, SSH keys, the notice of an end.

One folder per container on a tmpfs of the host, mounted read-only into it. The folder above it is closed to everybody
but the agent and the engine, so the files may be readable by whichever user the container runs as.
"""

import hashlib
import os
import shutil
from pathlib import Path

INSIDE = "/run/gpuyard"  # where a container sees its folder
SECRETS, SSH_KEYS, NOTICE = "secrets", "authorized_keys", "notice.json"
_IN_MEMORY = ("tmpfs", "ramfs")


class NoMemoryFolder(Exception):
    """No file system in memory was found; secrets cannot be handed to a container without writing them to a disk."""


class PrivateFiles:
    """The folders of one agent. open_above: for the process sandbox, whose workloads see the host's own paths."""

    def __init__(self, root: Path, *, open_above: bool = False) -> None:
        self.root = root
        for folder in reversed([root, *root.parents]):
            folder.mkdir(mode=0o711 if open_above else 0o700, exist_ok=True)
        root.chmod(0o711 if open_above else 0o700)

    def write(self, name: str, files: dict[str, bytes]) -> Path:
        """Put `files` (by their path below the container's folder) in place and return that folder."""
        folder = self.root / name
        for path, content in files.items():
            target = folder / path
            target.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            fresh = target.with_name(f".{target.name}.new")
            fresh.unlink(missing_ok=True)
            with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o444), "wb") as file:
                file.write(content)
            fresh.replace(target)  # a reader inside sees the old file or the new one, never half of it
        folder.mkdir(mode=0o755, exist_ok=True)
        return folder

    def drop(self, name: str, path: str) -> None:
        """Take one file of a container away."""
        (self.root / name / path).unlink(missing_ok=True)

    def remove(self, name: str) -> None:
        shutil.rmtree(self.root / name, ignore_errors=True)

    def names(self) -> list[str]:
        return sorted(folder.name for folder in self.root.iterdir())


def folder_in_memory(state: Path, *, wanted: str | None = None) -> Path:
    """Return this agent's folder on a tmpfs: `wanted`, what systemd gave it, or one of /run and /dev/shm.

    Raises NoMemoryFolder.
    """
    own = hashlib.sha256(str(state.resolve()).encode()).hexdigest()[:16]
    given = wanted or os.environ.get("RUNTIME_DIRECTORY", "").partition(":")[0]
    for above in [Path(given)] if given else [Path("/run"), Path("/dev/shm")]:  # noqa: S108 -- tmpfs is what is wanted
        if is_in_memory(above) and os.access(above, os.W_OK):
            return above / f"gpuyard-agent-{own}"
    raise NoMemoryFolder("neither /run nor /dev/shm is a tmpfs that the agent may write to")


def is_in_memory(path: Path) -> bool:
    """Return whether the file system at `path` is a tmpfs."""
    best, kind = "", ""
    with open("/proc/mounts") as mounts:
        for line in mounts:
            _, where, found, *_ = line.split()
            inside = str(path) == where or f"{path}/".startswith(where.rstrip("/") + "/")
            if inside and len(where) >= len(best):
                best, kind = where, found
    return kind in _IN_MEMORY
