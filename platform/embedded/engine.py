"""A real container engine for one host of the pool, where this machine has one: found, or started for the stack alone.

An engine is taken only after it has really run a container of our image: podman without sub-uids, or a dockerd in a
container without privileges, answers politely and runs nothing.
"""

import hashlib
import http.client
import json
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from embedded import demo_image
from embedded.process_table import Process

CALL_WITHIN_S = 30.0
PATHS_OF_PROGRAMS = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin:/usr/local/sbin"
LABEL_HOST = "gpuyard.host"  # what agents put on their containers (agents.node.engines)


class EngineFault(Exception):
    """The engine does not do what we need; the sentence is for people."""


@dataclass(frozen=True)
class Candidate:
    """An engine that may work. process: what the supervisor must run for it, None if it runs already."""

    kind: str  # docker | podman
    socket: Path
    process: Process | None = None


def candidates(state_dir: Path) -> Iterator[Candidate]:
    """Yield the engines of this machine, the best first: one that runs, then one that we can start."""
    runtime = Path(os.environ.get("XDG_RUNTIME_DIR", f"/run/user/{os.getuid()}"))
    named = os.environ.get("DOCKER_HOST", "")
    running = [("docker", Path(named.removeprefix("unix://")))] if named.startswith("unix://") else []
    running += [("docker", Path("/var/run/docker.sock")), ("docker", runtime / "docker.sock")]
    running += [("podman", Path("/run/podman/podman.sock")), ("podman", runtime / "podman" / "podman.sock")]
    for kind, path in running:
        if answers(path):
            yield Candidate(kind, path)
    if os.geteuid() == 0 and shutil.which("dockerd", path=PATHS_OF_PROGRAMS):
        yield _dockerd(state_dir / "engine", _run_folder(state_dir))
    if podman := shutil.which("podman", path=PATHS_OF_PROGRAMS):
        yield _podman(podman, _run_folder(state_dir))


def _run_folder(state_dir: Path) -> Path:
    """Return where an engine of ours has its socket: a short path (of at most 107 bytes), unlike the state folder."""
    name = hashlib.sha256(str(state_dir).encode()).hexdigest()[:8]
    return Path("/run" if os.geteuid() == 0 else tempfile.gettempdir()) / f"gpuyard-{name}"


def remove_run_folder(state_dir: Path) -> None:
    """Clear away what an engine of ours leaves when it has ended: sockets, and mounts if it was killed."""
    run = _run_folder(state_dir)
    if run.exists():
        mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
        for mount in reversed([mount for mount in mounts if mount.startswith((f"{run}/", f"{state_dir}/engine/"))]):
            subprocess.run(["umount", "-l", mount], capture_output=True, check=False)
        shutil.rmtree(run, ignore_errors=True)


def _dockerd(data: Path, run: Path) -> Candidate:
    """A dockerd that touches nothing outside its folders: no bridge, no firewall rules. Its containers end with it."""
    data.mkdir(mode=0o700, exist_ok=True)
    (data / "daemon.json").write_text("{}")  # not the machine's own configuration
    path = run / "docker.sock"
    command = (
        shutil.which("dockerd", path=PATHS_OF_PROGRAMS) or "dockerd",
        *("--config-file", str(data / "daemon.json"), "--data-root", str(data / "data")),
        *("--exec-root", str(run / "exec"), "--pidfile", str(run / "pid"), "--host", f"unix://{path}"),
        *("--bridge", "none", "--iptables=false", "--ip6tables=false", "--ip-forward=false"),
        *("--shutdown-timeout", "5"),
    )
    search = {"PATH": PATHS_OF_PROGRAMS}
    return Candidate("docker", path, Process("engine", command, search, answers_at=f"unix:{path}", end_within_s=25.0))


def _podman(program: str, run: Path) -> Candidate:
    run.mkdir(mode=0o700, exist_ok=True)
    path = run / "podman.sock"
    command = (program, "system", "service", "--time=0", f"unix://{path}")
    return Candidate("podman", path, Process("engine", command, answers_at=f"unix:{path}"))


def answers(path: Path) -> bool:
    """Say whether an engine answers at the UNIX socket `path`."""
    try:
        return call(path, "GET", "/_ping")[0] == 200
    except (OSError, http.client.HTTPException):
        return False


def prepare(path: Path) -> None:
    """Import the demonstration image and run it once. Raises EngineFault, also if the engine goes away."""
    repository, _, tag = demo_image.REFERENCE.rpartition(":")
    changes = quote('CMD ["/bin/gpuyard-demo"]')
    try:
        where = f"/images/create?fromSrc=-&repo={quote(repository)}&tag={tag}&changes={changes}"
        _expect(path, "POST", where, demo_image.archive(), kind="application/x-tar")
        trial = {"Image": demo_image.REFERENCE, "Cmd": ["/bin/true"], "User": "1000:1000"}
        made = _expect(path, "POST", "/containers/create", json.dumps(trial).encode())["Id"]
        try:
            _expect(path, "POST", f"/containers/{made}/start")
            ended = _expect(path, "POST", f"/containers/{made}/wait")
        finally:
            call(path, "DELETE", f"/containers/{made}?force=1")
    except (OSError, http.client.HTTPException) as fault:
        raise EngineFault(f"{type(fault).__name__}: {fault}") from fault
    if ended["StatusCode"] != 0:
        raise EngineFault(f"a container of it ended with {ended['StatusCode']}")


def remove_containers_of(path: Path, host: str) -> None:
    """End and remove all containers that the agent of `host` made. Nothing if the engine does not answer."""
    if not answers(path):
        return  # it was ours and has ended, and its containers with it
    filters = quote(json.dumps({"label": [f"{LABEL_HOST}={host}"]}))
    for container in _expect(path, "GET", f"/containers/json?all=1&filters={filters}"):
        call(path, "DELETE", f"/containers/{container['Id']}?force=1&v=1")


def _expect(path: Path, method: str, target: str, body: bytes | None = None, *, kind: str = "application/json") -> Any:
    status, answer = call(path, method, target, body, kind=kind)
    if status >= 400:
        raise EngineFault(f"{method} {target.partition('?')[0]}: {status} {answer[:300].decode(errors='replace')}")
    return json.loads(answer.splitlines()[-1]) if answer.strip() else None


def call(
    path: Path, method: str, target: str, body: bytes | None = None, *, kind: str = "application/json"
) -> tuple[int, bytes]:
    """Call the engine's API; return status and body."""
    connection = http.client.HTTPConnection("engine", timeout=CALL_WITHIN_S)
    connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.sock.settimeout(CALL_WITHIN_S)
    try:
        connection.sock.connect(str(path))
        connection.request(method, target, body, {"Content-Type": kind})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()
