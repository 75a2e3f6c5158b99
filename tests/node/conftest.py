"""Real agent processes against a small control plane: no Django, no container engine, unless a fixture says so."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agents.node.private_files import folder_in_memory
from tests.fakes.control_plane import FakeControlPlane

ROOT = Path(__file__).parents[2]


def until(condition: Callable[[], object], *, within_s: float = 20, what: str = "the condition") -> None:
    """Wait until `condition()` is true; fail when it is not within the time."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come within {within_s} s"
        time.sleep(0.01)


class Agent:
    """One agent process with its state folder, which outlives it."""

    def __init__(
        self, plane: FakeControlPlane, folder: Path, *options: str, environment: dict[str, str] | None = None
    ) -> None:
        self.plane, self.folder, self.options = plane, folder, options
        self.environment = environment or {}
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        before = len(self.plane.requests)
        process = self.begin()
        until(lambda: len(self.plane.requests) > before or process.poll() is not None, what="a first sync")
        assert process.poll() is None, self.said()

    def begin(self) -> subprocess.Popen[bytes]:
        """Start it without waiting for its first word."""
        command = [sys.executable, "-m", "agents.node.main", "run", "--state-dir", str(self.folder)]
        command += ["--server", self.plane.url, "--token", "one-time", *self.options]
        with open(self.folder.parent / f"{self.folder.name}.out", "ab") as out:
            environment = {**os.environ, **self.environment}
            self.process = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=out, env=environment)
        return self.process

    def kill(self) -> None:
        """kill -9: the agent has no time for anything."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(10)

    def terminate(self) -> int:
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(15)

    def said(self) -> str:
        return (self.folder.parent / f"{self.folder.name}.out").read_text()

    @property
    def devices(self) -> list[str]:
        """Return the UUIDs of the inventory that it sent."""
        until(lambda: any(request.inventory for request in self.plane.requests), what="an inventory")
        inventory = next(request.inventory for request in reversed(self.plane.requests) if request.inventory)
        return [gpu["uuid"] for gpu in inventory["gpus"]]

    def processes(self, name: str) -> list[int]:
        """Return the pids of the workload's processes in the sandbox, by the mark in their environment."""
        mark = f"GPUYARD_SANDBOX={(self.folder / 'workloads' / name).resolve()}".encode()
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if mark in environment:
                found.append(int(pid))
        return found


@pytest.fixture
def plane() -> Iterator[FakeControlPlane]:
    plane = FakeControlPlane(hold_s=2)
    plane.start()
    yield plane
    plane.stop()


@pytest.fixture
def agent(plane: FakeControlPlane, tmp_path: Path) -> Iterator[Agent]:
    """A running agent with four simulated GPUs and the process sandbox."""
    agent = Agent(plane, tmp_path / "state", "--driver", "sim", "--engine", "process", "--sim", "A100_80G x4")
    agent.start()
    yield agent
    if agent.process is not None and agent.process.poll() is None:
        agent.kill()
    shutil.rmtree(folder_in_memory(tmp_path / "state"), ignore_errors=True)
    for folder in (tmp_path / "state" / "workloads").glob("*"):
        for pid in agent.processes(folder.name):
            os.kill(pid, signal.SIGKILL)
