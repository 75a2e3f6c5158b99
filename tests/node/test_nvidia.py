"""NVIDIA's part of the agent: the real pynvml on a fake library, in the real probe process."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agents.node.nvidia import NvidiaDriver, restart_after_s
from tests.fakes.control_plane import FakeControlPlane
from tests.fakes.nvml import FakeNvml, build, why_no_compiler
from tests.node.conftest import Agent, until

Start = Callable[..., NvidiaDriver]


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    reason = why_no_compiler()
    if reason is not None:
        pytest.skip(reason)
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def nvml(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    fake = FakeNvml(library, tmp_path)
    for name, value in fake.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("GPUYARD_PROBE_EVERY_S", "0.2")
    monkeypatch.setenv("GPUYARD_PROC", str(tmp_path / "proc"))
    return fake


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts drivers, and ends their probes after the test."""
    started: list[NvidiaDriver] = []

    def begin(**options: Any) -> NvidiaDriver:
        started.append(NvidiaDriver(restart_min_s=0.2, **options))
        return started[-1]

    yield begin
    for driver in started:
        driver.close()


def readings(driver: NvidiaDriver, gpu: int) -> dict[str, Any]:
    found: dict[str, Any] = driver.sample()[gpu]["readings"]
    return found


def test_the_inventory_has_what_the_driver_says(nvml: FakeNvml, start: Start) -> None:
    nvml.say("model 0-2 A100_80G", "model 3 RTX_4090_24G")

    facts = start().inventory()

    assert (facts.driver_version, facts.cuda_version) == ("570.86.15", "12.8")
    assert [gpu["name"] for gpu in facts.gpus] == ["NVIDIA A100-SXM4-80GB"] * 3 + ["NVIDIA GeForce RTX 4090"]
    first = facts.gpus[0]
    assert (first["uuid"], first["pci_device_id"]) == (FakeNvml.uuid(0), "10de:20b2")
    assert (first["pci_bus_id"], first["memory_mib"], first["compute_capability"]) == ("0000:01:00.0", 81920, "8.0")
    assert first["mig"] == {"enabled": False, "pending": False}
    assert first["serial"] is None  # the fake has no such function: absent, not empty


def test_the_probe_is_started_from_compiled_modules(nvml: FakeNvml, start: Start, tmp_path: Path) -> None:
    """To compile the library's binding at each start left 13 MB behind: the probe is to take 20 MB at most."""
    nvml.say("model 0-7 H100_80G")
    driver = start(compiled=tmp_path / "compiled")
    driver.inventory()
    until(lambda: len(driver.sample()) == 8 and readings(driver, 7))

    assert driver._process is not None
    pages = int(Path(f"/proc/{driver._process.pid}/statm").read_text().split()[1])
    assert pages * os.sysconf("SC_PAGE_SIZE") <= 20_000_000


def test_figures_are_read_and_absent_ones_are_left_out(nvml: FakeNvml, start: Start) -> None:
    nvml.say("model 0-1 A100_80G", "set 0 temp 61", "set 0 power 250000", "rc 1 Temperature 3", "rows 1 2 1 1 0")
    driver = start()
    driver.inventory()
    until(lambda: len(driver.sample()) == 2 and readings(driver, 1))

    first, second = readings(driver, 0), readings(driver, 1)

    assert (first["temperature_c"], first["power_mw"], first["pcie_width"]) == (61, 250000, 16)
    assert first["recovery_action"] == 0
    assert "memory_temperature_c" not in first
    assert "temperature_c" not in second
    assert second["row_remap_pending"] is True
    assert second["power_mw"] == 60000


def test_a_figure_that_is_not_supported_is_not_asked_for_again(nvml: FakeNvml, start: Start) -> None:
    nvml.say("model 0 A100_80G", "rc 0 FanSpeed_v2 3", "missing PcieReplayCounter")
    driver = start()
    driver.inventory()
    until(lambda: nvml.calls("PowerUsage") > 5)

    assert nvml.calls("PcieReplayCounter") == 1
    assert "pcie_replays" not in readings(driver, 0)


def test_one_lost_gpu_does_not_hide_its_neighbours(nvml: FakeNvml, start: Start) -> None:
    nvml.say("model 0-3 A100_80G")
    driver = start()
    driver.inventory()
    until(lambda: driver.sample()[2]["state"] == "ok")

    nvml.say("model 0-3 A100_80G", "gpu 2 lost", "gpu 3 reset_required")
    until(lambda: driver.sample()[2]["state"] == "lost")

    assert [row["state"] for row in driver.sample()] == ["ok", "ok", "lost", "reset_required"]
    assert driver.sample()[2]["readings"] == {}
    assert len(driver.inventory().gpus) == 4


def test_rule_18_unified_memory_is_the_machines_memory(nvml: FakeNvml, start: Start) -> None:
    nvml.say("model 0 GB10_128G", "rc 0 MemoryInfo_v2 3")

    gpus = start().inventory().gpus

    assert gpus[0]["memory_mib"] == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 1024**2


def test_rule_19_devices_keep_their_uuid_when_the_order_changes(nvml: FakeNvml, start: Start) -> None:
    nvml.say("model 0-3 A100_80G", "set 3 temp 77", "order 3,1,0,2")
    driver = start()

    assert [gpu["uuid"] for gpu in driver.inventory().gpus] == [FakeNvml.uuid(n) for n in (3, 1, 0, 2)]
    until(lambda: readings(driver, 0))
    assert readings(driver, 0)["temperature_c"] == 77


def test_rule_16_a_changed_driver_is_a_mismatch_and_no_gpu_fault(nvml: FakeNvml, start: Start) -> None:
    nvml.say("model 0 A100_80G", "init 18")
    driver = start()
    until(lambda: driver.conditions() == ["driver_mismatch"])

    nvml.say("model 0 A100_80G")
    until(lambda: driver.conditions() == [] and driver.inventory().gpus, what="recovery by a new process")


def test_the_probe_ends_itself_when_the_kernel_module_changes(nvml: FakeNvml, start: Start, tmp_path: Path) -> None:
    version = tmp_path / "proc" / "driver" / "nvidia" / "version"
    version.parent.mkdir(parents=True)
    version.write_text("570")
    nvml.say("model 0 A100_80G")
    driver = start()
    driver.inventory()
    until(lambda: nvml.calls("InitWithFlags") == 1 and readings(driver, 0))

    version.write_text("580")
    nvml.say("model 0 A100_80G", "driver 580.1")

    until(lambda: driver.inventory().driver_version == "580.1", what="a new probe")
    assert nvml.calls("InitWithFlags") == 2


def test_rule_22_a_driver_that_comes_late_is_found(nvml: FakeNvml, start: Start) -> None:
    nvml.say("init 9")
    driver = start()
    until(lambda: driver.conditions() == ["driver_missing"])
    assert driver.inventory().gpus == []

    nvml.say("model 0 A100_80G")
    until(lambda: len(driver.inventory().gpus) == 1, what="the GPU")


def test_rule_3_a_crash_of_the_library_takes_only_the_probe(nvml: FakeNvml, start: Start) -> None:
    nvml.say("model 0-1 A100_80G")
    driver = start()
    driver.inventory()
    until(lambda: driver.sample()[0]["state"] == "ok")

    nvml.say("model 0-1 A100_80G", "crash 1")
    until(lambda: "driver_unresponsive" in driver.conditions())

    nvml.say("model 0-1 A100_80G")
    until(lambda: driver.conditions() == [], what="a new probe")


def test_rule_4_a_hanging_library_makes_samples_old_and_the_devices_unresponsive(nvml: FakeNvml, start: Start) -> None:
    ahead = [0.0]
    nvml.say("model 0 A100_80G")
    driver = start(now_s=lambda: time.monotonic() + ahead[0])
    driver.inventory()
    until(lambda: driver.sample()[0]["state"] == "ok")
    nvml.say("model 0 A100_80G", "hang Temperature 600000")
    before = nvml.calls("PowerUsage")
    until(lambda: nvml.calls("Temperature") and nvml.calls("PowerUsage") <= before + 3)

    ahead[0] = 30.0

    until(lambda: driver.sample()[0]["state"] == "unresponsive")
    assert driver.sample()[0]["age_s"] >= 29
    assert "driver_unresponsive" in driver.conditions()
    nvml.say("model 0 A100_80G")
    until(lambda: driver.sample()[0]["state"] == "ok", what="a new probe", within_s=40)


def test_an_xid_is_told_once(nvml: FakeNvml, start: Start) -> None:
    rung: list[int] = []
    nvml.say("model 0-1 A100_80G", "xid 1 79")
    driver = start(on_change=lambda: rung.append(1))
    driver.inventory()
    until(lambda: driver.sample()[1]["xids"] == [79])
    assert rung

    driver.taken()

    assert driver.sample()[1]["xids"] == []


def test_rule_21_a_process_that_is_not_in_proc_is_not_believed(nvml: FakeNvml, start: Start) -> None:
    nvml.say("model 0 A100_80G", f"proc 0 {os.getpid()} 1024", "proc 0 4194303 77")
    driver = start()
    driver.inventory()
    until(lambda: driver.sample()[0]["state"] == "ok")

    assert readings(driver, 0)["processes"] == [{"pid": os.getpid(), "memory_mib": 1024}]


def test_rule_24_the_library_is_opened_once(nvml: FakeNvml, start: Start) -> None:
    nvml.say("model 0 A100_80G")
    driver = start()
    driver.inventory()
    until(lambda: nvml.calls("PowerUsage") > 10)

    assert nvml.calls("InitWithFlags") == 1


def test_nvidia_smi_lines_are_read_as_uuids(nvml: FakeNvml, start: Start) -> None:
    output = "GPU 0: NVIDIA L4 (UUID: GPU-1111)\n  MIG 1g.5gb Device 0: (UUID: MIG-2)\nGPU 1: NVIDIA L4 (UUID: GPU-3)\n"

    assert start().visible_in(output) == ["GPU-1111", "GPU-3"]


def test_an_agent_tells_of_an_xid_of_the_kernel_log_within_two_seconds(
    nvml: FakeNvml, plane: FakeControlPlane, tmp_path: Path
) -> None:
    nvml.say("model 0-3 A100_80G")
    log = tmp_path / "kmsg"
    os.mkfifo(log)
    writer = os.open(log, os.O_RDWR)
    agent = Agent(plane, tmp_path / "state", "--driver", "nvidia", "--engine", "process", "--kernel-log", str(log))
    agent.start()
    try:
        assert agent.devices == [FakeNvml.uuid(n) for n in range(4)]
        plane.hold_s = 20
        sent = len(plane.requests)
        until(lambda: len(plane.requests) > sent)
        began = time.monotonic()
        os.write(writer, b"4,100,5,-;NVRM: Xid (PCI:0000:03:00): 79, pid='<unknown>', name=<unknown>, text\n")

        until(lambda: any(row["xids"] == [79] for row in plane.requests[-1].devices), within_s=5)

        assert time.monotonic() - began < 2.0
        assert plane.requests[-1].devices[2]["xids"] == [79]
        event = next(event for event in plane.events.values() if event["kind"] == "xid")
        assert (event["device"], event["xid"]) == (FakeNvml.uuid(2), 79)
    finally:
        agent.kill()
        os.close(writer)


def test_a_probe_that_died_is_started_again_after_30_s_and_later_each_time_it_dies_soon() -> None:
    assert [restart_after_s(deaths) for deaths in (0, 1, 2, 3, 6, 5000)] == [1.0, 30.0, 60.0, 120.0, 600.0, 600.0]
