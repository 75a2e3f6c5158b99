"""`gpuyard-agent doctor`: what is wrong with this machine, in plain words, and how to mend it.

It changes nothing, needs no agent to run, and says of each thing one of: good, warn (leases work, something is worse
than it could be), bad (no lease will run here).
"""

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from agents.node.engines import EngineError
from agents.node.identity import StateError, StateFolder

GIB = 1024**3
DISK_WANTED_GIB = 50
DRIVER_FLOOR = 535
RUNC_FLOOR = ((1, 2, 8), (1, 3, 3))


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. mend: what to do, "" when it is good."""

    check: str
    level: str  # good | warn | bad
    text: str
    mend: str = ""


def main(state: Path, *, as_json: bool) -> int:
    """Print what was found; return 0 when nothing is bad."""
    folder = StateFolder(state) if state.exists() else None
    try:
        identity = folder.identity() if folder else None
        settings = folder.settings() if folder else {}
    except StateError as fault:
        identity, settings = None, {}
        print(f"bad: {fault}")
    findings = examine(folder=folder, settings=settings, enrolled=identity is not None and identity.enrolled,
                       server=identity.server if identity else "")  # fmt: skip
    if as_json:
        print(json.dumps(report(findings), indent=1))
    else:
        for finding in findings:
            print(f"{finding.level:4}  {finding.check}: {finding.text}")
            if finding.mend:
                print(f"      -> {finding.mend}")
    return 1 if any(finding.level == "bad" for finding in findings) else 0


def report(findings: list[Finding]) -> dict[str, Any]:
    """Return {ok, findings: [...]}."""
    return {
        "ok": all(finding.level != "bad" for finding in findings),
        "findings": [asdict(finding) for finding in findings],
    }


def examine(*, folder: StateFolder | None, settings: dict[str, Any], enrolled: bool, server: str = "") -> list[Finding]:
    """Return one finding per thing looked at, the gravest of them first."""
    found = [_enrolment(enrolled), *_server(server), *_engine(settings), *_driver(settings)]
    found += [*_root(settings), _disk(folder.path if folder else Path("/")), _clock()]
    order = {"bad": 0, "warn": 1, "good": 2}
    return sorted(found, key=lambda finding: order[finding.level])


def _enrolment(enrolled: bool) -> Finding:
    if enrolled:
        return Finding("enrolment", "good", "this machine is enrolled")
    mend = "make a host in the console, then: gpuyard-agent enrol --server URL --token TOKEN"
    return Finding("enrolment", "bad", "this machine is not enrolled", mend)


def _server(server: str) -> Iterator[Finding]:
    if not server:
        return
    url = urlsplit(server)
    port = url.port or (443 if url.scheme == "https" else 80)
    try:
        socket.create_connection((url.hostname or "", port), timeout=5).close()
    except OSError as fault:
        mend = f"let this machine open outbound TCP connections to {url.hostname}:{port}; nothing inbound is needed"
        yield Finding("control plane", "bad", f"{server} cannot be reached: {fault}", mend)
        return
    yield Finding("control plane", "good", f"{server} can be reached")


def _engine(settings: dict[str, Any]) -> Iterator[Finding]:
    name = settings.get("engine", "docker")
    if name == "process":
        yield Finding("engine", "warn", "workloads run as plain processes, without isolation (process sandbox)",
                      "install Docker and run with --engine docker, unless this is a demonstration")  # fmt: skip
        return
    path = Path(settings.get("engine_socket") or "/var/run/docker.sock")
    if not path.exists():
        mend = "install and start it, e.g.: apt-get install docker.io; for podman: systemctl enable --now podman.socket"
        yield Finding("engine", "bad", f"no container engine listens on {path}", mend)
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
        yield Finding("engine", "bad", f"the engine does not answer: {fault}", "systemctl restart docker")
        return
    yield from _runc(engine)


def _root(settings: dict[str, Any]) -> Iterator[Finding]:
    if settings.get("engine", "docker") == "process":
        return
    running = any(name.split("/")[-1].startswith("gpuyard-root") for name in _commands())
    if running:
        yield Finding("gpuyard-root", "good", "what is overdue is stopped though the agent be dead")
    else:
        text = "nothing stops an overdue container while the agent is dead, and tenants reach this machine's network"
        yield Finding("gpuyard-root", "warn", text, "systemctl enable --now gpuyard-root.service")
    if shutil.which("nft") is None:
        yield Finding("nft", "warn", "tenants' containers may reach this machine's network", "apt-get install nftables")


def _commands() -> Iterator[str]:
    """Return the words of the command lines of this machine's processes, as far as they may be read."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield from path.read_bytes().decode(errors="replace").split("\0")[:3]
        except OSError:
            continue


def _runc(engine: Any) -> Iterator[Finding]:
    text = engine.runc_version()
    numbers = _numbers(text)
    if not numbers:
        return
    if numbers < RUNC_FLOOR[0] or (RUNC_FLOOR[0][:2] < numbers[:2] <= RUNC_FLOOR[1][:2] and numbers < RUNC_FLOOR[1]):
        yield Finding("runc", "warn", f"runc {text} has known ways out of a container",
                      "update runc to 1.2.8, 1.3.3 or newer")  # fmt: skip
    else:
        yield Finding("runc", "good", f"runc {text}")


def _driver(settings: dict[str, Any]) -> Iterator[Finding]:
    if settings.get("driver") == "sim":
        yield Finding("gpus", "warn", f"simulated: {', '.join(settings.get('sim', []))}", "fine for a demonstration")
        return
    answer = _ask_probe()
    if "inventory" not in answer:
        yield _no_driver(answer)
        return
    inventory = answer["inventory"]
    gpus, version = inventory["gpus"], str(inventory["driver_version"])
    if not gpus:
        yield Finding("gpus", "bad", "the driver shows no GPU", "look at `dmesg | grep -i nvrm`; reseat or replace it")
    else:
        names = ", ".join(sorted({gpu["name"] for gpu in gpus}))
        yield Finding("gpus", "good", f"{len(gpus)} x {names}, driver {version}, CUDA {inventory['cuda_version']}")
    if (_numbers(version) or (0,))[0] < DRIVER_FLOOR:
        mend = f"install driver {DRIVER_FLOOR} or newer, then restart the machine"
        yield Finding("driver", "bad", f"driver {version} is older than {DRIVER_FLOOR}", mend)
    mend = "restart the machine; if it comes back, take the board out of service"
    for device in [*answer["sample"]["devices"], *inventory["unreadable"]]:
        if device["state"] != "ok":
            name = device.get("uuid") or f"GPU {device['index']}"
            yield Finding("gpus", "bad", f"{name} is {device['state'].replace('_', ' ')}", mend)
    if shutil.which("nvidia-ctk") is None:
        mend = "install nvidia-container-toolkit 1.17.8 or newer, and run: nvidia-ctk runtime configure"
        yield Finding("toolkit", "bad", "containers cannot be given GPUs: nvidia-container-toolkit is missing", mend)


def _no_driver(answer: dict[str, Any]) -> Finding:
    code = answer.get("code")
    text, mend = {
        9: ("the NVIDIA driver is not loaded", "install it, or run: modprobe nvidia; then restart the machine"),
        12: ("NVIDIA's library (libnvidia-ml.so.1) is not installed", "install the NVIDIA driver"),
        18: ("the driver was updated under the running kernel", "restart the machine; until then no lease can start"),
        4: ("the agent may not open the GPUs", "add the agent's user to the group that owns /dev/nvidia*"),
    }.get(
        code if isinstance(code, int) else -1,
        (f"NVIDIA's library does not answer: {answer.get('error', 'no answer')}", "restart the machine"),
    )
    return Finding("driver", "bad", text, mend)


def _ask_probe() -> dict[str, Any]:
    """Ask the library in a process of its own, which may hang or die without taking the doctor with it."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "agents.node.main", "record"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        answer = json.loads(done.stdout)
    except (subprocess.TimeoutExpired, ValueError):
        return {"error": "it hangs or crashes"}
    return answer if isinstance(answer, dict) else {}


def _disk(path: Path) -> Finding:
    free = shutil.disk_usage(path).free // GIB
    if free >= DISK_WANTED_GIB:
        return Finding("disk", "good", f"{free} GiB are free")
    level = "bad" if free < 5 else "warn"
    mend = f"free space for images: {DISK_WANTED_GIB} GiB or more; unused images: docker image prune -a"
    return Finding("disk", level, f"only {free} GiB are free at {path}", mend)


def _clock() -> Finding:
    synced = Path("/run/systemd/timesync/synchronized").exists() or shutil.which("chronyd") is not None
    if synced:
        return Finding("clock", "good", "the clock is kept by a time service")
    return Finding("clock", "warn", "no time service was found", "timedatectl set-ntp true")


def _numbers(text: str) -> tuple[int, ...]:
    parts = []
    for part in text.split("+")[0].split("-")[0].split("."):
        if not part.isdigit():
            break
        parts.append(int(part))
    return tuple(parts)
