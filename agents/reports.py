"""What a host says of its workloads and devices. A bad item changes nothing and bills nothing, and fails no other one.

What the platform believes, and what not: a report counts only for a workload that is wanted on this very host, at this
epoch and with this spec. `ready` counts only if the container saw exactly the devices of its spec. The instant is
always ours, that of the receipt.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import connection

from agents import cleaning, health, host_events, measurements, quiet, silence, volumes
from agents.models import Device, Host, Workload
from agents.protocol import (
    FAILURES,
    NOT_RENEWED,
    RUNNING_STEPS,
    STEPS,
    DeviceReport,
    ProtocolError,
    WorkloadReport,
    scratch_place,
    silent_life_s,
)
from apikit.clock import whole_second

Key = tuple[str, int, int]
READING_LIMIT = 64
ORPHAN_S = 60  # how long an agent waits before it stops a container of ours that it does not know (AGENT.md section 4)
_DIED = frozenset({"exited", "cleaning", "gone"})
_DEAD = frozenset({health.LOST, health.REMEDY, health.FAILED})  # which end the use of a device


@dataclass
class Outcome:
    """Faults of single items, for the host's diary; which workloads were named; which cannot be stopped any more;
    what devices in use measured that was not taken in before."""

    faults: list[str] = field(default_factory=list)
    stuck: list[Workload] = field(default_factory=list)
    named: set[Key] = field(default_factory=set)
    measured: dict[str, dict[str, Any]] = field(default_factory=dict)


def apply_workloads(
    *, host: Host, items: Iterable[Any], have_generation: int, engine_up: bool, known: dict[Key, Workload], at: datetime
) -> Outcome:
    """Write what is reported into the workloads in `known` (those of this host that may still run).

    have_generation, engine_up: a host that has taken in the list without a workload, sees its engine, and does not name
    it for long enough, has nothing left of it (`_is_forgotten`).
    """
    outcome = Outcome()
    for item in items:
        try:
            report = WorkloadReport.from_json(item)
        except ProtocolError as fault:
            outcome.faults.append(str(fault))
            continue
        if report.step not in STEPS:
            outcome.faults.append(f"{report.step[:20]!r} is no step of a workload")
            continue
        key = (report.lease, report.member, report.epoch)
        workload = known.get(key)
        outcome.named.add(key)
        if workload is None:
            if report.step in RUNNING_STEPS:
                outcome.faults.append(f"{report.lease[:40]}/{report.member} epoch {report.epoch} is not wanted here")
            continue
        was_stuck = workload.step == "stuck"
        _apply(workload, report, at)
        volumes.used(host, report.volumes_mib, at=at)
        if workload.step == "stuck" and not was_stuck:
            outcome.stuck.append(workload)
        if report.spec_hash != workload.spec_hash:
            outcome.faults.append(f"{workload} runs with another spec")
    for key, workload in known.items():
        if key not in outcome.named and engine_up and _is_forgotten(host, workload, have_generation, at):
            _finish(workload, at)
    return outcome


def _is_forgotten(host: Host, workload: Workload, have_generation: int, at: datetime) -> bool:
    """Return whether an agent that lost its journal must have stopped what it does not know any more.

    It acknowledges each stop as `gone`; one that does not name a workload at all has forgotten it. What is left of it
    is then an orphan, stopped ORPHAN_S after the agent's first contact. Until then its devices are not free.
    """
    if workload.unwanted_generation is None or have_generation < workload.unwanted_generation:
        return False
    heard = [workload.reported_at, workload.unwanted_at, host.boot_heard_at or host.last_heard_at]
    since = max(moment for moment in heard if moment is not None)
    left_s = ORPHAN_S + silent_life_s(valid_for_s=0, stop_grace_s=workload.stop_grace_s) + settings.FENCE_MARGIN_S
    return at >= since + timedelta(seconds=left_s)


def _apply(workload: Workload, report: WorkloadReport, at: datetime) -> None:
    before = {name: getattr(workload, name) for name in _COLUMNS}
    step = report.step
    right = report.spec_hash == workload.spec_hash
    if step in RUNNING_STEPS and not (right and _sees_its_devices(workload, report)):
        step = "probing"
        workload.failure, workload.detail = "gpu_invisible", "Its container does not see exactly the leased GPUs."
    else:
        workload.failure = report.failure if report.failure in FAILURES else ("engine_error" if report.failure else "")
        workload.detail = report.detail[:500]
    workload.step = step
    _take_facts(workload, report)
    if step in RUNNING_STEPS and workload.wanted and workload.ready_at is None and workload.exited_at is None:
        workload.ready_at = whole_second(at)
    if workload.ready_at is not None and step not in _DIED:  # what was lost before it ended stays lost
        # What was ready and is not cannot be used: such as a GPU that its container lost sight of.
        lost = bool(report.unusable) or step not in RUNNING_STEPS
        since = whole_second(silence.last_proof(workload.reported_at, at=at))
        workload.unusable_since = (workload.unusable_since or since) if lost else None
    if step in _DIED and workload.exited_at is None:
        workload.exited_at = whole_second(_last_known_alive(workload, at))
    if step == "gone" and not workload.wanted:
        cleaning.take(workload, report.handover, at=at)
        _finish(workload, at, save=False)
    changed = [name for name in _COLUMNS if getattr(workload, name) != before[name]]
    if changed:
        workload.save(update_fields=changed)


def _last_known_alive(workload: Workload, at: datetime) -> datetime:
    """Return until when it is known to have run: now, but for one that ended unheard: by its timer, or in a silence."""
    over = workload.not_after is not None and workload.not_after <= at
    unheard = workload.failure == NOT_RENEWED and not over
    return (workload.reported_at or at) if unheard else silence.last_proof(workload.reported_at, at=at)


_COLUMNS = (
    "step", "detail", "failure", "exit_code", "container", "image_digest", "ports", "progress", "ready_at",
    "unusable_since", "unhealthy", "exited_at", "gone_at", "scratch_mib",
)  # fmt: skip


def _take_facts(workload: Workload, report: WorkloadReport) -> None:
    if report.exit_code is not None:
        workload.exit_code = max(-(2**31), min(report.exit_code, 2**31 - 1))
    workload.unhealthy = report.unhealthy[:200] if report.step in RUNNING_STEPS else ""
    scratch = report.volumes_mib.get(scratch_place(workload.reference, workload.member))
    if isinstance(scratch, int) and not isinstance(scratch, bool) and 0 <= scratch < 2**40:
        workload.scratch_mib = scratch
    workload.container = (report.container or workload.container)[:80]
    workload.image_digest = (report.image_digest or workload.image_digest)[:100]
    ports = {name: port for name, port in report.ports.items() if isinstance(port, int) and 0 < port < 65536}
    workload.ports = dict(list(ports.items())[:64])
    workload.progress = {
        name: figure for name, figure in list(report.progress.items())[:16] if isinstance(figure, (int, float, str))
    }


def _sees_its_devices(workload: Workload, report: WorkloadReport) -> bool:
    leased = workload.spec.get("devices", [])
    return not leased or (report.visible_devices is not None and set(map(str, report.visible_devices)) == set(leased))


def _finish(workload: Workload, at: datetime, *, save: bool = True) -> None:
    workload.step, workload.gone_at = "gone", at
    if save:
        workload.save(update_fields=["step", "gone_at"])


def apply_devices(
    *, host: Host, items: Iterable[Any], inventory_is_known: bool, leased: set[str], rebooted: bool,
    proven_at: datetime, at: datetime,
) -> tuple[Outcome, bool]:  # fmt: skip
    """Judge each device by its report; also return whether one is waiting for a self-test now. Saves only changes.

    proven_at: until when use of the devices is proven: what is found dead now is dead since then.
    """
    outcome = Outcome()
    devices = {device.uuid: device for device in host.devices.all()}
    seen: set[str] = set()
    changed: list[Device] = []
    for item in items:
        try:
            report = DeviceReport.from_json(item)
        except ProtocolError as fault:
            outcome.faults.append(str(fault))
            continue
        device = devices.get(report.uuid)
        if device is None and inventory_is_known:
            outcome.faults.append(f"device {report.uuid[:64]} is not in the inventory")
        elif device is not None and device.present:
            in_use, before = device.uuid in leased, _columns(device)
            if _judge(device, report, leased=in_use, rebooted=rebooted, proven_at=proven_at, at=at) and in_use:
                outcome.measured[device.uuid] = device.readings
            if _columns(device) != before:
                changed.append(device)
            seen.add(device.uuid)
    _write(changed)
    complete = seen == {device.uuid for device in devices.values() if device.present}
    quiet.allow(host, devices.values(), may=complete and not leased, at=at)
    return outcome, any(d.present and d.health == Device.Health.SELFTEST for d in devices.values())


def _judge(
    device: Device, report: DeviceReport, *, leased: bool, rebooted: bool, proven_at: datetime, at: datetime
) -> bool:
    """Bring the device up to date with the report; return whether its readings are a sample of now, and a new one."""
    report = _cleaned(report)
    verdict = health.judge(
        health=device.health,
        reason=device.health_reason,
        evidence=device.evidence,
        report=report,
        leased=leased,
        rebooted=rebooted,
        at=at,
    )
    device.evidence = verdict.evidence
    is_new = _is_new(device, report, leased=leased, at=at)
    if is_new or (report.readings and report.readings != device.readings):
        device.readings, device.readings_at = report.readings, at
    if verdict.health != device.health:
        host_events.record(
            host_id=device.host_id,
            device_id=device.pk,
            kind=f"device.{verdict.health}",
            detail=verdict.reason,
            at=at,
            facts={"from": device.health, "xids": report.xids, "provider_fault": verdict.provider_fault},
        )
        device.health, device.health_reason = verdict.health, verdict.reason[:300]
        device.health_since = proven_at if verdict.health in _DEAD else at
    return is_new


def _is_new(device: Device, report: DeviceReport, *, leased: bool, at: datetime) -> bool:
    """Return whether a device in use was read anew: each sync sends the last readings again, with their age."""
    if not (leased and report.readings) or report.age_s > measurements.STALE_S:
        return False
    every = timedelta(seconds=measurements.SAMPLED_EVERY_S)
    read_at = at - timedelta(seconds=report.age_s)
    return report.readings != device.readings or device.readings_at is None or read_at >= device.readings_at + every


_DEVICE_COLUMNS = ("evidence", "readings", "readings_at", "health", "health_reason", "health_since")
_WRITE = """
UPDATE agents_device AS device
SET evidence = new.evidence, readings = new.readings, readings_at = new.readings_at, health = new.health,
    health_reason = new.health_reason, health_since = new.health_since
FROM json_to_recordset(%s::json) AS new
     (id uuid, evidence jsonb, readings jsonb, readings_at timestamptz, health text, health_reason text,
      health_since timestamptz)
WHERE device.id = new.id
"""


def _columns(device: Device) -> list[Any]:
    return [getattr(device, name) for name in _DEVICE_COLUMNS]


def _write(devices: list[Device]) -> None:
    """Write what was judged, all by one statement; the caller holds the lock of their host."""
    if devices:
        rows = [{"id": d.pk, **{name: getattr(d, name) for name in _DEVICE_COLUMNS}} for d in devices]
        with connection.cursor() as cursor:
            cursor.execute(_WRITE, [json.dumps(rows, default=str)])


def _cleaned(report: DeviceReport) -> DeviceReport:
    """Keep of the readings what is a figure, a word or a short list, and of the Xids what are numbers."""
    readings = {
        name[:40]: value if not isinstance(value, str) else value[:100]
        for name, value in list(report.readings.items())[:READING_LIMIT]
        if value is None or isinstance(value, (bool, int, float, str, list))
    }
    numbers = [n for n in report.xids if isinstance(n, int) and not isinstance(n, bool) and 0 <= n < 10_000]
    return DeviceReport(
        uuid=report.uuid, state=report.state, age_s=max(0, report.age_s), readings=readings, xids=numbers[:32]
    )
