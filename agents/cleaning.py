"""What is kept of each device that a tenant has left: when, what was looked at, how long it took, and was it clean.

The record comes with the host's `gone` report (agents.node.cleaning). A device that is not clean is `suspect` and not
offered until it is seen clean and has passed a self-test (agents.health). A host's root could lie about all of it: the
record shows what the agent did, and a dispute has something to look at.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from agents import host_events
from agents.models import CleaningRecord, Device, Workload

CHECK_LIMIT = 32


def take(workload: Workload, record: Mapping[str, Any] | None, *, at: datetime) -> None:
    """Keep the record of a workload that is gone, one row per device, and take dirty devices out of service.

    Without a record (an agent of a version before) the row says that nothing was told.
    """
    if workload.container == "":
        return  # nothing of it was ever there
    common = _checks((record or {}).get("checks"))
    told = (record or {}).get("devices")
    of_each = told if isinstance(told, dict) else {}
    duration = (record or {}).get("duration_ms")
    devices = Device.objects.filter(host=workload.host_id, uuid__in=workload.spec.get("devices", []))
    for device in devices.order_by("pk"):
        own = _checks(of_each.get(device.uuid))
        bad = [check for check in [*common, *own] if check["passed"] is False]
        CleaningRecord.objects.create(
            host_id=workload.host_id,
            device=device,
            reference=workload.reference,
            member=workload.member,
            epoch=workload.epoch,
            ended_at=workload.exited_at or at,
            at=at,
            was_clean=None if record is None else not bad,
            duration_ms=duration if isinstance(duration, int) and 0 <= duration < 2**31 else None,
            checks=[*common, *own],
        )
        if bad:
            _take_out(device, bad, limit_mib=_limit_mib(of_each.get(device.uuid)), at=at)


def _take_out(device: Device, bad: list[dict[str, Any]], *, limit_mib: int | None, at: datetime) -> None:
    what = ", ".join(check["check"] + (f" ({check['detail']})" if check["detail"] else "") for check in bad)
    reason = f"Not clean after its last tenant: {what}"[:300]
    changed: dict[str, Any] = {"evidence": {**device.evidence, "dirty": {"reason": reason, "limit_mib": limit_mib}}}
    if device.health == Device.Health.HEALTHY:
        changed |= {"health": Device.Health.SUSPECT, "health_reason": reason, "health_since": at}
    Device.objects.filter(pk=device.pk).update(**changed)
    host_events.record(host_id=device.host_id, device_id=device.pk, kind="device.dirty", detail=reason, at=at)
    host_events.raise_alarm(kind="device_dirty", subject=device.public_id, detail=reason, at=at)


def _limit_mib(listed: Any) -> int | None:
    """Return up to how much used memory counts as idle, as the host said it with its check."""
    rows = [row for row in listed if isinstance(row, dict)] if isinstance(listed, list) else []
    found = [row["limit_mib"] for row in rows if isinstance(row.get("limit_mib"), int)]
    return found[0] if found else None


def _checks(listed: Any) -> list[dict[str, Any]]:
    rows = [row for row in listed if isinstance(row, dict)] if isinstance(listed, list) else []
    return [
        {
            "check": str(row.get("check", ""))[:40],
            "passed": row["passed"] if isinstance(row.get("passed"), bool) else None,
            "detail": str(row.get("detail", ""))[:200],
        }
        for row in rows[:CHECK_LIMIT]
    ]
