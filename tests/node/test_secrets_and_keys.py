"""What a container gets in memory: secrets that only its host could open, SSH keys; and no disk ever holds them."""

import json
import subprocess
from pathlib import Path

import pytest

from agents.node import private_files
from tests.engines import IMAGE, Dockerd, dockerd
from tests.fakes.control_plane import FakeControlPlane
from tests.node.conftest import Agent, until
from tests.node.test_docker_engine import containers, host, inspect

__all__ = ["dockerd", "host"]
CANARY = "canary-4f0c-do-not-write-me-down"
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBfTZXN0a2V5LW9mLW5vYm9keQ me@home"
SHOW = ["sh", "-c", "id -u; wc -c < $TOKEN_FILE; cat $GPUYARD_SSH_KEYS_FILE; exec sleep 600"]


def files_with(text: str, *folders: Path) -> list[str]:
    """Return the files below the folders that hold `text`, in memory or not; other mounts below them are skipped."""
    found = subprocess.run(
        ["grep", "-rlaF", "--devices=skip", "--", text, *map(str, folders)], capture_output=True, text=True, check=False
    )
    return found.stdout.splitlines()


@pytest.fixture
def memory(tmp_path: Path) -> Path:
    return private_files.folder_in_memory(tmp_path / "state")


def test_a_secret_is_a_file_in_memory_and_on_no_disk(
    plane: FakeControlPlane, agent: Agent, memory: Path, tmp_path: Path
) -> None:
    key = plane.want(devices=agent.devices[:1], values={"TOKEN": CANARY}, ssh_keys=[KEY], command=SHOW)
    plane.wait_step(key, "ready")
    until(lambda: plane.log(key).endswith("me@home\n"), what="its output")
    folder = memory / "gy-lease_1-0-1"
    assert (folder / "secrets" / "TOKEN").read_text() == CANARY
    assert oct(memory.stat().st_mode & 0o777) == "0o711"  # the sandbox's workloads see the host's own path
    assert plane.log(key).splitlines()[1:] == [str(len(CANARY)), KEY]

    plane.unwant(key)
    plane.wait_step(key, "gone")

    assert not folder.exists()
    assert files_with(CANARY, tmp_path) == []
    assert files_with("lease_1", tmp_path), "the search finds nothing at all"
    assert files_with(CANARY, memory) == []
    assert CANARY not in json.dumps([request.to_json() for request in plane.requests])


def test_a_value_that_was_sealed_for_another_workload_is_not_opened(plane: FakeControlPlane, agent: Agent) -> None:
    mine = plane.want(lease="lease_a", devices=agent.devices[:1], values={"TOKEN": CANARY})
    sealed = plane.desired[mine]["sealed"]
    plane.unwant(mine)
    theirs = plane.want(lease="lease_b", devices=agent.devices[1:2], values={"TOKEN": "x"})
    with plane.changed:
        plane.desired[theirs]["sealed"] = sealed
        plane._move()

    report = plane.wait_step(theirs, "exited")

    assert (report["failure"], CANARY in json.dumps(report)) == ("bad_spec", False)


def test_a_name_without_a_value_is_secret_missing(plane: FakeControlPlane, agent: Agent) -> None:
    key = plane.want(devices=agent.devices[:1], values={"TOKEN": "x"}, secrets=["OTHER", "TOKEN"])

    report = plane.wait_step(key, "exited")

    assert (report["failure"], "OTHER" in report["detail"]) == ("secret_missing", True)


def test_an_agent_that_dies_before_the_start_gives_the_secret_all_the_same(
    plane: FakeControlPlane, agent: Agent, memory: Path
) -> None:
    key = plane.want(devices=agent.devices[:1], values={"TOKEN": CANARY}, command=SHOW, ssh_keys=[KEY])
    until(lambda: (agent.folder / "workloads").glob("gy-*"), what="its folder")
    agent.kill()
    agent.start()

    plane.wait_step(key, "ready")

    assert (memory / "gy-lease_1-0-1" / "secrets" / "TOKEN").read_text() == CANARY


def test_files_of_a_container_that_nobody_knows_are_removed(
    plane: FakeControlPlane, agent: Agent, memory: Path
) -> None:
    agent.kill()
    left = memory / "gy-lease_9-0-1" / "secrets"
    left.mkdir(parents=True)
    (left / "TOKEN").write_text(CANARY)

    agent.start()

    until(lambda: not left.exists(), what="their removal")


@pytest.mark.engine
@pytest.mark.root
def test_in_a_real_container_the_secret_is_in_no_description_and_on_no_disk(
    plane: FakeControlPlane, dockerd: Dockerd, host: Agent, memory: Path, tmp_path: Path
) -> None:
    values = {"TOKEN": CANARY}
    key = plane.want(image=IMAGE, devices=host.devices[:1], values=values, ssh_keys=[KEY], command=SHOW)
    plane.wait_step(key, "ready")
    until(lambda: plane.log(key).endswith("me@home\n"), what="its output")

    made = inspect(dockerd, "gy-lease_1-0-1")
    assert plane.log(key).splitlines() == ["1000", str(len(CANARY)), KEY]
    assert CANARY not in json.dumps(made)
    (mount,) = [row for row in made["Mounts"] if row["Type"] == "bind"]
    assert (mount["Destination"], mount["RW"]) == ("/run/gpuyard", False)
    assert private_files.is_in_memory(Path(mount["Source"]))
    assert oct(memory.stat().st_mode & 0o777) == "0o700"
    assert files_with(CANARY, tmp_path, dockerd.folder / "data", dockerd.folder / "log") == []
    code = inside(dockerd, "gy-lease_1-0-1", ["sh", "-c", "echo x > /run/gpuyard/secrets/TOKEN"])
    assert code != 0, "a tenant could write to its mount"

    plane.unwant(key)
    plane.wait_step(key, "gone")

    assert containers(dockerd) == []
    assert not list(memory.iterdir())
    assert files_with(CANARY, tmp_path, dockerd.folder / "data", dockerd.folder / "log") == []


def inside(engine: Dockerd, name: str, argv: list[str]) -> int:
    """Run a command in a container; return its exit code."""
    _, made = engine.call("POST", f"/containers/{name}/exec", json.dumps({"Cmd": argv}).encode())
    where = json.loads(made)["Id"]
    engine.call("POST", f"/exec/{where}/start", b'{"Detach": false, "Tty": false}')
    until(lambda: not json.loads(engine.call("GET", f"/exec/{where}/json")[1])["Running"], what="the end of a command")
    return int(json.loads(engine.call("GET", f"/exec/{where}/json")[1])["ExitCode"])


def test_a_folder_on_a_disk_is_no_memory() -> None:
    assert private_files.is_in_memory(Path("/dev/shm"))
    assert not private_files.is_in_memory(Path("/usr"))
    assert not private_files.is_in_memory(Path("/proc"))
