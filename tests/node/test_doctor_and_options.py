"""The command line of a host: what it takes, what it refuses, and what the doctor says."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from agents.node import doctor, sim
from agents.node.identity import StateFolder
from agents.node.main import main
from agents.node.sim import SimDriver
from tests.fakes.nvml import FakeNvml, build, why_no_compiler
from tests.node.conftest import ROOT

CATALOGUE = ROOT / "platform" / "catalogue" / "data" / "gpu_catalog.json"


def test_the_models_that_can_be_simulated_are_those_of_the_catalogue() -> None:
    models = json.loads((ROOT / "agents" / "node" / "data" / "sim_models.json").read_text())
    catalogue = {gpu["slug"]: gpu for gpu in json.loads(CATALOGUE.read_text())["gpus"]}

    assert set(models) == set(catalogue)
    for slug, row in models.items():
        memory_gib = catalogue[slug]["memory_gb"]
        assert row["memory_mib"] == (memory_gib * 1024 if memory_gib else None), slug
        assert row["vendor"] == catalogue[slug]["vendor"], slug


def test_simulated_devices_say_so_and_keep_their_uuids() -> None:
    first = SimDriver(specs=["A100_80G x2", "RTX_4090_24G"], seed="a").inventory().gpus
    again = SimDriver(specs=["A100_80G x2", "RTX_4090_24G"], seed="a").inventory().gpus
    other = SimDriver(specs=["A100_80G x2"], seed="b").inventory().gpus

    assert first == again
    assert {gpu["uuid"] for gpu in first}.isdisjoint(gpu["uuid"] for gpu in other)
    assert all(gpu["simulated"] and gpu["uuid"].startswith("SIM-") for gpu in first)
    assert [gpu["slug"] for gpu in first] == ["A100_80G", "A100_80G", "RTX_4090_24G"]


def test_a_host_of_another_make_has_no_cuda() -> None:
    facts = SimDriver(specs=["ASCEND_910B2_64G x8"], seed="a").inventory()

    assert (facts.driver_version, facts.cuda_version, len(facts.gpus)) == (None, None, 8)


@pytest.mark.parametrize("text", ["", "A100_81G", "A100_80G x0", "A100_80G x999", "A100_80G;rm"])
def test_devices_that_cannot_be_simulated_are_refused(text: str) -> None:
    with pytest.raises(sim.BadSpec):
        sim.read_specs([text])


def test_a_scenario_makes_a_simulated_device_fail_and_recover(tmp_path: Path) -> None:
    path = tmp_path / "scenario.json"
    driver = SimDriver(specs=["A100_80G x2"], seed="a", scenario=path)
    assert [row["state"] for row in driver.sample()] == ["ok", "ok"]

    path.write_text(json.dumps({"devices": {"1": {"state": "lost", "xids": [79]}}, "conditions": ["disk_pressure"]}))
    assert [row["state"] for row in driver.sample()] == ["ok", "lost"]
    assert driver.sample()[1]["xids"] == [79]
    assert driver.conditions() == ["disk_pressure"]
    driver.taken()
    assert driver.sample()[1]["xids"] == []

    path.unlink()
    assert [row["state"] for row in driver.sample()] == ["ok", "ok"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--driver", "sim"], "needs --sim"),
        (["--driver", "sim", "--sim", "NOPE x2"], "no model"),
        (["--driver", "sim", "--sim", "A100_80G", "--ports", "80-90"], "--ports"),
        (["--driver", "sim", "--sim", "A100_80G"], "not enrolled"),
    ],
)
def test_a_run_that_cannot_work_says_what_is_missing(
    options: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "--state-dir", str(tmp_path / "s"), *options]) in (1, 2)
    assert words in capsys.readouterr().err


def test_boot_numbers_only_grow(tmp_path: Path) -> None:
    folder = StateFolder(tmp_path / "s")

    assert [folder.next_boot_no(), folder.next_boot_no(), folder.next_boot_no(at_least=40)] == [1, 2, 41]
    assert StateFolder(tmp_path / "s").next_boot_no() == 42


def test_the_doctor_names_each_fault_of_a_bare_machine_and_its_cure(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "agents.node.main", "doctor", "--json", "--state-dir", str(tmp_path / "none")],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False, env={"LD_LIBRARY_PATH": str(tmp_path)},
    )  # fmt: skip
    report = json.loads(done.stdout)

    assert done.returncode == 1
    assert report["ok"] is False
    bad = {finding["check"]: finding for finding in report["findings"] if finding["level"] == "bad"}
    assert "enrol" in bad["enrolment"]["mend"]
    assert "driver" in bad["driver"]["mend"]
    assert all(finding["mend"] for finding in bad.values())


@pytest.mark.skipif(why_no_compiler() is not None, reason="no C compiler")
@pytest.mark.parametrize(
    ("lines", "check", "words"),
    [
        (["init 18"], "driver", "restart the machine"),
        (["init 9"], "driver", "modprobe nvidia"),
        (["model 0 A100_80G", "driver 470.10"], "driver", "535"),
        (["model 0-1 A100_80G", "gpu 1 reset_required"], "gpus", "restart the machine"),
    ],
)
def test_the_doctor_reads_the_driver(
    lines: list[str], check: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml = FakeNvml(build(tmp_path), tmp_path)
    nvml.say(*lines)
    for name, value in nvml.environment.items():
        monkeypatch.setenv(name, value)

    found = doctor.examine(folder=None, settings={"engine": "process"}, enrolled=True)

    assert any(finding.level == "bad" and finding.check == check and words in finding.mend for finding in found), found


def _doctor_as_json(state: Path, *options: str, **environment: str) -> dict[str, dict[str, str]]:
    """Return the bad findings by what was looked at."""
    done = subprocess.run(
        [sys.executable, "-m", "agents.node.main", "doctor", "--json", "--state-dir", str(state), *options],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False, env={**os.environ, **environment},
    )  # fmt: skip
    return {row["check"]: row for row in json.loads(done.stdout)["findings"] if row["level"] == "bad"}


def test_a_damaged_state_is_a_finding_like_any_other(tmp_path: Path) -> None:
    StateFolder(tmp_path / "s")
    (tmp_path / "s" / "identity.json").write_text("{")

    bad = _doctor_as_json(tmp_path / "s")

    assert "identity.json is damaged" in bad["state"]["text"]
    assert bad["state"]["mend"] == "move the folder away, and enrol this machine again"
    assert "enrolment" not in bad


def test_an_enrolled_machine_whose_agent_does_not_run_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = StateFolder(tmp_path / "s")
    identity = folder.fresh_identity(server="http://127.0.0.1:1")
    identity.host = "host_1"
    folder.save_identity(identity)
    running: list[list[str]] = [["/usr/bin/python3", "/opt/gpuyard/agent/bin/gpuyard-agent", "doctor"]]
    monkeypatch.setattr("agents.node.doctor_engine._commands", lambda: running)

    def agent() -> str:
        found = doctor.look(folder.path, given={"engine": "process", "driver": "sim", "sim": ["A100_80G"]})
        return next(finding.level for finding in found if finding.check == "agent")

    assert agent() == "bad"
    running.append(["/usr/bin/python3", "/opt/gpuyard/agent/bin/gpuyard-agent", "run", "--state-dir", "x"])
    assert agent() == "good"
    running[-1] = ["/usr/bin/python3", "-P", "-m", "agents.node.main", "run", "--state-dir"]
    assert agent() == "good"


@pytest.mark.parametrize("driver", ["amd", "ascend"])
def test_the_driver_of_another_make_is_looked_at_and_not_nvidia_s(driver: str, tmp_path: Path) -> None:
    bad = _doctor_as_json(tmp_path / "none", "--driver", driver)
    assert driver in bad["driver"]["text"].lower()
    assert "NVIDIA" not in str(bad)


def test_a_docker_that_ends_over_a_network_that_was_half_removed_is_told_apart(tmp_path: Path) -> None:
    words = "panic: runtime error\ngithub.com/docker/libnetwork.(*controller).reservePools(0x55)"
    (tmp_path / "journalctl").write_text(f"#!/bin/sh\ncat <<'E'\n{words}\nE\n")
    (tmp_path / "journalctl").chmod(0o755)
    options = ("--engine-socket", str(tmp_path / "no.sock"))

    said = _doctor_as_json(tmp_path / "none", *options, PATH=f"{tmp_path}:{os.environ['PATH']}")["engine"]
    without = _doctor_as_json(tmp_path / "none", *options)["engine"]

    assert "half removed" in said["text"]
    assert "local-kv.db" in said["mend"]
    assert "no container engine listens" in without["text"]
