"""What the answer to a self-test is worth: checks of the host, and for each device what speaks against it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from agents import baselines, challenges
from agents.models import Host, SelfTest
from agents.protocol import selftest_proof

FAULT_MOST = 200  # characters
FIGURE_MAX = 2**53  # what JSON carries without loss


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
    rows = _read_devices(event.get("devices"))
    bad = {uuid: fault for uuid in test.devices if (fault := _fault(test, uuid, rows.get(uuid)))}
    figures = {uuid: row.figures for uuid, row in rows.items() if uuid in test.devices}
    checks = [
        check("time", at <= test.answer_by, f"Answered after {(at - test.asked_at).total_seconds():.1f} s."),
        check("simulated", (event.get("simulated") is True) == host.simulated, "Settled when the host enrolled."),
        *_own_checks(event.get("checks")),
    ]
    return Verdict(checks=checks, bad=challenges.disagree(test, figures) | _off(host, figures) | bad, figures=figures)


@dataclass(frozen=True)
class _Answer:
    """What a host says of one device. fault: what its own test found, in words; then there is no proof."""

    proof: str
    fault: str
    figures: dict[str, int]


def _fault(test: SelfTest, uuid: str, said: _Answer | None) -> str:
    """Return what is wrong with a device, in words: what its own test found, if it found something; "": nothing is."""
    if said is None:
        return "The host did not answer for it: it is gone, or its driver does not answer."
    if said.fault:
        return said.fault
    right = said.proof == selftest_proof(seed=test.seed, device=uuid)
    return "" if right else "Its proof is wrong: it did not do what was asked."


def _read_devices(listed: Any) -> dict[str, _Answer]:
    """Return the answers per UUID; what cannot be read is left out."""
    found: dict[str, _Answer] = {}
    for row in listed if isinstance(listed, list) else []:
        if isinstance(row, dict) and isinstance(row.get("uuid"), str) and isinstance(row.get("proof"), str):
            measured, fault = row.get("figures"), row.get("fault")
            figures = {
                name[:40]: value
                for name, value in (list(measured.items())[:32] if isinstance(measured, dict) else [])
                if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= FIGURE_MAX
            }
            fault = " ".join(fault.split())[:FAULT_MOST] if isinstance(fault, str) else ""
            found[row["uuid"]] = _Answer(row["proof"], fault, figures)
    return found


def _own_checks(listed: Any) -> list[dict[str, Any]]:
    rows = [row for row in listed if isinstance(row, dict)] if isinstance(listed, list) else []
    return [
        check(str(row.get("check", ""))[:40], row.get("passed") is True, str(row.get("detail", ""))[:200])
        for row in rows[:32]
    ]


def _off(host: Host, figures: Mapping[str, Mapping[str, int]]) -> dict[str, str]:
    """Return the devices with a figure that is not what their model does (agents.baselines has the rule)."""
    found: dict[str, str] = {}
    known: dict[UUID, dict[str, baselines.Baseline]] = {}
    for device in host.devices.filter(uuid__in=figures, model__isnull=False).select_related("model"):
        if device.model is None:
            continue
        if device.model.pk not in known:
            known[device.model.pk] = baselines.of_model(device.model, simulated=host.simulated, but=host)
        for name, value in figures[device.uuid].items():
            baseline = known[device.model.pk].get(name)
            fault = baseline.fault(value) if baseline else None
            if fault is not None:
                found.setdefault(device.uuid, f"{name}: {fault}")
    return found
