"""Named volumes on a host: they outlive their container, are seen by nobody else, and go when the server says so."""

import json
from pathlib import Path

import pytest

from tests.engines import IMAGE, Dockerd, dockerd
from tests.fakes.control_plane import FakeControlPlane
from tests.node.conftest import Agent, until
from tests.node.test_cleaning import named
from tests.node.test_docker_engine import host, inspect

__all__ = ["dockerd", "host"]
DATA = {"name": "my-data", "place": "gy-volume_1", "path": "/data", "size_mib": 64}
WRITE = ["sh", "-c", "echo mine >> $GPUYARD_VOLUME_MY_DATA/kept; cat $GPUYARD_VOLUME_MY_DATA/kept; exec sleep 600"]
LOOK = ["sh", "-c", "ls /data 2>&1; ls $GPUYARD_SCRATCH; echo end; exec sleep 600"]


def gone(plane: FakeControlPlane) -> list[str]:
    return [event["place"] for event in plane.events.values() if event["kind"] == "volume_gone"]


def drop(plane: FakeControlPlane, *places: str) -> None:
    with plane.changed:
        plane.drop_volumes = list(places)
        plane._move()


def let_in(agent: Agent) -> None:
    """Let the sandbox's workloads, which root runs as nobody, reach the folder of the agent of a test."""
    for folder in (agent.folder, *list(agent.folder.parents)[:3]):
        if folder != Path("/tmp"):
            folder.chmod(0o711)


def test_it_outlives_its_lease_and_goes_when_it_is_dropped_and_not_before(
    plane: FakeControlPlane, agent: Agent
) -> None:
    let_in(agent)
    first = plane.want(volumes=[DATA], command=WRITE)
    plane.wait_step(first, "ready")
    until(lambda: plane.log(first) == "mine\n", what="its output")
    plane.unwant(first)
    plane.wait_step(first, "gone")
    data = agent.folder / "scratch" / "gy-volume_1" / "data" / "kept"
    assert data.read_text() == "mine\n"
    agent.kill()
    agent.start()
    let_in(agent)

    second = plane.want(lease="lease_2", volumes=[DATA], command=WRITE)
    plane.wait_step(second, "ready")
    until(lambda: plane.log(second) == "mine\nmine\n", what="what the lease before had written")
    drop(plane, "gy-volume_1")
    plane.unwant(second)  # while it is used, it stays
    plane.wait_step(second, "gone")

    drop(plane, "gy-volume_1", "gy-volume_that_never_was")
    until(lambda: gone(plane) == ["gy-volume_1", "gy-volume_that_never_was"], what="the word that both are gone")
    assert not data.parent.parent.exists()
    agent.kill()
    agent.start()
    until(lambda: len(gone(plane)) == 4, what="the same word from the agent's next life")


def test_the_scratch_of_a_lease_that_is_over_is_mounted_by_the_next_one_and_then_goes(
    plane: FakeControlPlane, agent: Agent
) -> None:
    let_in(agent)
    write = ["sh", "-c", "echo mine > $GPUYARD_SCRATCH/kept; exec sleep 600"]
    first = plane.want(command=write)
    plane.wait_step(first, "ready")
    kept = agent.folder / "scratch" / "gy-scratch-lease_1-0" / "data" / "kept"
    until(kept.exists, what="what it writes")
    plane.scratch = ["lease_1"]  # its money is out
    plane.unwant(first)
    plane.wait_step(first, "gone")
    assert kept.exists()

    old = {"name": "old", "place": "gy-scratch-lease_1-0", "path": "/old", "size_mib": 1024}
    second = plane.want(lease="lease_2", volumes=[old], command=["sh", "-c", "cat $GPUYARD_VOLUME_OLD/kept; sleep 600"])
    plane.wait_step(second, "ready")
    until(lambda: plane.log(second) == "mine\n", what="what the lease before had written")
    plane.unwant(second)
    plane.wait_step(second, "gone")
    assert kept.exists()
    plane.scratch = []
    drop(plane, "gy-scratch-lease_1-0")
    until(lambda: "gy-scratch-lease_1-0" in gone(plane), what="the word that it is gone")
    assert not kept.exists()


def test_how_full_it_is_is_told(plane: FakeControlPlane, agent: Agent) -> None:
    agent.kill()
    agent.environment["GPUYARD_AGENT_DISK_LOOK_S"] = "0.3"
    agent.start()
    let_in(agent)
    fill = ["sh", "-c", "head -c 3000000 /dev/zero > $GPUYARD_VOLUME_MY_DATA/big; exec sleep 600"]
    key = plane.want(volumes=[DATA], command=fill)

    plane.wait_step(key, "ready")

    until(
        lambda: (plane.report(key) or {}).get("volumes_mib") == {"gy-volume_1": 3, "gy-scratch-lease_1-0": 0},
        what="its size",
    )


@pytest.mark.engine
@pytest.mark.root
def test_a_real_engine_mounts_it_where_it_was_asked_for_and_nobody_else_sees_it(
    plane: FakeControlPlane, dockerd: Dockerd, host: Agent
) -> None:
    host.kill()
    host.environment["GPUYARD_AGENT_DISK_LOOK_S"] = "0.5"
    host.start()
    first = plane.want(image=IMAGE, devices=host.devices[:1], volumes=[DATA], command=WRITE)
    plane.wait_step(first, "ready")
    until(lambda: plane.log(first) == "mine\n", what="its output")
    until(lambda: "gy-volume_1" in ((plane.report(first) or {}).get("volumes_mib") or {}), what="its size")
    mounts = {mount["Destination"]: mount for mount in inspect(dockerd, "gy-lease_1-0-1")["Mounts"]}
    assert mounts["/data"]["Name"] == "gy-volume_1"
    plane.unwant(first)
    plane.wait_step(first, "gone")
    assert named(dockerd, "volumes") == ["gy-volume_1"]

    other = plane.want(lease="lease_2", image=IMAGE, devices=host.devices[:1], command=LOOK)
    plane.wait_step(other, "ready")
    until(lambda: plane.log(other).endswith("end\n"), what="what another tenant sees")
    assert "kept" not in plane.log(other)
    again = plane.want(
        lease="lease_3", image=IMAGE, devices=host.devices[1:2], volumes=[DATA], command=WRITE, read_only=True
    )
    plane.wait_step(again, "ready")
    until(lambda: plane.log(again) == "mine\nmine\n", what="what the lease before had written")
    for key in (other, again):
        plane.unwant(key)
        plane.wait_step(key, "gone")

    host.kill()
    host.start()  # a life that knows of no lease: what it collects is not this
    assert json.loads(dockerd.call("GET", "/volumes/gy-volume_1")[1])["Name"] == "gy-volume_1"
    drop(plane, "gy-volume_1")
    until(lambda: gone(plane) == ["gy-volume_1"], what="the word that it is gone")
    assert named(dockerd, "volumes") == []
