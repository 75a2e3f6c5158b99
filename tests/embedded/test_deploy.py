"""What is deployed is what the embedded stack runs: process table, compose.yml and systemd units say the same."""

import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from embedded import process_table

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
TABLE = {
    process.name: process
    for process in process_table.control_plane(ports={"api": 1, "streams": 2}, beat_folder=Path("/x"))
}
# Differs with the machine: where it listens, where files are, how many processes.
OF_THE_MACHINE = ("--host", "--port", "--workers", "--schedule")


def essence(arguments: list[str]) -> list[str]:
    """Return the arguments from the program's name on, without those of one machine."""
    kept: list[str] = []
    skip = False
    for argument in arguments:
        if not skip and argument not in OF_THE_MACHINE:
            kept.append(argument.replace("%%", "%"))
        skip = argument in OF_THE_MACHINE
    for start in ("granian", "celery", "loops"):
        if start in kept:
            return kept[kept.index(start) :]
    raise AssertionError(f"no program of ours in {arguments}")


def compose() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yml").read_text())
    services: dict[str, Any] = document["services"]
    return services


def default_command() -> list[str]:
    """Return the CMD of the image."""
    (line,) = [line for line in (DEPLOY / "Dockerfile").read_text().splitlines() if line.startswith("CMD ")]
    command: list[str] = yaml.safe_load(line.removeprefix("CMD "))
    return command


def unit(name: str) -> dict[str, str]:
    lines = (DEPLOY / "systemd" / f"gpuyard-{name}.service").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)


@pytest.mark.parametrize("name", TABLE)
def test_compose_runs_what_the_embedded_stack_runs(name: str) -> None:
    command = [argument.rpartition("/")[2] for argument in essence(list(TABLE[name].command))]
    deployed = essence(compose()[name].get("command", default_command()))

    assert [argument.rpartition("/")[2] for argument in deployed] == command


@pytest.mark.parametrize("name", TABLE)
def test_the_units_run_what_the_embedded_stack_runs(name: str) -> None:
    started = shlex.split(unit(name)["ExecStart"])
    started[0] = started[0].rpartition("/")[2]

    assert essence(started) == essence(list(TABLE[name].command))


@pytest.mark.parametrize("name", TABLE)
def test_the_target_wants_every_unit(name: str) -> None:
    assert f"gpuyard-{name}.service" in (DEPLOY / "systemd" / "gpuyard.target").read_text()


@pytest.mark.parametrize("name", [name for name in TABLE if name.startswith("worker-")])
def test_workers_get_the_time_to_finish_that_they_need(name: str) -> None:
    assert compose()[name]["stop_grace_period"] == f"{TABLE[name].end_within_s:g}s"
    assert unit(name)["TimeoutStopSec"] == f"{TABLE[name].end_within_s:g}"
