import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from agents import health, xids
from agents.health import Verdict
from agents.protocol import DeviceReport
from tests.factories import NOON

FILE = json.loads((Path(xids.__file__).parent / "data" / "xids.json").read_text())


class Device:
    """A device under a row of reports, one every 15 seconds unless a test says otherwise."""

    def __init__(self, state: str = health.HEALTHY) -> None:
        self.verdict = Verdict(state, "", {})
        self.at = NOON

    def report(self, *, after_s: int = 15, leased: bool = False, rebooted: bool = False, **report: Any) -> str:
        self.at += timedelta(seconds=after_s)
        stored = json.loads(json.dumps(self.verdict.evidence))
        self.verdict = health.judge(
            health=self.verdict.health, reason=self.verdict.reason, evidence=stored,
            report=DeviceReport(uuid="GPU-1", **report), leased=leased, rebooted=rebooted, at=self.at,
        )  # fmt: skip
        return self.verdict.health


@pytest.mark.parametrize("entry", FILE["xids"], ids=lambda entry: f"xid {entry['id']}")
def test_each_xid_of_the_table_does_what_its_class_says(entry: dict[str, Any]) -> None:
    expected = {
        "ignore": "healthy", "user_fault": "healthy", "degrade": "degraded", "reset_gpu": "remedy",
        "reboot_host": "remedy",
    }[entry["severity"]]  # fmt: skip
    device = Device()

    state = device.report(xids=[entry["id"]])

    assert state == ("lost" if entry["id"] == 79 else expected)
    assert device.verdict.provider_fault == entry["provider_fault"]


def test_the_drivers_own_verdict_overrides_the_table_both_ways() -> None:
    assert Device().report(xids=[79 + 40], readings={"recovery_action": 0}) == "healthy"
    assert Device().report(xids=[13], readings={"recovery_action": 1}) == "remedy"
    assert Device().report(xids=[13], readings={"recovery_action": 99}) == "remedy"


def test_an_unknown_xid_counts_only_under_a_lease() -> None:
    assert Device().report(xids=[9999], leased=False) == "healthy"
    assert Device().report(xids=[9999], leased=True) == "degraded"


def test_a_gpu_off_the_bus_is_lost_whatever_the_driver_recommends() -> None:
    assert Device().report(xids=[79], readings={"recovery_action": 0}) == "lost"
    assert Device().report(state="lost") == "lost"


def test_nothing_but_a_remedy_brings_a_lost_gpu_back() -> None:
    device = Device()
    device.report(state="lost")

    assert {device.report(after_s=3600) for _ in range(48)} == {"lost"}
    assert device.report(rebooted=True) == "selftest"


def test_a_reset_that_was_asked_for_and_made_leads_to_a_self_test() -> None:
    device = Device()
    device.report(state="reset_required")
    assert device.report(state="reset_required") == "remedy"

    assert device.report(state="ok") == "selftest"


def test_xid_109_under_load_is_tested_when_its_burst_is_over() -> None:
    device = Device()
    assert device.report(xids=[109]) == "degraded"
    quiet = [device.report() for _ in range(20)]

    assert quiet[:12] == ["degraded"] * 12
    assert device.verdict.health == "selftest"


def test_one_late_answer_is_none_and_two_of_three_are() -> None:
    device = Device()
    assert [device.report(state=s) for s in ("unresponsive", "ok", "ok", "unresponsive")] == ["healthy"] * 4
    assert device.report(state="unresponsive") == "suspect"

    assert [device.report() for _ in range(3)] == ["suspect", "suspect", "healthy"]


def test_six_slow_downs_in_ten_minutes_are_suspect_and_clear_after_thirty() -> None:
    device = Device()
    slow = {"slowdown_bits": 0x40}
    assert [device.report(after_s=60, readings=slow) for _ in range(6)] == ["healthy"] * 5 + ["suspect"]

    states = [device.report(after_s=300) for _ in range(7)]

    assert states == ["suspect"] * 6 + ["healthy"]


def test_slow_downs_that_the_owner_wished_for_or_that_are_rare_are_none() -> None:
    device = Device()
    assert {device.report(after_s=60, readings={"slowdown_bits": 0x4}) for _ in range(10)} == {"healthy"}
    assert {device.report(after_s=300, readings={"slowdown_bits": 0x8}) for _ in range(10)} == {"healthy"}


def test_a_link_that_replays_for_three_windows_is_suspect() -> None:
    device = Device()
    link = {"pcie_width": 16, "pcie_width_max": 16, "pcie_generation": 4}
    replays = [device.report(after_s=60, readings=link | {"pcie_replays": n * 100}) for n in range(4)]

    assert replays == ["healthy"] * 3 + ["suspect"]
    calm = [device.report(after_s=60, readings=link | {"pcie_replays": 300}) for _ in range(3)]
    assert calm == ["suspect", "suspect", "healthy"]


def test_a_figure_that_the_driver_does_not_give_is_not_zero() -> None:
    device = Device()

    assert {device.report(readings={"pcie_replays": None, "slowdown_bits": None}) for _ in range(5)} == {"healthy"}


def test_more_than_three_changes_in_a_day_are_held_for_an_operator() -> None:
    device = Device()
    for _ in range(2):
        device.report(state="unresponsive")
        device.report(state="unresponsive")
        for _ in range(3):
            device.report()

    assert device.verdict.health == "suspect"
    assert "held for an operator" in device.verdict.reason
    assert {device.report(after_s=600) for _ in range(10)} == {"suspect"}


def test_a_device_that_an_operator_failed_stays_failed() -> None:
    device = Device(health.FAILED)

    assert [device.report(), device.report(rebooted=True), device.report(xids=[79])] == ["failed"] * 3


def test_a_row_that_cannot_be_remapped_takes_the_gpu_out_until_it_is_replaced() -> None:
    device = Device()

    assert device.report(readings={"row_remap_failed": True}) == "remedy"
    assert {device.report(after_s=3600, readings={"row_remap_failed": True}) for _ in range(5)} == {"remedy"}


@pytest.mark.parametrize("sign", ["row_remap_pending", "retired_pages_pending"])
def test_memory_that_waits_for_a_reset_keeps_new_leases_away_until_it_was_reset(sign: str) -> None:
    device = Device()

    assert device.report(readings={sign: True}) == "suspect"
    assert [device.report(readings={sign: False}) for _ in range(2)] == ["suspect", "healthy"]


def test_a_lost_nvlink_is_suspect_while_it_is_down() -> None:
    device = Device()
    assert device.report(readings={"nvlinks_up": 12}) == "healthy"

    assert device.report(readings={"nvlinks_up": 11}) == "suspect"
    assert "11 of 12" in device.verdict.reason
    assert [device.report(readings={"nvlinks_up": 12}) for _ in range(2)] == ["healthy", "healthy"]


def test_a_narrow_link_for_three_windows_is_suspect_without_any_replay() -> None:
    device = Device()
    link = {"pcie_width": 8, "pcie_width_max": 16, "pcie_generation": 4, "pcie_replays": 0}

    assert [device.report(after_s=60, readings=link) for _ in range(4)] == ["healthy"] * 3 + ["suspect"]


@pytest.mark.parametrize("used", [{"utilization_percent": 100}, {"memory_used_mib": 30_000}])
def test_use_without_a_process_is_suspect_after_ten_minutes_and_never_under_a_lease(used: dict[str, int]) -> None:
    device, leased = Device(), Device()
    ghost = {"processes": [], **used}

    assert [device.report(after_s=150, readings=ghost) for _ in range(6)] == ["healthy"] * 4 + ["suspect"] * 2
    assert {leased.report(after_s=300, leased=True, readings=ghost) for _ in range(6)} == {"healthy"}
    assert device.report(readings={"processes": [], "utilization_percent": 0}) == "healthy"


def test_use_by_a_process_or_a_driver_that_names_none_is_no_ghost() -> None:
    device = Device()
    readings = [
        {"utilization_percent": 100, "processes": [{"pid": 1, "memory_mib": 9}]}, {"utilization_percent": 100},
    ]  # fmt: skip

    assert {device.report(after_s=700, readings=one) for one in readings * 3} == {"healthy"}


@pytest.mark.parametrize("entry", FILE["xids"], ids=lambda entry: f"xid {entry['id']}")
def test_a_report_with_an_xid_is_never_quiet(entry: dict[str, Any]) -> None:
    assert not health.is_quiet(DeviceReport(uuid="GPU-1", xids=[entry["id"]]))


def test_quiet_is_what_changes_nothing_now_or_by_time() -> None:
    device = Device()
    assert health.is_quiet(DeviceReport(uuid="GPU-1", readings={"temperature_c": 40, "slowdown_bits": 1}))
    device.report()
    assert health.remembers_nothing(device.verdict.evidence)
    device.report(readings={"slowdown_bits": 0x40})
    assert not health.remembers_nothing(device.verdict.evidence)
