"""How a host becomes `verified`: what it declared, what was found, and the answer to a challenge of ours.

A host with a complete inventory that passes the checks we can make ourselves (`ready_for_test`) is asked for a
self-test: a seed is sent as a wish, and each device must come back with the product that the seed gives (protocol.
selftest_proof), within the time. A host that passes is `online` and `verified` at once; a wrong or late answer is told
in its diary and asked for again, after a pause that doubles. Figures that the test measured are kept per device and
held against the model: 85 % of the median of its verified fleet, or while fewer than ten hosts have figures, of 65 % of
the published FP16 rate and 75 % of the published bandwidth.

Simulated hosts go the same way; their figures are simulated, and their SelfTest rows say so. What the answer proves:
the agent with this key answered now. A host's root can compute the product elsewhere, so the figures and the time
limit, not the product, tell a real device from a claimed one (AGENT.md section 9, L1 and L2).
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from statistics import median
from typing import Any

from django.db.models import F

from agents import capacity, host_events, host_life, inventory
from agents.models import Device, Host, SelfTest
from agents.protocol import selftest_proof
from audit import ids

ANSWER_WITHIN_S = 60
PAUSE_S, PAUSE_MAX_S = 10, 600
DRIVER_FLOOR = (535,)  # NVIDIA's branch below which nothing is offered (AGENT.md section 10)
PASS_PERCENT = 85
FLEET_SIZE = 10
FP16_SEED_PERCENT, BANDWIDTH_SEED_PERCENT = 65, 75
# Conditions of a host that stop new leases.
BLOCKING = frozenset(
    {
        "driver_mismatch", "driver_unresponsive", "engine_down", "cdi_stale", "disk_pressure", "clock_skew",
        "net_degraded", "gpu_set_changed",
    }
)  # fmt: skip


def ready_for_test(host: Host, devices: list[Device]) -> list[dict[str, Any]]:
    """Return the checks that need no answer of the host: [{check, passed, detail}]. Pure."""
    found: dict[str, int] = {}
    for device in devices:
        if device.model is not None:
            found[device.model.slug] = found.get(device.model.slug, 0) + 1
    unnamed = [f"{d.reported_name or d.uuid}" for d in devices if d.model is None]
    blocking = sorted(BLOCKING & set(host.conditions))
    declared = host.declared.get("gpus") or {}
    return [
        _check("inventory", bool(host.inventory_hash), "" if host.inventory_hash else "No inventory was received yet."),
        _check("gpus", bool(devices), "" if devices else "No GPU was found."),
        _check("models", not unnamed, f"Not in the catalogue: {', '.join(unnamed)}." if unnamed else ""),
        _check("declared", not declared or declared == found, f"Declared {declared or 'nothing'}, found {found}."),
        _check("driver", *_driver(host, devices)),
        _check("engine", bool(host.engine), "" if host.engine else "There is no container engine."),
        _check("conditions", not blocking, f"In the way: {', '.join(blocking)}." if blocking else ""),
    ]


def consider(host: Host, *, at: datetime) -> SelfTest | None:
    """Ask for a self-test if one is due; return it if it is new. The caller holds the host's lock.

    Due: an unverified host whose checks pass, or a device that must pass one before it is offered again.
    """
    devices = list(host.devices.filter(present=True).select_related("model"))
    waiting = [d for d in devices if d.health in {Device.Health.UNKNOWN, Device.Health.SELFTEST}]
    if host.state != Host.State.UNVERIFIED and not (host.state == Host.State.ONLINE and waiting):
        return None
    checks = ready_for_test(host, devices)
    if failed := [check for check in checks if not check["passed"]]:
        _say_why(host, failed[0]["detail"])
        return None
    open_test = SelfTest.objects.filter(host=host, passed__isnull=True).first()
    if open_test is not None:
        if at <= open_test.answer_by:
            return None
        _conclude(host, open_test, [_check("answer", False, "No answer came in time.")], {}, at=at)
    if at < _not_before(host):
        return None
    testable = [d.uuid for d in devices if d.health not in {Device.Health.LOST, Device.Health.FAILED}]
    if not testable:
        _say_why(host, "No device answers.")
        return None
    return SelfTest.objects.create(
        host=host,
        cause=("enrolled" if host.verified_at is None else "hardware or health changed"),
        seed=ids.new().hex + ids.new().hex,
        devices=testable,
        simulated=host.simulated,
        asked_at=at,
        answer_by=at + timedelta(seconds=ANSWER_WITHIN_S),
    )


def wishes(host: Host, *, at: datetime) -> list[dict[str, Any]]:
    """Return what the next answer asks the host for."""
    return [
        {
            "verb": "selftest",
            "id": ids.encode("test", test.pk),
            "level": test.level,
            "seed": test.seed,
            "devices": test.devices,
            "answer_within_s": int((test.answer_by - at).total_seconds()),
        }
        for test in SelfTest.objects.filter(host=host, passed__isnull=True, answer_by__gt=at)
    ]


def answered(host: Host, event: Mapping[str, Any], *, at: datetime) -> bool:
    """Take in a self-test's event; return whether it belonged to an open test. The caller holds the host's lock."""
    test_id = ids.decode("test", str(event.get("id", "")))
    test = SelfTest.objects.filter(pk=test_id, host=host, passed__isnull=True).first() if test_id else None
    if test is None:
        return False
    proofs, figures = _read_devices(event.get("devices"))
    right = {uuid: selftest_proof(seed=test.seed, device=uuid) for uuid in test.devices}
    wrong = sorted(uuid for uuid, proof in right.items() if proofs.get(uuid) != proof)
    checks = [
        _check("time", at <= test.answer_by, f"Answered after {(at - test.asked_at).total_seconds():.1f} s."),
        _check("proof", not wrong, f"Wrong or missing for {', '.join(wrong)}." if wrong else ""),
        _check("simulated", bool(event.get("simulated")) == host.simulated, ""),
        *_own_checks(event.get("checks")),
        *_judge_figures(host, figures),
    ]
    _conclude(host, test, checks, figures, at=at)
    return True


def _conclude(
    host: Host, test: SelfTest, checks: list[dict[str, Any]], figures: dict[str, Any], *, at: datetime
) -> None:
    passed = all(check["passed"] for check in checks)
    level = "L1" if any(figures.values()) else "L0"
    SelfTest.objects.filter(pk=test.pk).update(
        passed=passed, checks=checks, figures=figures, answered_at=at, level=level
    )
    why = "; ".join(f"{c['check']}: {c['detail']}" for c in checks if not c["passed"])
    kind = "host.selftest_passed" if passed else "host.selftest_failed"
    facts = {"simulated": host.simulated, "level": level}
    host_events.record(host_id=host.pk, kind=kind, detail=why or level, at=at, facts=facts)
    tested = Device.objects.filter(host=host, uuid__in=test.devices, present=True)
    if not passed:
        _say_why(host, why)
        tested.filter(health=Device.Health.SELFTEST).update(
            health=Device.Health.DEGRADED, health_reason=f"Self-test failed. {why}"[:300], health_since=at
        )
        return
    tested.filter(health__in=[Device.Health.UNKNOWN, Device.Health.SELFTEST]).update(
        health=Device.Health.HEALTHY, health_reason="", health_since=at
    )
    _verify(host, at=at)


def _verify(host: Host, *, at: datetime) -> None:
    shares = inventory.shares(host, host.devices.filter(present=True).count())
    tier = Host.Tier.VERIFIED if host.tier == Host.Tier.UNVERIFIED else host.tier
    Host.objects.filter(pk=host.pk).update(tier=tier, verified_at=at, version=F("version") + 1, **shares)
    host.tier, host.verified_at = tier, at
    if host.state == Host.State.UNVERIFIED:
        host_life.move(host, Host.State.ONLINE, at=at, reason="Verified." + (" Simulated." if host.simulated else ""))
    capacity.changed([host.pk])


def _driver(host: Host, devices: list[Device]) -> tuple[bool, str]:
    if not any(d.model is not None and d.model.vendor.lower() == "nvidia" for d in devices):
        return True, ""
    major = host.driver_version.partition(".")[0]
    if not major.isdigit():
        return False, "The driver's version is not known."
    passed = (int(major),) >= DRIVER_FLOOR
    return passed, "" if passed else f"Driver {host.driver_version} is below {DRIVER_FLOOR[0]}: install a newer one."


def _read_devices(listed: Any) -> tuple[dict[str, str], dict[str, dict[str, int]]]:
    """Return the proofs and the figures per UUID of an answer; what cannot be read is left out."""
    proofs: dict[str, str] = {}
    figures: dict[str, dict[str, int]] = {}
    for row in listed if isinstance(listed, list) else []:
        if isinstance(row, dict) and isinstance(row.get("uuid"), str) and isinstance(row.get("proof"), str):
            proofs[row["uuid"]] = row["proof"]
            measured = row.get("figures")
            figures[row["uuid"]] = {
                name[:40]: value
                for name, value in (list(measured.items())[:32] if isinstance(measured, dict) else [])
                if isinstance(value, int) and not isinstance(value, bool)
            }
    return proofs, figures


def _own_checks(listed: Any) -> list[dict[str, Any]]:
    rows = [row for row in listed if isinstance(row, dict)] if isinstance(listed, list) else []
    return [
        _check(str(row.get("check", ""))[:40], row.get("passed") is True, str(row.get("detail", ""))[:200])
        for row in rows[:32]
    ]


def _judge_figures(host: Host, figures: Mapping[str, Mapping[str, int]]) -> list[dict[str, Any]]:
    checks = []
    for device in host.devices.filter(uuid__in=figures).select_related("model"):
        for name, percent, published in _published(device):
            value = figures[device.uuid].get(name)
            if value is None:
                continue
            fleet = _fleet(device, name)
            base = (
                median(fleet) if len(fleet) >= FLEET_SIZE else None if published is None else published * percent / 100
            )
            if base is not None:
                detail = f"{device.uuid}: {value}, of {base:.0f} expected."
                checks.append(_check(name, value * 100 >= base * PASS_PERCENT, detail))
    return checks


def _published(device: Device) -> list[tuple[str, int, float | None]]:
    if device.model is None:
        return []
    tflops, gb_s = device.model.fp16_tensor_dense_tflops, device.model.memory_bandwidth_gb_s
    return [
        ("fp16_gflops", FP16_SEED_PERCENT, None if tflops is None else tflops * 1000),
        ("memory_mib_per_s", BANDWIDTH_SEED_PERCENT, None if gb_s is None else gb_s * 1e9 / 2**20),
    ]


def _fleet(device: Device, name: str) -> list[int]:
    """Return this figure of the last passed test of each other host with such a device, simulated apart from real."""
    tests = (
        SelfTest.objects.filter(passed=True, simulated=device.host.simulated, host__devices__model=device.model)
        .exclude(host=device.host)
        .order_by("host", "-answered_at")
        .distinct("host")
    )
    values = []
    for test in tests[:1000]:
        same = set(Device.objects.filter(host=test.host_id, model=device.model).values_list("uuid", flat=True))
        found = [row[name] for uuid, row in test.figures.items() if uuid in same and name in row]
        if found:
            values.append(int(median(found)))
    return values


def _not_before(host: Host) -> datetime:
    """Return when the next test may be asked for: after a pause that doubles with each failure in a row."""
    last_good = SelfTest.objects.filter(host=host, passed=True).order_by("-asked_at").first()
    failed = SelfTest.objects.filter(host=host, passed=False)
    if last_good is not None:
        failed = failed.filter(asked_at__gt=last_good.asked_at)
    last = failed.order_by("-answered_at").first()
    if last is None or last.answered_at is None:
        return host.enrolled_at or host.created_at
    pause_s = min(PAUSE_S * 2 ** min(failed.count() - 1, 10), PAUSE_MAX_S)
    return last.answered_at + timedelta(seconds=pause_s)


def _say_why(host: Host, why: str) -> None:
    if host.state == Host.State.UNVERIFIED and host.state_reason != why[:300]:
        host.state_reason = why[:300]
        Host.objects.filter(pk=host.pk).update(state_reason=host.state_reason)


def _check(check: str, passed: bool, detail: str) -> dict[str, Any]:
    return {"check": check, "passed": passed, "detail": detail}
