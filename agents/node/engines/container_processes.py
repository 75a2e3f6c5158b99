"""What the kernel says of a container's first process, beside the engine's word."""

from pathlib import Path

INIT = b"docker-init"


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
