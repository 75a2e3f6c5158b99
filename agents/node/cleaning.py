"""Between two tenants: nothing of the last one is left on a device before it is offered again (AGENT.md section 15).

The container is gone already. Its network, files and scratch are removed here; then its devices are looked at until no
process has them open, their memory is back to what it was idle, and their compute mode is the default one. What is not
so within CLEAN_WITHIN_S is said: the server takes the device out of service. The record goes with the `gone` report.

Memory is written over by a child that opens the driver's library (agents.node.device_work), where there is one; where
there is none the record says so. Of a device that is let in parts, nothing is written over while others hold a part.
"""

import contextlib
import os
import time
from typing import TYPE_CHECKING, Any

from agents.node import private_files, tenant_files
from agents.node.drivers import DeviceFault
from agents.node.engines import EngineDown, EngineError, NoSuchContainer
from agents.node.workload import Workload

if TYPE_CHECKING:
    from agents.node.reconciler import Reconciler

CLEAN_WITHIN_S = 120.0
OVERWRITE_WITHIN_S = 20.0
LOOK_EVERY_S = 0.25
MEMORY_SLACK_MIB = 64
DEFAULT_COMPUTE_MODE = 0

Check = dict[str, Any]


def clean(reconciler: "Reconciler", workload: Workload, *, within_s: float = CLEAN_WITHIN_S) -> dict[str, Any]:
    """Clean up after a workload whose container is gone, and return the handover record.

    {clean, duration_ms, checks: [{check, passed, detail}], devices: {uuid: [checks]}}. passed None: could not be told.
    Raises EngineDown: nothing is known then, and it is tried again.
    """
    began_s = time.monotonic()
    checks = [_container(reconciler, workload), _network(reconciler, workload), _files(reconciler, workload)]
    checks.append(_scratch(reconciler, workload))
    overwritten = _overwritten(reconciler, workload)
    devices = _devices(reconciler, workload, began_s=time.monotonic(), within_s=within_s)
    for uuid, check in overwritten.items():
        devices.setdefault(uuid, []).append(check)
    everything = [*checks, *(check for rows in devices.values() for check in rows)]
    return {
        "clean": all(check["passed"] is not False for check in everything),
        "duration_ms": int((time.monotonic() - began_s) * 1000),
        "checks": checks,
        "devices": devices,
    }


def idle_memory(reconciler: "Reconciler", workload: Workload) -> dict[str, int]:
    """Return the used memory of each device that only this workload will hold, in MiB: before it is started."""
    alone = _alone_on(reconciler, workload)
    rows = {row["uuid"]: row["readings"].get("memory_used_mib") for row in reconciler.driver.sample()}
    return {uuid: rows[uuid] for uuid in alone if isinstance(rows.get(uuid), int)}


def _container(reconciler: "Reconciler", workload: Workload) -> Check:
    try:
        state = reconciler.engine.inspect(workload.name)
    except NoSuchContainer:
        return _check("container", True)
    return _check("container", False, f"{state.name} is still there")


def _network(reconciler: "Reconciler", workload: Workload) -> Check:
    try:
        reconciler.engine.remove_network(workload.name)
    except EngineDown:
        raise
    except EngineError as fault:
        return _check("network", False, str(fault))
    return _check("network", True)


def _files(reconciler: "Reconciler", workload: Workload) -> Check:
    tenant_files.take_away(reconciler, workload)
    store = reconciler.private_files
    left = store is not None and workload.name in store.names()
    return _check("secrets", not left, f"{private_files.INSIDE} is still in memory" if left else "")


def _scratch(reconciler: "Reconciler", workload: Workload) -> Check:
    if reconciler.kept_scratch.outlives(workload):
        return _check("scratch", True, "kept for its lease, which goes on here")
    try:
        reconciler.engine.remove_scratch(workload.scratch)
    except EngineDown:
        raise
    except EngineError as fault:
        return _check("scratch", False, str(fault))
    return _check("scratch", True)


def _devices(
    reconciler: "Reconciler", workload: Workload, *, began_s: float, within_s: float
) -> dict[str, list[Check]]:
    """Look at the devices until all is well or time is over. A device that others still hold is not looked at."""
    alone = _alone_on(reconciler, workload)
    found: dict[str, list[Check]] = {}
    while alone:
        elapsed_s = time.monotonic() - began_s
        rows = {row["uuid"]: row for row in reconciler.driver.sample() if row["uuid"] in alone}
        is_fresh = all(row["age_s"] == 0 or row["age_s"] + 1 <= elapsed_s for row in rows.values())
        found = {uuid: _device(workload, rows.get(uuid), simulated=reconciler.driver.simulated) for uuid in alone}
        well = all(check["passed"] is not False for checks in found.values() for check in checks)
        silent = any(row["state"] != "ok" for row in rows.values()) or len(rows) < len(alone)
        if (well and is_fresh) or (silent and is_fresh) or elapsed_s > within_s:
            break
        time.sleep(LOOK_EVERY_S)
    return found


def _device(workload: Workload, row: dict[str, Any] | None, *, simulated: bool) -> list[Check]:
    if row is None or row["state"] != "ok":
        return [_check("answers", False, f"the driver says: {row['state'] if row else 'not there'}")]
    readings = row["readings"]
    alive = [p["pid"] for p in readings.get("processes") or [] if simulated or os.path.exists(f"/proc/{p['pid']}")]
    checks = [_check("processes", not alive, f"pid {', '.join(map(str, alive))}" if alive else "")]
    checks.append(_memory(readings.get("memory_used_mib"), workload.idle_mib.get(row["uuid"])))
    mode = readings.get("compute_mode")
    passed = None if mode is None else mode == DEFAULT_COMPUTE_MODE
    checks.append(_check("compute_mode", passed, "" if passed in (None, True) else f"mode {mode}"))
    remap = readings.get("row_remap_pending")
    checks.append(_check("row_remap", None if remap is None else not remap, "rows wait for a reset" if remap else ""))
    return checks


def _overwritten(reconciler: "Reconciler", workload: Workload) -> dict[str, Check]:
    """Write over the memory of its devices where the driver has the means; a simulated one has no memory."""
    found: dict[str, Check] = {}
    answering = {row["uuid"] for row in reconciler.driver.sample() if row["state"] == "ok"}
    for uuid in sorted(_alone_on(reconciler, workload) & answering) if not reconciler.driver.simulated else ():
        try:
            done_mib = reconciler.driver.overwrite(uuid, within_s=OVERWRITE_WITHIN_S)
        except DeviceFault as fault:
            found[uuid] = _check("memory_overwritten", False, str(fault))
        else:
            said = "not done: there are no means for it here" if done_mib is None else f"{done_mib} MiB"
            found[uuid] = _check("memory_overwritten", None if done_mib is None else True, said)
    return found


def _memory(used_mib: Any, idle_mib: int | None) -> Check:
    if not isinstance(used_mib, int) or idle_mib is None:
        return _check("memory", None, "what it was idle is not known")
    limit_mib = idle_mib + MEMORY_SLACK_MIB
    check = _check("memory", used_mib <= limit_mib, f"{used_mib} MiB in use, {idle_mib} when idle")
    return check | {"limit_mib": limit_mib}


def _alone_on(reconciler: "Reconciler", workload: Workload) -> set[str]:
    """Return its devices that no other workload holds a part of, or waits for with the same lease."""
    with reconciler.lock:
        others = [w for w in reconciler.workloads.values() if w is not workload and not w.over]
        shared = {uuid for w in others if w.step != "absent" or w.lease == workload.lease for uuid in w.devices}
    return set(workload.devices) - shared


def _check(name: str, passed: bool | None, detail: str = "") -> Check:
    return {"check": name, "passed": passed, "detail": detail[:200]}


def collect_left_overs(reconciler: "Reconciler") -> None:
    """Remove networks and scratch with our label that belong to nobody any more, and the volumes that we were told to;
    what fails is tried the next time."""
    reconciler.disk_use.remove()
    with reconciler.lock:
        live = [w for w in reconciler.workloads.values() if not w.over]
        names, kept = {w.name for w in live}, {w.scratch for w in live}
    observed = {container.name for container in reconciler.engine.containers(reconciler.host)}
    for name in set(reconciler.engine.networks(reconciler.host)) - names - observed:
        with contextlib.suppress(NoSuchContainer):
            reconciler.engine.remove_network(name)
    for scratch, lease in reconciler.engine.scratches(reconciler.host).items():
        if scratch not in kept and not reconciler.kept_scratch.is_of(lease):
            with contextlib.suppress(NoSuchContainer):
                reconciler.engine.remove_scratch(scratch)
