"""The clocks of the agent. Deadlines are in seconds since boot (CLOCK_BOOTTIME): no clock step moves them, and sleep
of the machine counts; wall time is only for people and for the signature's `created`."""

import time
from datetime import UTC, datetime
from pathlib import Path

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_s() -> float:
    """Return seconds since the machine was booted."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def boot_id() -> str:
    """Return the kernel's id of this boot: two values that differ mean that the machine was restarted in between."""
    return BOOT_ID.read_text().strip()


def wall_iso(offset_s: int = 0) -> str:
    """Return the wall clock plus `offset_s`, as ISO text in UTC with whole seconds."""
    return datetime.fromtimestamp(int(time.time()) + offset_s, UTC).isoformat().replace("+00:00", "Z")
