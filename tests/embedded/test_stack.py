"""`python -m embedded`: up, down, and what is left after a `kill -9` of any of it. One stack for all of these tests."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from embedded import leftovers, processes, stack
from embedded.postgres import Postgres
from embedded.stack_folder import StackFolder

pytestmark = pytest.mark.slow

PASSWORD = "-begins-like-an-option"  # as one in sixty-four that are drawn does
POOL = {"hosts": [{"name": "sim-one", "gpus": ["A100_80G x2"]}]}


def run(verb: str, state_dir: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "embedded", verb, "--state-dir", str(state_dir), *options],
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )


def bring_up(state_dir: Path) -> dict[str, Any]:
    done = run("up", state_dir, "--json", "--pool", str(state_dir.parent / "pool.json"))
    assert done.returncode == 0, done.stderr
    access: dict[str, Any] = json.loads(done.stdout)
    return access


def status(state_dir: Path) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(run("status", state_dir).stdout)
    return told


def answers(access: dict[str, Any], *, key: str | None) -> int:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    request = urllib.request.Request(f"{access['api_url']}/api/v1/gpu-models", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refusal:
        return refusal.code


def loop_runs(state_dir: Path) -> int:
    server = Postgres.existing(state_dir)
    assert server is not None
    with psycopg.connect(server.url()) as connection:
        row = connection.execute("SELECT coalesce(sum(runs), 0) FROM scheduler_loopprogress").fetchone()
    assert row is not None
    return int(row[0])


@pytest.fixture(scope="module")
def stack_dir() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="gpuyard-stack-") as folder:
        Path(folder).chmod(0o755)
        (Path(folder) / "pool.json").write_text(json.dumps(POOL))
        path = Path(folder) / "state"
        StackFolder(path).write("access", {"admin_password": PASSWORD})
        try:
            yield path
        finally:
            stack.down(path)


@pytest.fixture
def access(stack_dir: Path) -> dict[str, Any]:
    return bring_up(stack_dir)


def test_up_gives_a_key_that_the_api_takes(access: dict[str, Any]) -> None:
    assert answers(access, key=access["api_key"]) == 200
    assert answers(access, key=None) == 401
    assert access["admin_password"] == PASSWORD


def test_up_again_finds_it_running_with_the_same_key(access: dict[str, Any], stack_dir: Path) -> None:
    before = status(stack_dir)["supervisor_pid"]

    again = bring_up(stack_dir)

    assert again == access
    assert status(stack_dir)["supervisor_pid"] == before


def test_workers_run_the_loops(access: dict[str, Any], stack_dir: Path) -> None:
    before = loop_runs(stack_dir)

    processes.poll_until(lambda: loop_runs(stack_dir) >= before + 3, within_s=30, what="Three ticks")


def test_a_killed_process_and_a_killed_database_come_back(access: dict[str, Any], stack_dir: Path) -> None:
    told = status(stack_dir)
    os.kill(told["processes"]["api"]["pid"], signal.SIGKILL)
    os.kill(told["servers"]["postgres"]["pid"], signal.SIGKILL)

    def is_back() -> bool:
        # What the killed one left may answer for a moment: back is who was started again and answers.
        started_again = status(stack_dir)["processes"]["api"]["starts"] > told["processes"]["api"]["starts"]
        try:
            return started_again and answers(access, key=access["api_key"]) == 200
        except OSError:
            return False

    processes.poll_until(is_back, within_s=60, what="The return of the API")
    after = status(stack_dir)
    assert after["servers"]["postgres"]["port"] == told["servers"]["postgres"]["port"]


def test_a_killed_host_stays_dead_until_it_is_revived(access: dict[str, Any], stack_dir: Path) -> None:
    assert run("kill-host", stack_dir, "sim-one").returncode == 0
    assert status(stack_dir)["processes"]["agent-sim-one"]["pid"] is None

    assert run("revive-host", stack_dir, "sim-one").returncode == 0

    processes.poll_until(
        lambda: bool(status(stack_dir)["processes"]["agent-sim-one"]["ready"]), within_s=30, what="The host's return"
    )


def test_a_killed_supervisor_leaves_the_database_and_the_next_one_takes_it_over(
    access: dict[str, Any], stack_dir: Path
) -> None:
    told = status(stack_dir)

    os.kill(told["supervisor_pid"], signal.SIGKILL)
    processes.poll_until(lambda: leftovers.children_of(stack_dir) == [], within_s=60, what="The end of its children")
    assert status(stack_dir)["still_running"] == ["postgres", "broker"]
    bring_up(stack_dir)

    assert status(stack_dir)["servers"] == told["servers"]


def test_down_leaves_nothing_running(access: dict[str, Any], stack_dir: Path) -> None:
    told = status(stack_dir)
    pids = [told["supervisor_pid"], *(entry["pid"] for entry in told["servers"].values())]
    pids += [entry["pid"] for entry in told["processes"].values()]

    done = run("down", stack_dir)

    assert done.returncode == 0, done.stderr
    assert [pid for pid in pids if processes.is_alive(pid)] == []
    assert leftovers.children_of(stack_dir) == []
    assert leftovers.workloads_in(stack_dir) == []
    assert status(stack_dir) == {"state": "down", "still_running": [], "processes": []}


def test_down_after_a_killed_supervisor_leaves_nothing_either(access: dict[str, Any], stack_dir: Path) -> None:
    os.kill(status(stack_dir)["supervisor_pid"], signal.SIGKILL)

    assert run("down", stack_dir).returncode == 0

    assert status(stack_dir) == {"state": "down", "still_running": [], "processes": []}


def test_a_stack_that_cannot_come_up_says_where_and_leaves_nothing(stack_dir: Path) -> None:
    failed = run("up", stack_dir, "--no-pool", "--set", "HOST_SILENCE_LIMIT_S=soon")

    assert failed.returncode == 1
    assert "HOST_SILENCE_LIMIT_S" in failed.stderr
    assert status(stack_dir)["still_running"] == []
    assert not StackFolder(stack_dir).is_held()


def test_down_where_nothing_ever_ran_is_no_error(tmp_path: Path) -> None:
    assert run("down", tmp_path / "nothing").returncode == 0
