"""The embedded stack as a whole: bring it up, tell how it is, kill one of its hosts, take it down.

A process of its own, the supervisor, does the work; these functions start it, speak to it and clear up after it. They
are what the command line (cli.py) and the demonstration call.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from embedded import engine, leftovers, processes
from embedded.broker import Broker
from embedded.outliving import OutlivingServer
from embedded.postgres import Postgres
from embedded.stack_folder import StackFolder

DEFAULT_POOL = Path(__file__).parent / "data" / "pool.json"
STOP_WITHIN_S = 75.0  # the longest patience with a child (40 s), and the servers


class UpFailed(Exception):
    """The stack did not come up; the message says at which step and where the logs are."""


def up(
    path: Path,
    *,
    pool: Path | None = DEFAULT_POOL,
    environment: Mapping[str, str] | None = None,
    within_s: float = 180.0,
    progress: Callable[[str], None] = lambda step: None,
) -> dict[str, Any]:
    """Bring the stack up, or find it up, and return its `access` document: URLs and the first API key.

    path: its folder, made if it is not there. pool: the hosts' file (process_table.read_pool), None for no hosts.
    environment: further settings for every process, such as {"WORKLOAD_STOP_GRACE_S": "2"}. progress: told each step.
    Raises UpFailed; then nothing is left running.
    """
    folder = StackFolder(path)
    if not folder.is_held():
        folder.write("plan", {"pool": str(pool) if pool else None, "environment": dict(environment or {})})
        folder.write("status", {})
        with folder.log("supervisor").open("ab") as log:
            subprocess.Popen(
                [sys.executable, "-m", "embedded", "supervise", "--state-dir", str(folder.path)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
    try:
        _wait_until_up(folder, within_s=within_s, progress=progress)
    except UpFailed:
        down(path)
        raise
    return access(path)


def access(path: Path) -> dict[str, Any]:
    """Return what a person or a client needs: {"api_url", "admin_url", "agents_url", "api_key", ...}. It is secret."""
    return StackFolder(path).read("access")


def status(path: Path) -> dict[str, Any]:
    """Return how the stack is: {"state": "down" | "starting" | "up" | "stopping" | "failed", ...}; no secrets."""
    folder = StackFolder(path)
    told = folder.read("status")
    if folder.is_held():
        return {"state": "starting", **told}
    running = [server.name for server in servers(folder) if server.pid() is not None]
    return {"state": "down", "still_running": running, "processes": leftovers.children_of(folder.path)}


def down(path: Path, *, remove: bool = False) -> None:
    """End everything that belongs to the stack, also what a killed supervisor left. remove: its files too.

    No error if nothing runs. Raises processes.DeadlinePassed if something cannot be ended.
    """
    if not path.exists():
        return
    folder = StackFolder(path)
    if folder.is_held():
        supervisor_pid = int(folder.read("status").get("supervisor_pid", 0))
        if supervisor_pid and processes.is_alive(supervisor_pid):
            os.kill(supervisor_pid, signal.SIGTERM)
        processes.poll_until(
            lambda: not (folder.is_held() or (supervisor_pid and processes.is_alive(supervisor_pid))),
            within_s=STOP_WITHIN_S,
            what="The end of the supervisor",
        )
    with folder.held_by_supervisor():
        clear_up(folder)
        if remove:
            for server in servers(folder):
                shutil.rmtree(server.home)
            shutil.rmtree(folder.path)


def clear_up(folder: StackFolder) -> None:
    """End what is left of the stack: its processes, then its workloads, then its servers."""
    leftovers.end(lambda: leftovers.children_of(folder.path))
    leftovers.end(lambda: leftovers.workloads_in(folder.path / "agents"))
    used = folder.read("access").get("container_engine", {})
    for name in used.get("hosts", ()):
        engine.remove_containers_of(Path(used["socket"]), folder.read(f"agents/{name}/identity").get("host", ""))
    engine.remove_run_folder(folder.path)
    for server in reversed(servers(folder)):
        server.stop()


def kill_host(path: Path, name: str) -> None:
    """Let the simulated host `name` die as if its power were cut: agent and workloads at once, until it is revived."""
    folder = StackFolder(path)
    folder.hold(f"agent-{name}")
    processes.poll_until(
        lambda: _pid_of(folder, f"agent-{name}") is None, within_s=15, what=f"The end of the agent of {name}"
    )
    leftovers.end(lambda: leftovers.workloads_in(folder.agent(name)), within_s=0)
    used = folder.read("access").get("container_engine", {})
    if name in used.get("hosts", ()):
        engine.remove_containers_of(Path(used["socket"]), folder.read(f"agents/{name}/identity").get("host", ""))


def revive_host(path: Path, name: str) -> None:
    """Switch a killed host on again: its agent starts with what is on its disk."""
    StackFolder(path).release(f"agent-{name}")


def servers(folder: StackFolder) -> list[OutlivingServer]:
    """Return the servers that this stack has, in the order in which they start."""
    found = (Postgres.existing(folder.path), Broker.existing(folder.path))
    return [server for server in found if server is not None]


def _pid_of(folder: StackFolder, process: str) -> int | None:
    described: dict[str, int | None] = folder.read("status").get("processes", {}).get(process, {})
    return described.get("pid")


def _wait_until_up(folder: StackFolder, *, within_s: float, progress: Callable[[str], None]) -> None:
    deadline = time.monotonic() + within_s
    told = None
    while True:
        now = folder.read("status")
        step = now.get("step")
        if step and step != told:
            progress(step)
            told = step
        if now.get("state") == "up":
            return
        if now.get("state") == "failed":
            raise UpFailed(f"{now.get('error')}\nLogs: {folder.path / 'log'}")
        if time.monotonic() > deadline:
            raise UpFailed(f"The stack was not up within {within_s:g} s, at: {told}. Logs: {folder.path / 'log'}")
        time.sleep(processes.POLL_S)
