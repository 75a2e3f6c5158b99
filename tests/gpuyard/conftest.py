"""A scripted server per test, and nothing of the person's own configuration."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import gpuyard
from gpuyard.cli import cli
from tests.gpuyard.scripted_server import ScriptedServer, serve

KEY = "gy_live_abcd1234_" + "x" * 38


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with serve() as scripted:
        yield scripted


@pytest.fixture(autouse=True)
def no_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("API_URL", "API_KEY", "PROFILE", "CONFIG"):
        monkeypatch.delenv(f"GPUYARD_{name}", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that a client makes, in seconds, which pass at once."""
    made: list[float] = []
    monkeypatch.setattr("gpuyard.transport.time.sleep", made.append)
    return made


@pytest.fixture
def client(server: ScriptedServer) -> Iterator[gpuyard.Client]:
    with gpuyard.Client(KEY, api_url=server.url) as made:
        yield made


@dataclass(frozen=True)
class Shell:
    """Runs the command in this process against the scripted server."""

    server: ScriptedServer

    def __call__(self, *arguments: str, stdin: str | None = None, **environment: str) -> Result:
        named = {"GPUYARD_API_URL": self.server.url, "GPUYARD_API_KEY": KEY, **environment}
        return CliRunner().invoke(cli, arguments, input=stdin, env=named, catch_exceptions=False)


@pytest.fixture
def shell(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.delenv("COLUMNS", raising=False)
    return Shell(server)
