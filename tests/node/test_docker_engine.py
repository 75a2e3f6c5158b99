"""The agent with a real dockerd and a real image; the GPUs alone are simulated."""

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agents.node.private_files import folder_in_memory
from tests.engines import IMAGE, Dockerd, dockerd
from tests.fakes.control_plane import FakeControlPlane
from tests.node.conftest import Agent, until

__all__ = ["dockerd"]
pytestmark = [pytest.mark.engine, pytest.mark.root]
FOREVER = ["sh", "-c", "trap 'echo bye; exit 0' TERM; n=0; while :; do n=$((n+1)); echo line $n; sleep 0.2; done"]


@pytest.fixture
def host(plane: FakeControlPlane, dockerd: Dockerd, tmp_path: Path) -> Iterator[Agent]:
    agent = Agent(plane, tmp_path / "state", "--driver", "sim", "--sim", "A100_80G x4", "--engine", "docker",
                  "--engine-socket", str(dockerd.socket))  # fmt: skip
    plane.hold_s = 2
    agent.start()
    yield agent
    if agent.process is not None and agent.process.poll() is None:
        agent.kill()
    shutil.rmtree(folder_in_memory(tmp_path / "state"), ignore_errors=True)
    for row in containers(dockerd):
        dockerd.call("DELETE", f"/containers/{row['Id']}?force=1")


def containers(engine: Dockerd) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(engine.call("GET", "/containers/json?all=1")[1])
    return rows


def inspect(engine: Dockerd, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(engine.call("GET", f"/containers/{name}/json")[1])
    return found


def test_a_container_becomes_ready_speaks_and_is_gone(plane: FakeControlPlane, dockerd: Dockerd, host: Agent) -> None:
    wanted = host.devices[:2]
    key = plane.want(image=IMAGE, devices=wanted, command=FOREVER)

    report = plane.wait_step(key, "ready")
    assert report["visible_devices"] == wanted
    assert report["image_digest"].startswith("sha256:")
    until(lambda: "line 5" in plane.log(key), what="its output")

    plane.unwant(key)
    plane.wait_step(key, "gone")
    assert containers(dockerd) == []
    until(lambda: plane.log(key).endswith("bye\n"), what="its last words")
    lines = plane.log(key).splitlines()[:-1]
    assert lines == [f"line {n + 1}" for n in range(len(lines))]


WRITES = (
    "for at in / /bin /tmp /scratch /run/gpuyard; do (: > $at/try) 2>/dev/null && echo can $at; done; exec sleep 600"
)


def test_a_read_only_container_writes_to_its_scratch_and_its_tmp_in_memory(
    plane: FakeControlPlane, dockerd: Dockerd, host: Agent
) -> None:
    command = ["sh", "-c", f"df -m /tmp | tail -1; {WRITES}"]
    key = plane.want(image=IMAGE, devices=host.devices[:1], command=command, ram_mib=256, read_only=True)
    plane.wait_step(key, "ready")
    until(lambda: "can /scratch" in plane.log(key), what="its output")

    first, *can = plane.log(key).splitlines()
    assert can == ["can /tmp", "can /scratch"]
    assert first.split()[:2] == ["tmpfs", "64"]
    assert inspect(dockerd, "gy-lease_1-0-1")["HostConfig"]["ReadonlyRootfs"] is True


def test_a_container_is_made_with_the_hardening_list(plane: FakeControlPlane, dockerd: Dockerd, host: Agent) -> None:
    key = plane.want(image=IMAGE, devices=host.devices[:1], command=FOREVER, ram_mib=64, cpu_milli=500, pids=99)
    plane.wait_step(key, "ready")

    made = inspect(dockerd, "gy-lease_1-0-1")

    config = made["HostConfig"]
    assert config["CapDrop"] == ["ALL"]
    assert config["SecurityOpt"] == ["no-new-privileges:true"]
    assert (config["Privileged"], config["NetworkMode"] == "host", config["Binds"]) == (False, False, None)
    assert config["RestartPolicy"]["Name"] == "no"
    assert (config["PidsLimit"], config["Memory"], config["MemorySwap"]) == (99, 64 << 20, 64 << 20)
    assert config["NanoCpus"] == 500_000_000
    assert made["Config"]["User"] == "1000:1000"
    assert made["Config"]["Labels"]["gpuyard.simulated"] == "1"
    assert made["Config"]["Labels"]["gpuyard.epoch"] == "1"
    status = Path(f"/proc/{made['State']['Pid']}/status").read_text()
    assert "CapEff:\t0000000000000000" in status
    assert "NoNewPrivs:\t1" in status
    assert "Seccomp:\t2" in status
    assert config["NetworkMode"] == "gy-lease_1-0-1"


def test_a_storage_that_cannot_limit_containers_is_said_and_not_hidden(
    plane: FakeControlPlane, dockerd: Dockerd, host: Agent
) -> None:
    key = plane.want(image=IMAGE, devices=host.devices[:1], command=FOREVER, disk_mib=512)
    plane.wait_step(key, "ready")
    limited = inspect(dockerd, "gy-lease_1-0-1")["HostConfig"].get("StorageOpt")

    said = [event["detail"] for event in plane.events.values() if event["kind"] == "no_disk_quota"]
    if limited:
        assert (limited, said) == ({"size": "512M"}, [])
    else:
        until(lambda: [e for e in plane.events.values() if e["kind"] == "no_disk_quota"], what="its word")


def test_a_published_port_answers(plane: FakeControlPlane, dockerd: Dockerd, host: Agent) -> None:
    serve = ["sh", "-c", "echo hello from inside > /tmp/index.html; exec httpd -f -p 8080 -h /tmp"]
    key = plane.want(image=IMAGE, devices=host.devices[:1], command=serve, ports=[8080])
    port = plane.wait_step(key, "ready")["ports"]["8080"]

    assert dockerd.fetch(f"http://127.0.0.1:{port}/") == "hello from inside\n"


def test_an_exit_is_heard_within_a_second_with_its_code(plane: FakeControlPlane, dockerd: Dockerd, host: Agent) -> None:
    plane.hold_s = 20
    key = plane.want(image=IMAGE, devices=host.devices[:1], command=["sh", "-c", "sleep 1; exit 9"])
    plane.wait_step(key, "ready")

    report = plane.wait_step(key, "exited", within_s=6)

    assert report["exit_code"] == 9


def test_an_image_that_is_nowhere_is_image_not_found(plane: FakeControlPlane, dockerd: Dockerd, host: Agent) -> None:
    key = plane.want(image="127.0.0.1:9/no/such:image", devices=host.devices[:1])

    report = plane.wait_step(key, "exited", within_s=60)

    assert report["failure"] in ("image_not_found", "engine_error")
    assert "127.0.0.1:9" in report["detail"]


def test_a_program_that_is_not_in_the_image_is_said(plane: FakeControlPlane, dockerd: Dockerd, host: Agent) -> None:
    key = plane.want(image=IMAGE, devices=host.devices[:1], command=["/no/such/program"])

    report = plane.wait_step(key, "exited")

    assert (report["failure"], report["exit_code"]) == ("exited_early", 127)
    assert "/no/such/program" in report["detail"]


def test_a_container_that_does_not_see_its_gpus_never_becomes_ready(
    plane: FakeControlPlane, dockerd: Dockerd, host: Agent
) -> None:
    # Without `env` nothing inside can show the GPUs, as where an engine silently ignores a device request.
    blind = dockerd.import_image("gpuyard/blind:test", without=("env",))
    key = plane.want(image=blind, devices=host.devices[:1], command=FOREVER)

    report = plane.wait_step(key, "exited", within_s=40)

    assert report["failure"] == "gpu_invisible"
    assert ("lease_1/0/1", "ready") not in plane.heard_at
    assert containers(dockerd) == []


def test_an_agent_that_was_killed_adopts_its_container(plane: FakeControlPlane, dockerd: Dockerd, host: Agent) -> None:
    key = plane.want(image=IMAGE, devices=host.devices[:1], command=FOREVER)
    plane.wait_step(key, "ready")
    until(lambda: "line 3" in plane.log(key))
    before = inspect(dockerd, "gy-lease_1-0-1")["Id"]

    host.kill()
    host.start()
    plane.wait_step(key, "ready")
    have = len(plane.log(key))
    until(lambda: len(plane.log(key)) > have + 20, what="the log going on")

    assert inspect(dockerd, "gy-lease_1-0-1")["Id"] == before
    lines = plane.log(key).splitlines()
    assert lines == [f"line {n + 1}" for n in range(len(lines))]


def test_an_engine_that_was_killed_comes_back_to_the_same_container(
    plane: FakeControlPlane, dockerd: Dockerd, host: Agent
) -> None:
    key = plane.want(image=IMAGE, devices=host.devices[:1], command=FOREVER)
    plane.wait_step(key, "ready")
    before = inspect(dockerd, "gy-lease_1-0-1")["Id"]

    dockerd.kill()
    until(lambda: "engine_down" in plane.requests[-1].conditions, what="engine_down", within_s=60)
    assert plane.step(key) == "ready"
    dockerd.start()
    until(lambda: "engine_down" not in plane.requests[-1].conditions, what="the engine", within_s=30)

    assert plane.step(key) == "ready"
    assert inspect(dockerd, "gy-lease_1-0-1")["Id"] == before


def test_the_owners_containers_are_left_alone_and_our_strays_are_stopped(
    plane: FakeControlPlane, dockerd: Dockerd, host: Agent
) -> None:
    _, made = dockerd.call(
        "POST", "/containers/create?name=owners", json.dumps({"Image": IMAGE, "Cmd": FOREVER}).encode()
    )
    dockerd.call("POST", f"/containers/{json.loads(made)['Id']}/start")
    key = plane.want(image=IMAGE, devices=host.devices[:1], command=FOREVER)
    plane.wait_step(key, "ready")
    plane.unwant(key)
    plane.wait_step(key, "gone")

    assert [row["Names"] for row in containers(dockerd)] == [["/owners"]]


def test_a_container_that_was_removed_behind_our_back_is_reported(
    plane: FakeControlPlane, dockerd: Dockerd, host: Agent
) -> None:
    key = plane.want(image=IMAGE, devices=host.devices[:1], command=FOREVER)
    plane.wait_step(key, "ready")

    dockerd.call("DELETE", "/containers/gy-lease_1-0-1?force=1")

    report = plane.wait_step(key, "exited", within_s=10)
    assert report["exit_code"] in (None, 137)


def test_a_lost_journal_does_not_start_a_second_container(
    plane: FakeControlPlane, dockerd: Dockerd, host: Agent
) -> None:
    key = plane.want(image=IMAGE, devices=host.devices[:1], command=FOREVER)
    plane.wait_step(key, "ready")
    before = inspect(dockerd, "gy-lease_1-0-1")["Id"]
    host.kill()
    for path in host.folder.glob("journal.sqlite*"):
        path.unlink()

    host.start()
    until(lambda: plane.requests[-1].boot_no == 2)
    plane.wait_step(key, "ready")

    assert inspect(dockerd, "gy-lease_1-0-1")["Id"] == before
    assert len(containers(dockerd)) == 1


def test_from_wanted_to_ready_takes_little_more_than_the_engine_itself(
    plane: FakeControlPlane, dockerd: Dockerd, host: Agent
) -> None:
    until(lambda: len(plane.requests) > 2)
    began = time.monotonic()
    body = json.dumps({"Image": IMAGE, "Cmd": FOREVER}).encode()
    made = json.loads(dockerd.call("POST", "/containers/create", body)[1])["Id"]
    dockerd.call("POST", f"/containers/{made}/start")
    bare_s = time.monotonic() - began
    began = time.monotonic()
    key = plane.want(image=IMAGE, devices=host.devices[:1], command=FOREVER)
    plane.wait_step(key, "ready")

    # Besides create and start: a network, a look from the inside, and our own thoughts, on a machine that others use.
    assert time.monotonic() - began < 5 * bare_s + 2.0
