"""An image behind a login: a real engine pulls it from a real registry; the login is for the pull and nothing else."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines import Dockerd, dockerd, root_file_system
from tests.fakes.control_plane import FakeControlPlane
from tests.fakes.registry import NAME
from tests.node.conftest import ROOT, Agent, until
from tests.node.test_docker_engine import host, inspect
from tests.node.test_secrets_and_keys import files_with

__all__ = ["dockerd", "host"]
pytestmark = [pytest.mark.engine, pytest.mark.root]
PORT = 5055
PASSWORD = "canary-c0ffee-registry-password"
IMAGE = f"127.0.0.1:{PORT}/{NAME}:1"


class Registry:
    def __init__(self, log: Path) -> None:
        self.log = log

    def asked(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []


@pytest.fixture
def registry(dockerd: Dockerd, tmp_path: Path) -> Iterator[Registry]:
    """A registry in the engine's own network, where loopback needs no TLS."""
    layer, log = tmp_path / "layer.tar", tmp_path / "registry.log"
    layer.write_bytes(root_file_system())
    assert dockerd.process is not None
    command = ["nsenter", "-t", str(dockerd.process.pid), "-n", sys.executable, "-m", "tests.fakes.registry"]
    with subprocess.Popen([*command, str(PORT), "acme", PASSWORD, str(layer), str(log)], cwd=ROOT) as process:
        until(lambda: dockerd.opens(PORT), what="the registry")
        yield Registry(log)
        process.terminate()


def images(engine: Dockerd) -> list[str]:
    rows = json.loads(engine.call("GET", "/images/json")[1])
    return [tag for row in rows for tag in row.get("RepoTags") or []]


def test_a_private_image_is_pulled_with_the_login_and_is_gone_with_the_lease(
    plane: FakeControlPlane, dockerd: Dockerd, host: Agent, registry: Registry, tmp_path: Path
) -> None:
    key = plane.want(image=IMAGE, devices=host.devices[:1], login=("acme", PASSWORD))
    report = plane.wait_step(key, "ready")

    assert report["image_digest"].startswith("sha256:")
    assert IMAGE in images(dockerd)
    assert any(line.startswith("200 ") and "/blobs/" in line for line in registry.asked())
    assert PASSWORD not in json.dumps(inspect(dockerd, "gy-lease_1-0-1"))
    assert files_with(PASSWORD, host.folder, dockerd.folder / "data", dockerd.folder / "log") == []
    assert files_with("lease_1", host.folder), "the search finds nothing at all"
    assert not (Path.home() / ".docker" / "config.json").exists()

    plane.unwant(key)
    plane.wait_step(key, "gone")

    assert IMAGE not in images(dockerd)


def test_a_wrong_login_is_image_denied(
    plane: FakeControlPlane, dockerd: Dockerd, host: Agent, registry: Registry
) -> None:
    key = plane.want(image=IMAGE, devices=host.devices[:1], login=("acme", "wrong"))

    report = plane.wait_step(key, "exited")

    assert report["failure"] == "image_denied"
    assert IMAGE not in images(dockerd)


def test_an_image_that_somebody_fetched_with_a_login_is_not_started_by_who_has_none(
    plane: FakeControlPlane, dockerd: Dockerd, host: Agent, registry: Registry
) -> None:
    mine = plane.want(lease="lease_a", image=IMAGE, devices=host.devices[:1], login=("acme", PASSWORD))
    plane.wait_step(mine, "ready")

    theirs = plane.want(lease="lease_b", image=IMAGE, devices=host.devices[1:2])

    assert plane.wait_step(theirs, "exited")["failure"] == "image_denied"
    again = plane.want(lease="lease_c", image=IMAGE, devices=host.devices[2:3], login=("acme", PASSWORD))
    plane.wait_step(again, "ready")
    plane.unwant(mine)
    plane.wait_step(mine, "gone")
    assert IMAGE in images(dockerd), "it was taken from under a lease that runs"
