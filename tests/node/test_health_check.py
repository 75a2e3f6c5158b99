"""A workload with a health check: ready only after it has passed, shown when it fails later, and stopped by nobody."""

import shutil

import pytest

from tests.fakes.control_plane import FakeControlPlane
from tests.node.conftest import Agent, until

# It begins to listen after a moment, and answers 200 as long as the file is there, then 404.
SERVE = ["sh", "-c", "sleep 1; echo yes > well; exec busybox httpd -f -p 127.0.0.1:$GPUYARD_PORT_8000 -h ."]
needs_busybox = pytest.mark.skipif(shutil.which("busybox") is None, reason="busybox is not installed (busybox-static)")


@needs_busybox
def test_it_is_ready_only_when_its_http_answer_says_so(plane: FakeControlPlane, agent: Agent) -> None:
    check = {"port": 8000, "path": "/well", "start_period_s": 20, "interval_s": 1}
    key = plane.want(devices=agent.devices[:1], command=SERVE, ports=[8000], health=check)

    plane.wait_step(key, "ready")

    name = "lease_1/0/1"
    waited = plane.heard_at[name, "ready"] - plane.heard_at[name, "probing"]
    assert waited >= 0.5, "it was ready before it listened"
    steps = [row for request in plane.requests for row in request.workloads if row["step"] == "probing"]
    assert any("health check on port 8000" in row["detail"] for row in steps)


@needs_busybox
def test_it_is_unhealthy_after_some_failures_in_a_row_and_well_again_after_one_success(
    plane: FakeControlPlane, agent: Agent
) -> None:
    check = {"port": 8000, "path": "/well", "start_period_s": 20, "interval_s": 1, "failures": 2}
    key = plane.want(devices=agent.devices[:1], command=SERVE, ports=[8000], health=check)
    plane.wait_step(key, "ready")
    well = agent.folder / "workloads" / "gy-lease_1-0-1" / "well"

    well.unlink()
    until(lambda: (plane.report(key) or {}).get("unhealthy"), what="its illness")
    report = plane.report(key) or {}
    well.write_text("again")

    assert (report["step"], "status 404" in report["unhealthy"], report["unusable"]) == ("ready", True, False)
    until(lambda: not (plane.report(key) or {"unhealthy": 1}).get("unhealthy"), what="its recovery")
    kinds = [event["kind"] for event in plane.events.values()]
    assert ("unhealthy" in kinds, "healthy" in kinds) == (True, True)
    assert len(agent.processes("gy-lease_1-0-1")) > 0


@pytest.mark.parametrize(("code", "step"), [(0, "ready"), (3, "exited")])
def test_a_command_is_asked_inside(plane: FakeControlPlane, agent: Agent, code: int, step: str) -> None:
    check = {"command": ["sh", "-c", f"echo it says $NAME; exit {code}"], "start_period_s": 1}
    key = plane.want(devices=agent.devices[:1], env={"NAME": "hello"}, health=check)

    report = plane.wait_step(key, step)

    if code:
        assert report["failure"] == "health_failed"
        assert "ended with code 3: it says hello" in report["detail"]
        assert not agent.processes("gy-lease_1-0-1")


def test_what_ends_while_its_check_is_waited_for_has_exited_early(plane: FakeControlPlane, agent: Agent) -> None:
    check = {"port": 8000, "start_period_s": 60}
    key = plane.want(devices=agent.devices[:1], command=["sh", "-c", "sleep 0.5; exit 7"], ports=[8000], health=check)

    report = plane.wait_step(key, "exited")

    assert (report["failure"], report["exit_code"]) == ("exited_early", 7)


def test_a_check_that_makes_no_sense_is_a_bad_spec(plane: FakeControlPlane, agent: Agent) -> None:
    key = plane.want(devices=agent.devices[:1], health={"port": "eighty"})

    assert plane.wait_step(key, "gone")["failure"] == "bad_spec"
