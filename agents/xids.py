"""What an Xid of the NVIDIA driver means for a device: read from data/xids.json, which names its sources. Pure.

The driver's own verdict (recovery action) overrides the table, upwards and downwards. An unknown Xid degrades the
device if a lease was on it, and is only counted otherwise.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_FILE = Path(__file__).parent / "data" / "xids.json"
ORDER = ("ignore", "user_fault", "degrade", "reset_gpu", "reboot_host", "rma")  # from mild to severe
OFF_THE_BUS = 79
BURST_S = 180  # Xids of one device belong together until so long none came


@dataclass(frozen=True)
class Xid:
    number: int
    severity: str  # one of ORDER
    provider_fault: bool
    meaning: str


@cache
def table() -> dict[int, Xid]:
    entries = json.loads(_FILE.read_text())["xids"]
    return {e["id"]: Xid(e["id"], e["severity"], e["provider_fault"], e["meaning"]) for e in entries}


@cache
def _recovery_severities() -> dict[int | None, str]:
    return {a["value"]: a["severity"] for a in json.loads(_FILE.read_text())["recovery_actions"]}


def look_up(number: int, *, leased: bool) -> Xid:
    """Return the entry of an Xid; for one that the table does not know, what the rule for unknown ones says."""
    known = table().get(number)
    return known or Xid(number, "degrade" if leased else "ignore", False, "Not in our table.")


def worst(numbers: Iterable[int], *, leased: bool, recovery_action: int | None = None) -> Xid | None:
    """Return the most severe of a burst, with the severity that the driver's recovery action gives if there is one.

    recovery_action: NVML field 230, or None where the driver (older than 565) has none. 0 is "none": it clears.
    """
    found = [look_up(number, leased=leased) for number in numbers]
    if not found:
        return None
    most = max(found, key=lambda xid: ORDER.index(xid.severity))
    if recovery_action is None:
        return most
    severities = _recovery_severities()
    return Xid(most.number, severities.get(recovery_action, severities[None]), most.provider_fault, most.meaning)
