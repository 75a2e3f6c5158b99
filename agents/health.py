"""The health of one device, decided from what its host reports. Pure: facts in, the next state out.

    unknown -> healthy <-> suspect -> degraded -> remedy -> selftest -> healthy        lost        failed (operator)

One sick GPU is taken out, not its host. At once: a lost device, and an Xid or recovery action that asks for a reset.
With hysteresis, since one bad reading is none: late probes (2 of 3, back after 3 good ones), slow-downs by heat or
power (6 in 10 min, back after 30 min), PCIe replays or a narrow link (3 windows each way). While they are seen: memory
rows or pages that wait for a reset, missing NVLinks, use without a process for 10 min (agents.device_signals).
`remedy` and `lost` are left only through a remedy that was seen (a new boot of the host, or the driver's request for a
reset withdrawn) and a passed self-test: never by time, never because a query works again. `degraded` is left through a
self-test once its burst of Xids is over. More than 3 changes in 24 h: held for an operator.

What it does to leases: `lost`, `remedy` and `failed` end the use of the device at the second of the report (the tenant
is not charged from there on); `suspect`, `degraded`, `selftest` and `unknown` only keep new leases away.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from agents import device_signals, xids
from agents.device_signals import number
from agents.protocol import DeviceReport

UNKNOWN, HEALTHY, SUSPECT, DEGRADED = "unknown", "healthy", "suspect", "degraded"
REMEDY, SELFTEST, LOST, FAILED = "remedy", "selftest", "lost", "failed"
SICK = frozenset({DEGRADED, REMEDY, LOST})  # left only through a remedy and a self-test
STUCK = frozenset({FAILED})  # left by an operator alone

PROBES = 3
LATE_PROBES = 2
SLOWDOWNS, SLOWDOWN_WINDOW_S, SLOWDOWN_CLEAR_S = 6, 600, 1800
LINK_WINDOWS = 3
MOVES_A_DAY = 3
DAY_S = 86_400
# NVML's clock event reasons that are faults and no wish of the owner: hardware slow-down, thermal, power brake.
HARMFUL_SLOWDOWN_BITS = 0x8 | 0x40 | 0x80
# PCIe replays per lane and minute that a link of this generation may show before it counts as bad.
REPLAYS_PER_LANE_MINUTE = {1: 0.15, 2: 0.3, 3: 0.48, 4: 0.96, 5: 1.92, 6: 3.84}


@dataclass(frozen=True)
class Verdict:
    """What a report changes: the new health with its reason, and what is remembered for the next time."""

    health: str
    reason: str
    evidence: dict[str, Any] = field(default_factory=dict)
    provider_fault: bool = False


def judge(
    *,
    health: str,
    reason: str,
    evidence: Mapping[str, Any],
    report: DeviceReport,
    leased: bool,
    rebooted: bool,
    at: datetime,
) -> Verdict:
    """Return the verdict on a device after one more report.

    evidence: what the last verdict returned. leased: a workload is on it. rebooted: the host has a new boot id.
    """
    memory = _remember(evidence, report, leased=leased, at=at)
    worst = xids.worst(memory["xids"], leased=leased, recovery_action=report.readings.get("recovery_action"))
    found = _at_once(report, worst)
    if health in STUCK or memory.get("held"):
        return Verdict(*(found or (health, reason)) if health not in STUCK else (health, reason), memory)
    if found is None and health in SICK:
        found = _remedied(health, reason, report, memory, rebooted=rebooted)
    if found is None and health in {HEALTHY, SUSPECT} and memory.get("dirty"):
        found = _while_dirty(report, memory)
    if found is None and health in {HEALTHY, SUSPECT}:
        found = _by_hysteresis(health, reason, report, worst, memory)
    after, why = found or (health, reason)
    if after != health:
        memory = _count_move(memory, at)
        if memory.get("held"):
            why = f"{why} More than {MOVES_A_DAY} changes in a day: held for an operator."
            after = after if after in SICK else SUSPECT
        if after == SELFTEST:
            memory["xids"] = []
    return Verdict(after, why, memory, provider_fault=bool(worst and worst.provider_fault))


def _remember(evidence: Mapping[str, Any], report: DeviceReport, *, leased: bool, at: datetime) -> dict[str, Any]:
    """Return the evidence with this report in it; each list is cut to what its rule looks at."""
    now = int(at.timestamp())
    memory = dict(evidence)
    memory["late"] = [*memory.get("late", []), report.state == "unresponsive"][-PROBES:]
    if report.xids:
        in_burst = now - memory.get("xid_at", 0) <= xids.BURST_S
        memory["xids"] = sorted({*(memory.get("xids", []) if in_burst else []), *report.xids})[:32]
        memory["xid_at"] = now
    elif now - memory.get("xid_at", 0) > xids.BURST_S:
        memory["xids"] = []
    memory.setdefault("xids", [])
    if _asks_for_reset(report):
        memory["must_reset"] = True
    slow = [moment for moment in memory.get("slow", []) if now - moment <= SLOWDOWN_CLEAR_S]
    bits = number(report.readings.get("slowdown_bits"))
    if bits is not None and int(bits) & HARMFUL_SLOWDOWN_BITS and (not slow or now - slow[-1] >= report.age_s + 1):
        slow.append(now)
    memory["slow"] = slow[-50:]
    memory["standing"] = device_signals.standing(report.readings, memory, leased=leased, now=now)
    link = _link_is_bad(memory, report, now)
    if link is not None:
        memory["link"] = [*memory.get("link", []), link][-LINK_WINDOWS:]
    return memory


def _at_once(report: DeviceReport, worst: xids.Xid | None) -> tuple[str, str] | None:
    if report.state == "lost" or xids.OFF_THE_BUS in report.xids:
        return LOST, "The GPU has fallen off the bus (Xid 79) or the driver says that it is lost."
    if report.state == "reset_required":
        return REMEDY, "The driver says that the GPU must be reset."
    if number(report.readings.get("row_remap_failed")):
        return REMEDY, "A memory row could not be remapped: the GPU must be replaced."
    if worst is not None and report.xids and worst.severity in {"reset_gpu", "reboot_host", "rma"}:
        return REMEDY, f"Xid {worst.number}: {worst.meaning}"
    return None


def _remedied(
    health: str, reason: str, report: DeviceReport, memory: dict[str, Any], *, rebooted: bool
) -> tuple[str, str] | None:
    """A sick device may be tested again once a remedy was seen and it answers."""
    asks = _asks_for_reset(report)
    was_reset = not asks and report.state == "ok" and memory.pop("must_reset", False)
    if report.state != "ok" or asks:
        return None
    if rebooted or was_reset:
        return SELFTEST, f"Answers again after a {'reboot' if rebooted else 'reset'}; before: {reason}"[:300]
    # A degrading Xid alone (109 under load, say) asks for no reset: it is tested when its burst is over.
    if health == DEGRADED and not memory["xids"] and not any(memory["late"]):
        return SELFTEST, f"Quiet again; before: {reason}"[:300]
    return None


def _while_dirty(report: DeviceReport, memory: dict[str, Any]) -> tuple[str, str]:
    """A device that was not clean after a tenant is suspect until it is seen clean, and passes a self-test then."""
    used, compute_mode = number(report.readings.get("memory_used_mib")), report.readings.get("compute_mode")
    limit = memory["dirty"].get("limit_mib")
    empty = not report.readings.get("processes") and (used is None or limit is None or used <= limit)
    if report.state == "ok" and empty and not compute_mode and not report.readings.get("row_remap_pending"):
        before = memory.pop("dirty")
        return SELFTEST, f"Clean again; before: {before['reason']}"[:300]
    return SUSPECT, str(memory["dirty"]["reason"])


def _asks_for_reset(report: DeviceReport) -> bool:
    figures = (number(report.readings.get(name)) for name in ("recovery_action", "row_remap_failed"))
    return report.state == "reset_required" or any(figures)


def is_quiet(report: DeviceReport) -> bool:
    """Return whether this report, by itself, tells nothing that any rule here looks at. Pure."""
    bits = number(report.readings.get("slowdown_bits"))
    return (
        report.state == "ok"
        and not report.xids
        and not _asks_for_reset(report)
        and not (bits is not None and int(bits) & HARMFUL_SLOWDOWN_BITS)
        and not device_signals.is_suspicious(report.readings)
    )


def remembers_nothing(evidence: Mapping[str, Any]) -> bool:
    """Return whether nothing in what is remembered of a device would be judged otherwise by the passing of time."""
    late, link = evidence.get("late", []), evidence.get("link", [])
    kept = ("xids", "slow", "standing", "must_reset", "held", "ghost_at", "dirty")
    return not any(late) and not any(link) and not any(evidence.get(name) for name in kept)


def _by_hysteresis(
    health: str, reason: str, report: DeviceReport, worst: xids.Xid | None, memory: dict[str, Any]
) -> tuple[str, str] | None:
    if worst is not None and report.xids and worst.severity == "degrade":
        return DEGRADED, f"Xid {worst.number}: {worst.meaning}"
    slow, link, late = memory["slow"], memory.get("link", []), memory["late"]
    recent = [moment for moment in slow if slow[-1] - moment <= SLOWDOWN_WINDOW_S]
    faults = []
    if sum(late) >= LATE_PROBES:
        faults.append("The driver answers late.")
    if len(recent) >= SLOWDOWNS or (slow and health == SUSPECT and "slowed" in reason):
        faults.append("The GPU is slowed down by heat or power.")
    if len(link) == LINK_WINDOWS and (all(link) or (any(link) and health == SUSPECT and "PCIe" in reason)):
        faults.append("The PCIe link is narrow or replays.")
    faults += memory["standing"]
    if faults:
        return SUSPECT, " ".join(faults)
    if health == SUSPECT and len(late) == PROBES and not any(late):
        return HEALTHY, ""
    return None


def _link_is_bad(memory: dict[str, Any], report: DeviceReport, now: int) -> bool | None:
    """Return whether the link was bad since the last window (a minute or more), or None while it is not over."""
    replays, lanes = number(report.readings.get("pcie_replays")), number(report.readings.get("pcie_width"))
    lanes_max = number(report.readings.get("pcie_width_max"))
    since, before = memory.get("link_at"), memory.get("link_replays")
    if replays is None or lanes is None:
        return None
    if since is None or before is None or replays < before:
        memory["link_at"], memory["link_replays"] = now, replays
        return None
    if now - since < 60:
        return None
    memory["link_at"], memory["link_replays"] = now, replays
    limit = REPLAYS_PER_LANE_MINUTE.get(int(number(report.readings.get("pcie_generation")) or 0), 3.84)
    per_lane_minute = (replays - before) / max(lanes, 1) * 60 / (now - since)
    return per_lane_minute > limit or (lanes_max is not None and lanes < lanes_max)


def _count_move(memory: dict[str, Any], at: datetime) -> dict[str, Any]:
    now = int(at.timestamp())
    moves = [moment for moment in memory.get("moves", []) if now - moment < DAY_S]
    memory["moves"] = [*moves, now][-20:]
    if len(memory["moves"]) > MOVES_A_DAY:
        memory["held"] = True
    return memory
