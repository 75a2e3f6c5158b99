"""What runs in the embedded stack, as data: the processes of production, each with its command line."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

WORKER = ("-m", "celery", "-A", "config", "worker", "-P", "prefork", "--without-mingle", "--without-gossip")
# A request that is held is one of those that a server takes at once: by itself, 1,024, and the others are not heard.
HELD_AT_ONCE = ("--backlog", "4096", "--backpressure", "16384")
NEVER = "1000000000"  # tasks; 0 would mean "after none"


@dataclass(frozen=True)
class Process:
    """One process that the supervisor keeps running.

    answers_at: a URL, or unix:PATH of an engine; the process is ready when it answers there.
    enrolled_in: an agent's folder; it is ready when it has enrolled. With neither it is ready when it runs.
    end_within_s: patience between SIGTERM and SIGKILL.
    """

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    answers_at: str | None = None
    enrolled_in: Path | None = None
    end_within_s: float = 15.0


@dataclass(frozen=True)
class PoolHost:
    """A simulated host of the pool file, see data/pool.json: a real agent whose GPUs are simulated.

    gpus: such as "A100_80G x8". engine: process, or auto for a real container engine where this machine has one.
    options: further ones of `gpuyard-agent run`.
    """

    name: str
    gpus: tuple[str, ...]
    engine: str = "process"
    options: tuple[str, ...] = ()


def read_pool(path: Path) -> list[PoolHost]:
    """Return the hosts of a pool file, {"hosts": [{"name", "gpus", ...}]}: the fields of PoolHost."""
    hosts: list[dict[str, Any]] = json.loads(path.read_text())["hosts"]
    return [
        PoolHost(**{**host, "gpus": tuple(host["gpus"]), "options": tuple(host.get("options", ()))}) for host in hosts
    ]


def control_plane(*, ports: Mapping[str, int], beat_folder: Path) -> list[Process]:
    """Return the doors, the workers, the beat and the fallback loops."""
    return [
        _door("api", "wsgi", "config.wsgi:application", ports["api"], "--blocking-threads", "8"),
        # Held open by agents and streams, which would each take a thread of the API's.
        _door("streams", "asginl", "config.asgi:application", ports["streams"], *HELD_AT_ONCE),
        Process(
            "worker-placement",
            _python(*WORKER, "-Q", "placement", "-c", "1", "-n", "placement@%h", "--max-tasks-per-child", NEVER),
            end_within_s=40.0,
        ),
        Process(
            "worker-default",
            _python(*WORKER, "-Q", "default,delivery", "-c", "2", "-n", "default@%h"),
            end_within_s=40.0,
        ),
        Process(
            "beat",
            _python("-m", "celery", "-A", "config", "beat", "--schedule", str(beat_folder / "schedule"), "--pidfile="),
        ),
        Process("loops", _python("-m", "django", "loops", "--fallback")),
    ]


def agents(
    hosts: Sequence[PoolHost], *, server: str, folders: Mapping[str, Path], tokens: Mapping[str, str]
) -> list[Process]:
    """Return the agents of the simulated pool. A token is needed by a host that has not enrolled yet."""
    return [
        Process(
            f"agent-{host.name}",
            (
                str(Path(sys.executable).with_name("gpuyard-agent")),
                "run",
                *("--state-dir", str(folders[host.name]), "--server", server, "--name", host.name),
                *("--driver", "sim", "--engine", host.engine),
                *(part for gpu in host.gpus for part in ("--sim", gpu)),
                *host.options,
            ),
            {"GPUYARD_TOKEN": tokens[host.name]} if host.name in tokens else {},
            enrolled_in=folders[host.name],
        )
        for host in hosts
    ]


def _door(name: str, interface: str, application: str, port: int, *options: str) -> Process:
    command = _python(
        *("-m", "granian", "--interface", interface, "--host", "127.0.0.1", "--port", str(port)),
        *("--workers", "1", "--no-ws", "--workers-kill-timeout", "5", "--respawn-failed-workers"),
        *options,
        application,
    )
    return Process(name, command, answers_at=f"http://127.0.0.1:{port}/livez")


def _python(*arguments: str) -> tuple[str, ...]:
    return (sys.executable, *arguments)
