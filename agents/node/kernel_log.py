"""Xids from the kernel log: NVML tells only of those that come while somebody waits, and not at all of a dead bus."""

import os
import re
import select
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

DEVICE = Path("/dev/kmsg")
XID = re.compile(
    r"NVRM: Xid \((?:PCI:)?(?P<bdf>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2})(?:\.[0-7])?"
    r"(?: GPU-I:(?P<gpu_instance>[0-9A-Fa-f]+))?\)[^:]*: (?P<xid>[0-9]{1,4})(?![0-9])"
)
BUS_LOSS = re.compile(
    r"NVRM: .{0,40}?GPU (?P<bdf>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2})\.[0-7]"
    r"[^\n]*?(?:\n[^\n]*){0,3}?fallen off the bus"
)
RECOVERY = re.compile(r"NVRM: Xid [^\n]*: 154,[^\n]*? to 0x(?P<action>[0-9A-Fa-f]+)")
OFF_THE_BUS = 79
RECORD_BYTES = 8192
# A loss of the bus may be told in up to three lines.
JOINED_LINES = 3


@dataclass(frozen=True)
class Sighting:
    """One Xid. bdf: PCI address as written. synthetic: made from a line that names no Xid."""

    bdf: str
    xid: int
    gpu_instance: str | None = None
    recovery_action: int | None = None
    synthetic: bool = False


def read(record: str) -> Sighting | None:
    """Return the Xid that a record of the kernel log (with its continuation lines) tells of, or None."""
    match = XID.search(record)
    if match is not None:
        action = RECOVERY.search(record)
        return Sighting(
            bdf=match["bdf"],
            xid=int(match["xid"]),
            gpu_instance=match["gpu_instance"],
            recovery_action=int(action["action"], 16) if action else None,
        )
    match = BUS_LOSS.search(record)
    return None if match is None else Sighting(bdf=match["bdf"], xid=OFF_THE_BUS, synthetic=True)


def same_address(one: str, other: str) -> bool:
    """Return whether two PCI addresses mean one device, whatever the width of the domain and with or without `.0`."""
    return _plain(one) == _plain(other)


def _plain(address: str) -> str:
    domain, _, rest = address.lower().partition(".")[0].partition(":")
    return f"{int(domain, 16):x}:{rest}"


class KernelLog:
    """Follows the kernel log from now on, in a thread that costs nothing while nothing is written."""

    def __init__(self, told: Callable[[Sighting, str], None], *, path: Path = DEVICE) -> None:
        self._told, self._path = told, path
        self._ended_r, self._ended_w = os.pipe()
        self._lines: list[str] = []

    def start(self) -> bool:
        """Begin; return whether the log can be read here."""
        try:
            handle = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK)
        except OSError:
            return False
        if self._path == DEVICE:
            os.lseek(handle, 0, os.SEEK_END)
        threading.Thread(target=self._follow, args=(handle,), name="kernel-log", daemon=True).start()
        return True

    def stop(self) -> None:
        os.write(self._ended_w, b"x")

    def _follow(self, handle: int) -> None:
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        poll.register(self._ended_r, select.POLLIN)
        while all(fd != self._ended_r for fd, _ in poll.poll()):
            try:
                raw = os.read(handle, RECORD_BYTES)
            except BrokenPipeError:
                continue  # the kernel overwrote what we had not read: go on with what is there
            except BlockingIOError:
                continue
            except OSError:
                break
            if not raw:
                break
            for line in raw.decode(errors="replace").splitlines():
                self._take(line.partition(";")[2] or line)
        os.close(handle)

    def _take(self, line: str) -> None:
        if "NVRM" not in line:
            return
        self._lines = [*self._lines[-(JOINED_LINES - 1) :], line]
        sighting = read(line)
        if sighting is None and "fallen off the bus" in line:
            sighting = read("\n".join(self._lines))
        if sighting is not None:
            self._told(sighting, line[:300])
            self._lines = []
