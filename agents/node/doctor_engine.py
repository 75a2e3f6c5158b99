"""The doctor's look at the container engine, at gpuyard-root, and at the agent itself."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agents.node.doctor_words import Finding, numbers
from agents.node.engines import EngineError

RUNC_FLOOR = ((1, 2, 8), (1, 3, 3))
ROOT_MEND = "install its unit (docs/owners.md says how), then: systemctl enable --now gpuyard-root.service"
# What Docker 20.10 says as it ends over a network that was half removed when it died before (moby 45057).
HALF_REMOVED = "libnetwork.(*controller).reservePools"
NETWORKS_FILE = "/var/lib/docker/network/files/local-kv.db"


def look(settings: dict[str, Any]) -> Iterator[Finding]:
    """Look at the engine that the settings name, and at what stands beside it."""
    yield from _root(settings)
    name = settings.get("engine", "docker")
    if name == "process":
        yield Finding("engine", "warn", "workloads run as plain processes, without isolation (process sandbox)",
                      "install Docker and run with --engine docker, unless this is a demonstration")  # fmt: skip
        return
    path = Path(settings.get("engine_socket") or "/var/run/docker.sock")
    if not path.exists():
        mend = "install and start it, e.g.: apt-get install docker.io; for podman: systemctl enable --now podman.socket"
        yield _half_removed(name) or Finding("engine", "bad", f"no container engine listens on {path}", mend)
        return
    if not os.access(path, os.R_OK | os.W_OK):
        mend = f"add the agent's user to the group of {path} (usually: usermod -aG docker gpuyard), and restart it"
        yield Finding("engine", "bad", f"the agent may not use {path}", mend)
        return
    from agents.node.engines.docker import DockerEngine

    engine = DockerEngine(str(path))
    try:
        yield Finding("engine", "good", f"{engine.name} {engine.version()} answers")
    except EngineError as fault:
        yield _no_answer(name, fault)
        return
    yield from _runc(engine)


def _no_answer(name: str, fault: EngineError) -> Finding:
    mend = f"systemctl restart {name}; if it does not come back, read why: journalctl -u {name} -n 50"
    return _half_removed(name) or Finding("engine", "bad", f"the engine does not answer: {fault}", mend)


def _half_removed(name: str) -> Finding | None:
    if HALF_REMOVED not in _last_words(name):
        return None
    text = "Docker ends at each start over a network that was half removed when it died before (a fault of 20.10)"
    mend = f"systemctl stop docker docker.socket; mv {NETWORKS_FILE} /root/; systemctl start docker. Networks that you"
    return Finding("engine", "bad", text, f"{mend} made yourself must be made again; a newer Docker does not do this")


def _last_words(name: str) -> str:
    """Return what the machine's journal has of the engine's end; "" where there is none, or none that we may read."""
    if shutil.which("journalctl") is None:
        return ""
    command = ["journalctl", "--unit", name, "--lines", "500", "--no-pager", "--output", "cat"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def agent() -> Iterator[Finding]:
    """Look whether the agent of this machine runs."""
    names = ("gpuyard-agent", "agents.node.main")
    running = any("run" in words and any(word.endswith(names) for word in words) for words in _commands())
    if not running:
        mend = "systemctl enable --now gpuyard-agent.service; if it ends again: journalctl -u gpuyard-agent -n 50"
        yield Finding("agent", "bad", "this machine is enrolled, and its agent does not run", mend)
    else:
        yield Finding("agent", "good", "the agent runs")


def _root(settings: dict[str, Any]) -> Iterator[Finding]:
    if settings.get("engine", "docker") == "process":
        return
    running = any(word.split("/")[-1].startswith("gpuyard-root") for words in _commands() for word in words)
    if running:
        yield Finding("gpuyard-root", "good", "what is overdue is stopped though the agent be dead")
    else:
        text = "nothing stops an overdue container while the agent is dead, and tenants reach this machine's network"
        yield Finding("gpuyard-root", "warn", text, ROOT_MEND)
    if shutil.which("nft") is None:
        yield Finding("nft", "warn", "tenants' containers may reach this machine's network", "apt-get install nftables")


def _commands() -> Iterator[list[str]]:
    """Return the first words of each command line of this machine's processes, as far as they may be read."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield path.read_bytes().decode(errors="replace").split("\0")[:6]
        except OSError:
            continue


def _runc(engine: Any) -> Iterator[Finding]:
    text = engine.runc_version()
    found = numbers(text)
    if not found:
        return
    if found < RUNC_FLOOR[0] or (RUNC_FLOOR[0][:2] < found[:2] <= RUNC_FLOOR[1][:2] and found < RUNC_FLOOR[1]):
        yield Finding("runc", "warn", f"runc {text} has known ways out of a container",
                      "update runc to 1.2.8, 1.3.3 or newer")  # fmt: skip
    else:
        yield Finding("runc", "good", f"runc {text}")
