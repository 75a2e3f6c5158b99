"""Signs of one device that stand for as long as they are seen: memory rows, NVLink, load that nobody causes. Pure.

Each is a sentence for people; `agents.health` makes the device suspect while there is any.
"""

from collections.abc import Mapping
from typing import Any

GHOST_AFTER_S = 600
GHOST_UTIL_PERCENT = 50
GHOST_MEMORY_MIB = 1024  # a driver keeps some hundred MiB for itself


def standing(readings: Mapping[str, Any], memory: dict[str, Any], *, leased: bool, now: int) -> list[str]:
    """Return the faults that this reading shows; what it takes to see them over time is kept in `memory`."""
    found = []
    if number(readings.get("row_remap_pending")):
        found.append("A row remap waits for a reset.")
    if number(readings.get("retired_pages_pending")):
        found.append("Retired memory pages wait for a reboot.")
    return found + _links(readings, memory) + _ghost(readings, memory, leased=leased, now=now)


def is_suspicious(readings: Mapping[str, Any]) -> bool:
    """Return whether a reading may be one that `standing` would want to see."""
    pending = number(readings.get("row_remap_pending")) or number(readings.get("retired_pages_pending"))
    return bool(pending or number(readings.get("row_remap_failed")) or _looks_used(readings))


def _links(readings: Mapping[str, Any], memory: dict[str, Any]) -> list[str]:
    """Fewer NVLinks are up than once were: it is still a GPU, and no good for work over several."""
    up = number(readings.get("nvlinks_up"))
    if up is None:
        return []
    memory["nvlinks"] = most = max(int(up), memory.get("nvlinks", 0))
    return [f"{int(up)} of {most} NVLinks are up."] if up < most else []


def _ghost(readings: Mapping[str, Any], memory: dict[str, Any], *, leased: bool, now: int) -> list[str]:
    """Load or memory in use for ten minutes with no process: what a killed client left, or somebody who hides."""
    if leased or not _looks_used(readings):
        memory.pop("ghost_at", None)
        return []
    since = memory.setdefault("ghost_at", now)
    return ["It is in use, and no process of anybody's is on it."] if now - since >= GHOST_AFTER_S else []


def _looks_used(readings: Mapping[str, Any]) -> bool:
    if readings.get("processes") != []:
        return False  # somebody is there, or the driver does not say
    load, used = number(readings.get("utilization_percent")), number(readings.get("memory_used_mib"))
    return (load or 0) >= GHOST_UTIL_PERCENT or (used or 0) >= GHOST_MEMORY_MIB


def number(value: Any) -> float | None:
    """Return a figure, or None: what a driver does not give is left out or null, and never counts as zero."""
    return float(value) if isinstance(value, (int, float)) else None
