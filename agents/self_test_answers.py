"""What the answer to a self-test is worth: checks of the host, and for each device what speaks against it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from statistics import median
from typing import Any

from agents.models import Device, Host, SelfTest
from agents.protocol import selftest_proof
from catalogue import figures as published

PASS_PERCENT = 85
FLEET_SIZE = 10  # below so many hosts with figures, the published ones count
FP16_SEED_PERCENT, BANDWIDTH_SEED_PERCENT = 65, 75


@dataclass(frozen=True)
class Verdict:
    """checks: of the host, [{check, passed, detail}]. bad: what speaks against a device, by UUID. figures: by UUID."""

    checks: list[dict[str, Any]]
    bad: dict[str, str] = field(default_factory=dict)
    figures: dict[str, dict[str, int]] = field(default_factory=dict)

    @property
    def host_passed(self) -> bool:
        return all(check["passed"] for check in self.checks)

    @property
    def reason(self) -> str:
        """In words, what failed; "" if nothing did."""
        failed = [f"{check['check']}: {check['detail']}" for check in self.checks if not check["passed"]]
        return "; ".join(failed + [f"{uuid}: {why}" for uuid, why in sorted(self.bad.items())])


def check(name: str, passed: bool, detail: str) -> dict[str, Any]:
    return {"check": name, "passed": passed, "detail": detail}


def judge(*, host: Host, test: SelfTest, event: Mapping[str, Any], at: datetime) -> Verdict:
    """Return the verdict on the event by which a host answered `test`, received at `at`."""
    proofs, figures = _read_devices(event.get("devices"))
    bad = {
        uuid: "proof: wrong or missing"
        for uuid in test.devices
        if proofs.get(uuid) != selftest_proof(seed=test.seed, device=uuid)
    }
    figures = {uuid: row for uuid, row in figures.items() if uuid in test.devices}
    checks = [
        check("time", at <= test.answer_by, f"Answered after {(at - test.asked_at).total_seconds():.1f} s."),
        check("simulated", (event.get("simulated") is True) == host.simulated, "Settled when the host enrolled."),
        *_own_checks(event.get("checks")),
    ]
    return Verdict(checks=checks, bad=_slow(host, figures) | bad, figures=figures)


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
        check(str(row.get("check", ""))[:40], row.get("passed") is True, str(row.get("detail", ""))[:200])
        for row in rows[:32]
    ]


def _slow(host: Host, figures: Mapping[str, Mapping[str, int]]) -> dict[str, str]:
    """Return the devices with a figure below 85 % of what is expected of their model."""
    slow: dict[str, str] = {}
    for device in host.devices.filter(uuid__in=figures).select_related("model"):
        for name, seed in _seeds(device).items():
            value = figures[device.uuid].get(name)
            expected = _expected(device, name, seed) if value is not None else None
            if value is not None and expected is not None and value * 100 < expected * PASS_PERCENT:
                slow[device.uuid] = f"{name}: {value}, of {expected:.0f} expected"
    return slow


def _seeds(device: Device) -> dict[str, float | None]:
    """Return what is expected of each figure while the fleet is small; None where nothing is published."""
    if device.model is None:
        return {}
    tflops = published.known(device.model, "fp16_tensor_dense_tflops")
    gb_s = published.known(device.model, "memory_bandwidth_gb_s")
    return {
        "fp16_gflops": None if tflops is None else tflops * 1000 * FP16_SEED_PERCENT / 100,
        "memory_mib_per_s": None if gb_s is None else gb_s * 1e9 / 2**20 * BANDWIDTH_SEED_PERCENT / 100,
    }


def _expected(device: Device, name: str, seed: float | None) -> float | None:
    """Return the median of the last passed tests of ten other hosts with this model, or the seed.

    Simulated hosts are compared with simulated ones only.
    """
    tests = (
        SelfTest.objects.filter(passed=True, simulated=device.host.simulated, host__devices__model=device.model)
        .exclude(host=device.host)
        .order_by("host", "-answered_at")
        .distinct("host")
    )
    fleet = []
    for test in tests[:1000]:
        same = Device.objects.filter(host=test.host_id, model=device.model).values_list("uuid", flat=True)
        found = [test.figures[uuid][name] for uuid in same if name in test.figures.get(uuid, {})]
        if found:
            fleet.append(median(found))
    return median(fleet) if len(fleet) >= FLEET_SIZE else seed
