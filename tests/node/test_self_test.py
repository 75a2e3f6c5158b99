"""The self-test of a host: figures where they can be measured, nothing where they cannot, and no tenant beside it."""

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from agents import protocol
from agents.node import device_work, host_figures
from tests.fakes import cuda
from tests.fakes.control_plane import FakeControlPlane
from tests.fakes.nvml import FakeNvml, build, why_no_compiler
from tests.node.conftest import ROOT, Agent
from tests.node.test_reconciler import Host, host

__all__ = ["host"]
SEED = "5e" * 32
GPU = FakeNvml.uuid(0)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    reason = why_no_compiler()
    if reason is not None:
        pytest.skip(reason)
    return cuda.build(build(tmp_path_factory.mktemp("drivers")))


@pytest.fixture
def gpus(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    """A machine with two GPUs whose driver has both of its libraries."""
    fake = FakeNvml(library, tmp_path)
    fake.say("model 0-1 A100_80G")
    for name, value in {**fake.environment, "GPUYARD_PROBE_EVERY_S": "0.2", "FAKE_CUDA_MIB": "128"}.items():
        monkeypatch.setenv(name, value)
    return fake


@pytest.fixture
def real(gpus: FakeNvml, plane: FakeControlPlane, tmp_path: Path) -> Iterator[Agent]:
    """An agent of that machine."""
    options = ("--driver", "nvidia", "--engine", "process", "--kernel-log", str(tmp_path / "none"))
    agent = Agent(plane, tmp_path / "state", *options, environment={"PATH": f"{_smi(tmp_path)}:/usr/bin:/bin"})
    agent.start()
    yield agent
    agent.kill()
    for folder in (agent.folder / "workloads").glob("*"):
        for pid in agent.processes(folder.name):
            subprocess.run(["kill", "-9", str(pid)], check=False)


def _smi(folder: Path) -> Path:
    tools = folder / "bin"
    tools.mkdir()
    (tools / "nvidia-smi").write_text(f'#!/bin/sh\necho "GPU 0: Fake (UUID: {GPU})"\n')
    (tools / "nvidia-smi").chmod(0o755)
    return tools


def ask(plane: FakeControlPlane, devices: list[str], level: str = "L1") -> dict[str, Any]:
    return plane.wish("selftest", level=level, seed=SEED, devices=devices, answer_within_s=60)


def test_a_simulated_host_sends_simulated_figures_and_real_ones_of_its_disk(
    plane: FakeControlPlane, agent: Agent
) -> None:
    answer = ask(plane, agent.devices)

    assert answer["simulated"] is True
    first, *_ = answer["devices"]
    assert first["proof"] == protocol.selftest_proof(seed=SEED, device=first["uuid"])
    assert set(first["figures"]) == {
        "memory_mib_per_s", "fp16_gflops", "h2d_mib_per_s", "d2h_mib_per_s", "memory_tested_mib"
    }  # fmt: skip
    assert len(answer["devices"]) == 4
    assert answer["host_figures"]["control_connect_us"] > 0
    assert all(isinstance(value, int) and value > 0 for value in answer["host_figures"].values())


def test_level_0_asks_for_no_figures(plane: FakeControlPlane, agent: Agent) -> None:
    answer = ask(plane, agent.devices, level="L0")

    assert [row["figures"] for row in answer["devices"]] == [{}] * 4
    assert answer["host_figures"] == {}


def test_a_device_that_a_workload_holds_is_not_measured(plane: FakeControlPlane, agent: Agent) -> None:
    held, free = agent.devices[:2]
    plane.wait_step(plane.want(devices=[held], command=["sleep", "60"]), "ready")

    answer = ask(plane, [held, free])

    assert [bool(row["figures"]) for row in answer["devices"]] == [False, True]
    assert all(row["proof"] for row in answer["devices"])


def test_no_workload_starts_on_a_device_while_it_is_measured(host: Host) -> None:
    with host.reconciler.claims.claim(host.driver.uuid_of(0)) as is_ours:
        assert is_ours
        with host.reconciler.claims.claim(host.driver.uuid_of(0)) as again:
            assert not again
        host.answer(host.wanted())
        assert "self-test" in host.settle("absent").detail

    assert host.settle("ready").devices == [host.driver.uuid_of(0)]
    with host.reconciler.claims.claim(host.driver.uuid_of(0)) as is_ours:
        assert not is_ours


def test_the_drivers_library_is_measured_by_a_child_and_its_memory_is_tested(gpus: FakeNvml) -> None:
    figures = device_work.ask("figures", GPU, within_s=5)["figures"]

    # Copies of the machine's own memory: anything that a machine can do is right, and nothing is 0.
    assert {name for name, value in figures.items() if value > 0} == {
        "memory_mib_per_s", "h2d_mib_per_s", "d2h_mib_per_s", "memory_tested_mib"
    }  # fmt: skip
    assert figures["memory_tested_mib"] == 115  # nine tenths of 128 MiB


def test_memory_that_loses_a_bit_is_found(gpus: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_CUDA_BAD", GPU)

    assert "does not hold what was written" in device_work.ask("figures", GPU, within_s=5)["fault"]


def test_without_the_library_nothing_is_said() -> None:
    assert set(device_work.ask("figures", GPU, within_s=5)) == {"absent"}


def test_a_child_that_hangs_is_given_up(gpus: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_work, "START_S", 0.2)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert device_work.ask("figures", GPU, within_s=1) == {"absent": "the child ended with 1"}
    monkeypatch.setattr(sys, "executable", str(_sleeper(gpus.library)))

    assert device_work.ask("figures", GPU, within_s=0.2) == {"absent": "no answer within 0 s"}


def _sleeper(folder: Path) -> Path:
    program = folder / "sleeper"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    return program


LIMIT = 64 << 20
GROUPS = Path("/sys/fs/cgroup/memory")
IN_A_GROUP = """
import os, sys
open(sys.argv[1], "w").write(str(os.getpid()))
from agents.node import device_work
print(device_work.ask("figures", sys.argv[2], within_s=5))
"""


@pytest.fixture
def narrow() -> Iterator[Path]:
    """A control group with less memory than a context on the fake GPU takes."""
    group = GROUPS / f"gpuyard-test-{uuid4().hex}"
    try:
        group.mkdir()
    except OSError:
        pytest.skip("no control group can be made here")
    (group / "memory.limit_in_bytes").write_text(str(LIMIT))
    yield group
    group.rmdir()


@pytest.fixture
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """What systemd does for gpuyard-work.socket: each connection is the input and output of a process of its own."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(tmp_path / "work.sock"))
    listener.listen()

    def accept() -> None:
        with suppress(OSError):
            while True:
                peer, _ = listener.accept()
                with peer:
                    subprocess.run([sys.executable, "-m", "agents.node.device_work"], stdin=peer, stdout=peer, cwd=ROOT)

    threading.Thread(target=accept, daemon=True).start()
    yield tmp_path / "work.sock"
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()


def test_the_work_on_a_gpu_has_memory_of_its_own_beside_the_agent(
    gpus: FakeNvml, narrow: Path, beside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked_by_an_agent() -> str:
        command = [sys.executable, "-c", IN_A_GROUP, str(narrow / "cgroup.procs"), GPU]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True).stdout

    monkeypatch.setenv("GPUYARD_WORK_SOCKET", "/nobody/listens")
    assert "'absent': 'the child ended with -9'" in asked_by_an_agent()

    monkeypatch.setenv("GPUYARD_WORK_SOCKET", str(beside))
    assert "'memory_tested_mib': 115" in asked_by_an_agent()


def test_work_beside_the_agent_that_ends_without_a_word_is_no_figure(
    gpus: FakeNvml, beside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUYARD_WORK_SOCKET", str(beside))
    assert "without an answer" in device_work.ask("reset", GPU, within_s=5)["absent"]
    monkeypatch.setattr(device_work, "START_S", 0.0)
    assert device_work.ask("figures", GPU, within_s=0.01) == {"absent": "no answer within 0 s"}


def test_an_agent_with_a_driver_sends_what_it_measured_and_a_sick_gpu_proves_nothing(
    real: Agent, plane: FakeControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = ask(plane, [FakeNvml.uuid(0), FakeNvml.uuid(1)])

    assert answer["simulated"] is False
    assert [row["figures"]["memory_tested_mib"] for row in answer["devices"]] == [115, 115]
    assert all("fp16_gflops" not in row["figures"] for row in answer["devices"])

    real.kill()
    real.environment["FAKE_CUDA_BAD"] = FakeNvml.uuid(1)
    real.start()
    well, sick = ask(plane, [FakeNvml.uuid(0), FakeNvml.uuid(1)])["devices"]
    assert (bool(well["proof"]), sick["proof"], sick["figures"]) == (True, "", {})
    assert "does not hold" in sick["fault"]


def test_between_two_tenants_the_memory_is_written_over(real: Agent, plane: FakeControlPlane, tmp_path: Path) -> None:
    real.kill()
    real.environment["FAKE_CUDA_LOG"] = str(tmp_path / "fills")
    real.start()
    key = plane.want(devices=[GPU], command=["sleep", "60"], env={"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"})
    plane.wait_step(key, "ready")
    assert not (tmp_path / "fills").exists()
    plane.unwant(key)

    record = plane.wait_step(key, "gone", within_s=40)["handover"]

    (check,) = [row for row in record["devices"][GPU] if row["check"] == "memory_overwritten"]
    assert (check["passed"], check["detail"]) == (True, "115 MiB")
    zeros = [int(line.split()[2]) for line in (tmp_path / "fills").read_text().splitlines() if " 00000000 " in line]
    assert sum(zeros) == 115 << 20


def test_a_disk_that_cannot_be_measured_has_no_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(host_figures.disk(tmp_path)) <= {"disk_write_mib_per_s", "disk_read_mib_per_s"}
    assert list(tmp_path.iterdir()) == []
    assert host_figures.disk(Path("/proc")) == {}
    assert "control_connect_us" not in host_figures.figures(folder=tmp_path, server="http://127.0.0.1:9")
