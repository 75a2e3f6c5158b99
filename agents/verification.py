"""How a host becomes `verified`: what it declared, what was found, and the answer to a challenge of ours.

A host with a complete inventory that passes the checks we can make ourselves (`ready_for_test`) is asked for a
self-test: a seed is sent as a wish, and each device must come back with the product that the seed gives (protocol.
selftest_proof), within the time. A host that passes is `online` and `verified` at once; a wrong or late answer is told
in its diary and asked for again, after a pause that doubles. A device that fails while the host passes is taken out
alone. Figures that the test measured are kept and held against the model (agents.self_test_answers).

Simulated hosts go the same way; their figures are simulated, and their SelfTest rows say so. What the answer proves:
the agent with this key answered now. A host's root can compute the product elsewhere, so the figures and the time
limit, not the product, tell a real device from a claimed one (AGENT.md section 9, L1 and L2).
"""

import secrets
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import F

from agents import challenges, host_events, host_life, inventory, self_test_answers
from agents.models import Device, Host, SelfTest
from agents.self_test_answers import Verdict, check
from audit import ids
from outbox import messages

ANSWER_WITHIN_S = 60
PAUSE_S, PAUSE_MAX_S = 10, 600
DRIVER_FLOOR = 535  # NVIDIA's branch below which nothing is offered (AGENT.md section 10)
# Conditions of a host that stop new leases.
BLOCKING = frozenset(
    {
        "driver_mismatch", "driver_unresponsive", "engine_down", "cdi_stale", "disk_pressure", "clock_skew",
        "net_degraded", "gpu_set_changed",
    }
)  # fmt: skip
UNTESTED = (Device.Health.UNKNOWN, Device.Health.SELFTEST)
TESTABLE = (*UNTESTED, Device.Health.HEALTHY, Device.Health.SUSPECT)


def ready_for_test(host: Host, devices: list[Device]) -> list[dict[str, Any]]:
    """Return the checks that need no answer of the host: [{check, passed, detail}]. Pure."""
    found: dict[str, int] = {}
    for device in devices:
        if device.model is not None:
            found[device.model.slug] = found.get(device.model.slug, 0) + 1
    unnamed = [device.reported_name or device.uuid for device in devices if device.model is None]
    blocking = sorted(BLOCKING & set(host.conditions))
    declared = host.declared.get("gpus") or {}
    return [
        check("inventory", bool(host.inventory_hash), "" if host.inventory_hash else "No inventory was received yet."),
        check("gpus", bool(devices), "" if devices else "No GPU was found."),
        check("models", not unnamed, f"Not in the catalogue: {', '.join(unnamed)}." if unnamed else ""),
        check("declared", not declared or declared == found, f"Declared {declared or 'nothing'}, found {found}."),
        check("driver", *_driver(host, devices)),
        check("engine", bool(host.engine), "" if host.engine else "There is no container engine."),
        check("conditions", not blocking, f"In the way: {', '.join(blocking)}." if blocking else ""),
    ]


def consider(host: Host, *, at: datetime) -> SelfTest | None:
    """Ask for a self-test if one is due; return it if it is new. The caller holds the host's lock.

    Due: an unverified host whose checks pass, or a device that must pass one before it is offered again.
    """
    devices = list(host.devices.filter(present=True).select_related("model"))
    waiting = any(device.health in UNTESTED for device in devices)
    if host.state != Host.State.UNVERIFIED and not (host.state == Host.State.ONLINE and waiting):
        return None
    checks = ready_for_test(host, devices)
    if failed := [row["detail"] for row in checks if not row["passed"]]:
        _say_why(host, failed[0])
        return None
    testable = [device.uuid for device in devices if device.health in TESTABLE]
    if not testable:
        _say_why(host, "No device answers.")
        return None
    if SelfTest.objects.filter(host=host, passed__isnull=True).exists() or at < _not_before(host):
        return None
    cause = "enrolled" if host.verified_at is None else "hardware or health changed"
    return _ask(host, testable, cause=cause, at=at)


@transaction.atomic
def ask_again(*, host_id: UUID, cause: str, at: datetime, level: str = "L1", round: int = 1) -> SelfTest | None:
    """Ask a host for a self-test now; None if one is open already or nothing can be tested.

    The host goes on serving meanwhile: only a wrong answer, or none, costs it its place.
    """
    host = host_life.lock(host_id)
    if host.state == Host.State.RETIRED or SelfTest.objects.filter(host=host, passed__isnull=True).exists():
        return None
    present = host.devices.filter(present=True, health__in=TESTABLE)
    testable = list(present.values_list("uuid", flat=True))
    if not testable:
        return None
    Host.objects.filter(pk=host.pk).update(generation=F("generation") + 1)  # ends the held request
    return _ask(host, testable, cause=cause, at=at, level=level, round=round)


def challenge(*, at: datetime) -> int:
    """Ask idle hosts for what is due, unannounced; return how many were asked."""
    asked = 0
    for host_id, level, round in challenges.due(at=at):
        asked += ask_again(host_id=host_id, cause="unannounced", at=at, level=level, round=round) is not None
    return asked


def wishes(host: Host, *, at: datetime) -> list[dict[str, Any]]:
    """Return what the next answer asks the host for."""
    return [
        {
            "verb": "selftest",
            "id": ids.encode("test", test.pk),
            "level": test.asked_level,
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
    _conclude(host, test, self_test_answers.judge(host=host, test=test, event=event, at=at), at=at)
    return True


def expire(*, at: datetime) -> int:
    """Close the tests that were not answered in time as failed; return how many."""
    late = list(SelfTest.objects.filter(passed__isnull=True, answer_by__lt=at).order_by("pk"))
    for test in late:
        with transaction.atomic():
            host = host_life.lock(test.host_id)
            if SelfTest.objects.filter(pk=test.pk, passed__isnull=True).exists():
                _conclude(host, test, Verdict([check("answer", False, "None came in time.")]), at=at)
    return len(late)


def _ask(
    host: Host, devices: list[str], *, cause: str, at: datetime, level: str = "L1", round: int = 1
) -> SelfTest:  # fmt: skip
    return SelfTest.objects.create(
        host=host,
        asked_level=level,
        round=round,
        cause=cause[:100],
        seed=secrets.token_hex(32),
        devices=devices,
        simulated=host.simulated,
        asked_at=at,
        answer_by=at + timedelta(seconds=ANSWER_WITHIN_S),
    )


def _conclude(host: Host, test: SelfTest, verdict: Verdict, *, at: datetime) -> None:
    """Write the outcome down and act on it: devices that passed serve, those that failed are taken out alone."""
    good = [uuid for uuid in test.devices if uuid not in verdict.bad] if verdict.host_passed else []
    level = challenges.shown(test, verdict.figures)
    SelfTest.objects.filter(pk=test.pk).update(
        passed=not verdict.reason, checks=[*verdict.checks, *_device_checks(test, verdict)],
        figures=verdict.figures, answered_at=at, level=level,
    )  # fmt: skip
    kind = "host.selftest_failed" if verdict.reason else "host.selftest_passed"
    facts = {"simulated": host.simulated, "level": level, "cause": test.cause}
    host_events.record(host_id=host.pk, kind=kind, detail=verdict.reason or level, at=at, facts=facts)
    tested = Device.objects.filter(host=host, present=True, health__in=TESTABLE)
    # Where not one passes, it is rather the host that fails than each of its devices.
    for uuid, why in verdict.bad.items() if good else ():
        reason = f"Self-test failed: {why}"[:300]
        tested.filter(uuid=uuid).update(health=Device.Health.DEGRADED, health_reason=reason, health_since=at)
    tested.filter(uuid__in=good, health__in=UNTESTED).update(
        health=Device.Health.HEALTHY, health_reason="", health_since=at
    )
    for uuid, why in challenges.fallen_behind(host, test, verdict.figures).items():
        tested.filter(uuid=uuid, health=Device.Health.HEALTHY).update(
            health=Device.Health.SUSPECT, health_reason=f"Below its own record twice: {why}"[:300], health_since=at
        )
    if good:
        _verify(host, level=level, at=at)
    else:
        _unverify(host, verdict.reason, at=at)


def _device_checks(test: SelfTest, verdict: Verdict) -> list[dict[str, Any]]:
    return [check(uuid, uuid not in verdict.bad, verdict.bad.get(uuid, "")) for uuid in test.devices]


def _verify(host: Host, *, level: str, at: datetime) -> None:
    shares = inventory.shares(host, host.devices.filter(present=True).count())
    tier = Host.Tier.VERIFIED if host.tier == Host.Tier.UNVERIFIED else host.tier
    host.tier, host.verified_at, host.version = tier, at, host.version + 1
    Host.objects.filter(pk=host.pk).update(
        tier=tier, verified_at=at, version=host.version, **challenges.best(host, level, at=at), **shares
    )
    payload = {"id": host.public_id, "version": host.version}
    key = f"host.verified {host.pk} {at.isoformat()}"
    messages.post(topic="host.verified", key=key, payload=payload, organization_id=host.owner_id, at=at)
    if host.state == Host.State.UNVERIFIED:
        host_life.move(host, Host.State.ONLINE, at=at, reason="Verified." + (" Simulated." if host.simulated else ""))


def _unverify(host: Host, reason: str, *, at: datetime) -> None:
    """An online host that fails as a whole is not offered any more. One that is silent has its own verdict."""
    if host.state == Host.State.ONLINE:
        host_life.move(host, Host.State.UNVERIFIED, at=at, reason=f"Self-test failed. {reason}")
        Host.objects.filter(pk=host.pk).update(tier=Host.Tier.UNVERIFIED, level="", level_at=None)
        host.tier = Host.Tier.UNVERIFIED
    else:
        _say_why(host, reason)


def _driver(host: Host, devices: list[Device]) -> tuple[bool, str]:
    if not any(d.model is not None and d.model.vendor.lower() == "nvidia" for d in devices):
        return True, ""
    branch = host.driver_version.partition(".")[0]
    if not (branch.isascii() and branch.isdigit()):
        return False, "The driver's version is not known."
    passed = int(branch) >= DRIVER_FLOOR
    return passed, "" if passed else f"Driver {host.driver_version} is below {DRIVER_FLOOR}: install a newer one."


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
