"""A tenant's command inside what he leases: its output and exit code, its limits, and never twice."""

from typing import Any

import pytest

from tests.engines import IMAGE, dockerd
from tests.fakes.control_plane import FakeControlPlane
from tests.node.conftest import Agent, until
from tests.node.test_docker_engine import host

__all__ = ["dockerd", "host"]
Key = tuple[str, int, int]


@pytest.fixture(params=["sandbox", pytest.param("docker", marks=[pytest.mark.engine, pytest.mark.root])])
def leased(request: pytest.FixtureRequest, plane: FakeControlPlane) -> tuple[Key, Agent]:
    """A ready workload, on the process sandbox and on a real engine."""
    agent: Agent = request.getfixturevalue("host" if request.param == "docker" else "agent")
    key = plane.want(image=IMAGE, devices=agent.devices[:1], command=["sleep", "600"], env={"MINE": "1"})
    plane.wait_step(key, "ready")
    return key, agent


def run(plane: FakeControlPlane, key: Key, *argv: str, **limits: int) -> dict[str, Any]:
    lease, member, epoch = key
    return plane.wish("exec", lease=lease, member=member, epoch=epoch, argv=list(argv), **limits)


def test_output_errors_and_the_exit_code_come_back(plane: FakeControlPlane, leased: tuple[Key, Agent]) -> None:
    answer = run(plane, leased[0], "sh", "-c", "echo out $MINE; echo err >&2; id -u; exit 7")

    assert (answer["exit_code"], answer["failure"], answer["truncated"]) == (7, "", False)
    lines = answer["output"].splitlines()
    assert {"out 1", "err"} <= set(lines)
    assert "0" not in lines, "it is not root"


def test_what_is_not_over_in_time_is_killed(plane: FakeControlPlane, leased: tuple[Key, Agent]) -> None:
    key, _ = leased
    answer = run(plane, key, "sh", "-c", "echo begun; exec sleep 5432", timeout_s=1)

    assert (answer["exit_code"], answer["output"]) == (None, "begun\n")
    assert "not over after 1 s" in answer["failure"]
    left = "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '"
    until(lambda: "sleep 5432" not in run(plane, key, "sh", "-c", left)["output"], what="its end")


def test_what_says_too_much_is_cut_and_ended(plane: FakeControlPlane, leased: tuple[Key, Agent]) -> None:
    answer = run(plane, leased[0], "sh", "-c", "while :; do echo 0123456789; done", limit_bytes=1000, timeout_s=20)

    assert (len(answer["output"]), answer["truncated"], answer["failure"]) == (1000, True, "")


def test_a_program_that_is_not_there_is_127(plane: FakeControlPlane, leased: tuple[Key, Agent]) -> None:
    answer = run(plane, leased[0], "no-such-program")

    assert (answer["exit_code"], "no-such-program" in answer["output"]) == (127, True), answer


def test_nothing_is_run_in_what_is_not_ready_here(plane: FakeControlPlane, agent: Agent) -> None:
    assert run(plane, ("lease_9", 0, 1), "true")["failure"] == "it does not run here"
    assert run(plane, ("lease_9", 0, 1))["failure"] == "argv is a list of words"
    assert run(plane, ("lease_9", 0, 1), "x" * 20_000)["failure"].startswith("argv has at most")


def test_a_command_is_not_run_again_by_the_next_agent(plane: FakeControlPlane, agent: Agent) -> None:
    key = plane.want(devices=agent.devices[:1], command=["sleep", "600"])
    plane.wait_step(key, "ready")
    count = "echo ran >> count; cat count"
    wish = {"verb": "exec", "id": "exec_1", "lease": key[0], "member": key[1], "epoch": key[2]}
    plane.wishes.append(wish | {"argv": ["sh", "-c", count], "timeout_s": 10})
    answers = plane.events.values
    until(lambda: any(event.get("id") == "exec_1" for event in answers()), what="its answer")

    agent.kill()
    agent.start()
    until(lambda: sum(event.get("id") == "exec_1" for event in answers()) == 2, what="the next agent's answer")

    first, second = [event for event in answers() if event.get("id") == "exec_1"]
    assert (first["output"], first["exit_code"]) == ("ran\n", 0)
    assert "whether the command ran is not known" in second["failure"]
    plane.wishes.clear()
    assert run(plane, key, "cat", "count")["output"] == "ran\n"
