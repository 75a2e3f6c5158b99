"""Which engine a host's settings name."""

from typing import Any

from agents.node.engines import Engine
from agents.node.identity import StateError, StateFolder


def engine_of(settings: dict[str, Any], folder: StateFolder) -> Engine:
    """Return the engine that the settings name. Raises StateError for an unknown one."""
    name = settings.get("engine", "docker")
    if name == "process":
        from agents.node.engines.process import ProcessEngine

        return ProcessEngine(folder.path / "workloads")
    if name in ("docker", "podman"):
        from agents.node.engines.docker import DockerEngine

        return DockerEngine(settings.get("engine_socket") or "/var/run/docker.sock")
    raise StateError(f"no engine {name!r}: docker, podman or process")
