"""What a self-test measures of the machine itself: its disk, and how far away the control plane is.

Each figure stands alone and is left out where it cannot be had; none is 0 for want of one. The network's width is not
measured: that takes somebody at the other end who is paid for it.
"""

import mmap
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

MIB = 1024 * 1024
BLOCK = 4 * MIB
DISK_S = 2.0  # at most so long for each direction
DISK_MOST = 128 * MIB
CONNECTS = 3
CONNECT_WAIT_S = 3.0


def figures(*, folder: Path, server: str) -> dict[str, int]:
    """Return disk_write_mib_per_s, disk_read_mib_per_s (past the page cache) and control_connect_us, where measured."""
    found = disk(folder)
    try:
        found["control_connect_us"] = connect_us(server)
    except (OSError, ValueError):
        return found
    return found


def disk(folder: Path) -> dict[str, int]:
    """Write and read a file of its own past the page cache, and remove it; {} where the file system cannot do that."""
    path = folder / f"selftest-{os.getpid()}.tmp"
    found: dict[str, int] = {}
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_DIRECT, 0o600)
    except OSError:
        return found
    try:
        path.unlink()  # nobody finds half of it after a death
        block = mmap.mmap(-1, BLOCK)  # aligned, as O_DIRECT wants it
        block.write(os.urandom(BLOCK))
        written, write_s = _for_a_while(lambda at: os.pwrite(handle, block, at), most=DISK_MOST)
        began_s = time.monotonic()
        os.fdatasync(handle)
        found["disk_write_mib_per_s"] = _rate(written, write_s + time.monotonic() - began_s)
        read, read_s = _for_a_while(lambda at: os.preadv(handle, [block], at), most=written)
        found["disk_read_mib_per_s"] = _rate(read, read_s)
    except OSError:
        pass  # a full disk, or one that breaks off: what was measured before stands
    finally:
        os.close(handle)
    return {name: value for name, value in found.items() if value > 0}


def _for_a_while(act: Callable[[int], int], *, most: int) -> tuple[int, float]:
    """Return how many bytes went through in how many seconds."""
    began_s, done = time.monotonic(), 0
    while done < most and time.monotonic() - began_s < DISK_S:
        moved = act(done)
        if moved <= 0:
            break
        done += moved
    return done, time.monotonic() - began_s


def _rate(size: int, seconds: float) -> int:
    return int(size / MIB / seconds) if seconds > 0 else 0


def connect_us(server: str) -> int:
    """Return the median of a few TCP connections to the control plane, in microseconds. Raises OSError."""
    url = urlsplit(server)
    address = (str(url.hostname), url.port or (443 if url.scheme == "https" else 80))
    took = []
    for _ in range(CONNECTS):
        began_s = time.monotonic()
        with socket.create_connection(address, CONNECT_WAIT_S):
            took.append(int((time.monotonic() - began_s) * 1e6))
    return max(1, sorted(took)[len(took) // 2])
