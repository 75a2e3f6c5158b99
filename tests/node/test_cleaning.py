"""Between two tenants: network, scratch and devices of a real engine, and what happens when a device stays dirty."""

import json
import subprocess
import sys
from typing import Any

import pytest

from agents.node import cleaning
from tests.engines import IMAGE, Dockerd, dockerd
from tests.fakes.control_plane import FakeControlPlane
from tests.node.conftest import Agent, until
from tests.node.test_docker_engine import containers, host, inspect

__all__ = ["dockerd", "host"]
SLEEP = ["sleep", "600"]
WRITE = ["sh", "-c", "echo mine >> $GPUYARD_SCRATCH/kept; cat $GPUYARD_SCRATCH/kept; exec sleep 600"]


def named(engine: Dockerd, kind: str) -> list[str]:
    """Return the names of the engine's networks or volumes that are ours."""
    answer = json.loads(engine.call("GET", f"/{kind}")[1])
    rows = answer["Volumes"] or [] if kind == "volumes" else answer
    return [row["Name"] for row in rows if row["Name"].startswith("gy-")]


def failed(record: dict[str, Any]) -> list[str]:
    rows = [*record["checks"], *(check for checks in record["devices"].values() for check in checks)]
    return [check["check"] for check in rows if check["passed"] is False]


def reaches(engine: Dockerd, name: str, address: str, port: int) -> bool:
    """Return whether a connection out of a container's own network gets through."""
    pid = inspect(engine, name)["State"]["Pid"]
    look = f"import socket; socket.create_connection(({address!r}, {port}), 2)"
    command = ["nsenter", "-t", str(pid), "-n", sys.executable, "-c", look]
    return subprocess.run(command, capture_output=True, timeout=20, check=False).returncode == 0


def test_a_workload_that_is_gone_tells_how_clean_it_left_its_devices(plane: FakeControlPlane, agent: Agent) -> None:
    key = plane.want(devices=agent.devices[:2], command=SLEEP)
    plane.wait_step(key, "ready")
    plane.unwant(key)

    record = plane.wait_step(key, "gone")["handover"]

    assert (record["clean"], failed(record)) == (True, [])
    assert [check["check"] for check in record["checks"]] == ["container", "network", "secrets", "scratch"]
    assert sorted(record["devices"]) == sorted(agent.devices[:2])
    assert {check["check"] for checks in record["devices"].values() for check in checks} >= {"processes", "memory"}
    assert record["duration_ms"] >= 0


def test_a_device_with_memory_in_use_is_waited_for(plane: FakeControlPlane, agent: Agent) -> None:
    key = plane.want(devices=agent.devices[:1], command=SLEEP)
    plane.wait_step(key, "ready")
    scenario = agent.folder / "scenario.json"
    scenario.write_text(json.dumps({"devices": {"0": {"readings": {"memory_used_mib": 4096}}}}))
    plane.unwant(key)
    plane.wait_step(key, "cleaning")
    until(lambda: not agent.processes("gy-lease_1-0-1"), what="its end")
    assert plane.step(key) == "cleaning"

    scenario.write_text("{}")

    assert plane.wait_step(key, "gone")["handover"]["clean"] is True


def test_an_agent_that_dies_while_it_cleans_is_followed_by_one_that_cleans(
    plane: FakeControlPlane, agent: Agent
) -> None:
    key = plane.want(devices=agent.devices[:1], command=SLEEP)
    plane.wait_step(key, "ready")
    scenario = agent.folder / "scenario.json"
    scenario.write_text(json.dumps({"devices": {"0": {"readings": {"memory_used_mib": 4096}}}}))
    plane.unwant(key)
    plane.wait_step(key, "cleaning")
    agent.kill()
    scenario.write_text("{}")
    agent.start()

    assert plane.wait_step(key, "gone")["handover"]["clean"] is True


def test_the_next_epoch_of_the_lease_does_not_wait_for_its_own_memory(plane: FakeControlPlane, agent: Agent) -> None:
    key = plane.want(devices=agent.devices[:1], command=SLEEP)
    plane.wait_step(key, "ready")
    (agent.folder / "scenario.json").write_text(json.dumps({"devices": {"0": {"readings": {"memory_used_mib": 4096}}}}))

    again = plane.want(epoch=2, devices=agent.devices[:1], command=SLEEP)

    plane.wait_step(again, "ready")


@pytest.mark.engine
@pytest.mark.root
def test_each_lease_has_a_network_of_its_own_and_none_reaches_another(
    plane: FakeControlPlane, dockerd: Dockerd, host: Agent
) -> None:
    serve = ["sh", "-c", "echo secret > /tmp/index.html; exec httpd -f -p 8080 -h /tmp"]
    server = plane.want(lease="lease_a", image=IMAGE, devices=host.devices[:1], command=serve, ports=[8080])
    other = plane.want(lease="lease_b", image=IMAGE, devices=host.devices[1:2], command=SLEEP)
    plane.wait_step(server, "ready")
    plane.wait_step(other, "ready")
    (network,) = inspect(dockerd, "gy-lease_a-0-1")["NetworkSettings"]["Networks"].values()
    where = network["IPAddress"]

    assert sorted(named(dockerd, "networks")) == ["gy-lease_a-0-1", "gy-lease_b-0-1"]
    until(lambda: reaches(dockerd, "gy-lease_a-0-1", where, 8080), what="its own answer to itself")
    assert not reaches(dockerd, "gy-lease_b-0-1", where, 8080)

    for key in (server, other):
        plane.unwant(key)
    for key in (server, other):
        assert failed(plane.wait_step(key, "gone")["handover"]) == []
    assert (named(dockerd, "networks"), named(dockerd, "volumes"), containers(dockerd)) == ([], [], [])


@pytest.mark.engine
@pytest.mark.root
def test_scratch_stays_for_the_next_epoch_and_for_a_parked_lease_and_goes_with_it(
    plane: FakeControlPlane, dockerd: Dockerd, host: Agent
) -> None:
    first = plane.want(image=IMAGE, devices=host.devices[:1], command=WRITE)
    plane.wait_step(first, "ready")
    until(lambda: plane.log(first) == "mine\n", what="its output")

    second = plane.want(epoch=2, image=IMAGE, devices=host.devices[:1], command=WRITE)
    plane.unwant(first)
    plane.wait_step(second, "ready")
    until(lambda: plane.log(second) == "mine\nmine\n", what="what the first epoch had written")

    plane.scratch = ["lease_1"]  # parked, and held
    plane.unwant(second)
    plane.wait_step(second, "gone")
    assert named(dockerd, "volumes") == ["gy-scratch-lease_1-0"]

    with plane.changed:
        plane.scratch = []
        plane._move()
    until(lambda: named(dockerd, "volumes") == [], what="the end of its scratch")


@pytest.mark.engine
@pytest.mark.root
def test_a_network_and_a_scratch_that_nobody_knows_are_collected(
    plane: FakeControlPlane, dockerd: Dockerd, host: Agent
) -> None:
    host.kill()  # left behind while no agent looks: a living one may collect them at once
    labels = {"gpuyard.host": "host_00000000000000000000000001", "gpuyard.lease": "lease_9"}
    dockerd.call("POST", "/networks/create", json.dumps({"Name": "gy-lease_9-0-1", "Labels": labels}).encode())
    dockerd.call("POST", "/volumes/create", json.dumps({"Name": "gy-scratch-lease_9-0", "Labels": labels}).encode())
    assert (named(dockerd, "networks"), named(dockerd, "volumes")) == (["gy-lease_9-0-1"], ["gy-scratch-lease_9-0"])

    host.start()

    until(lambda: named(dockerd, "networks") == [] and named(dockerd, "volumes") == [], what="their end")


def test_a_device_that_stays_dirty_is_said_to_be() -> None:
    row = {"uuid": "d", "state": "ok", "age_s": 0, "readings": {"memory_used_mib": 900, "compute_mode": 3}}
    workload = cleaning.Workload(lease="l", member=0, epoch=1, spec_hash="", spec={}, valid_for_s=1)
    workload.idle_mib = {"d": 10}

    checks = cleaning._device(workload, row, simulated=True)

    assert [check["check"] for check in checks if check["passed"] is False] == ["memory", "compute_mode"]
    assert next(check["detail"] for check in checks if check["check"] == "memory") == "900 MiB in use, 10 when idle"
