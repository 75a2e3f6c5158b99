"""`gpuyard-agent doctor`: what is wrong with this machine, in plain words, and how to mend it.

It changes nothing, needs no agent to run, and says of each thing one of: good, warn (leases work, something is worse
than it could be), bad (no lease will run here).
"""

import json
import shutil
import socket
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from agents.node import doctor_engine, doctor_gpus
from agents.node.doctor_words import Finding
from agents.node.identity import StateError, StateFolder

GIB = 1024**3
DISK_WANTED_GIB = 50


def main(state: Path, *, as_json: bool, given: dict[str, Any] | None = None) -> int:
    """Print what was found; return 0 when nothing is bad. given: options that go before the kept settings."""
    findings = look(state, given=given or {})
    if as_json:
        print(json.dumps(report(findings), indent=1))
    else:
        for finding in findings:
            print(f"{finding.level:4}  {finding.check}: {finding.text}")
            if finding.mend:
                print(f"      -> {finding.mend}")
    return 1 if any(finding.level == "bad" for finding in findings) else 0


def look(state: Path, *, given: dict[str, Any]) -> list[Finding]:
    """Return what is found of the machine whose agent has this state folder, which need not be there."""
    try:
        folder = StateFolder(state) if state.exists() else None
        identity = folder.identity() if folder else None
        settings = {**(folder.settings() if folder else {}), **given}
    except StateError as fault:
        return examine(folder=None, settings=given, enrolled=None, damaged=str(fault))
    except PermissionError:
        closed = f"{state} may not be read by this user"
        return examine(folder=None, settings=given, enrolled=None, damaged=closed, mend="run the doctor with sudo")
    enrolled = identity is not None and identity.enrolled
    found = examine(folder=folder, settings=settings, enrolled=enrolled, server=identity.server if identity else "")
    if enrolled:
        found = [*doctor_engine.agent(), *found]
    return found


def report(findings: list[Finding]) -> dict[str, Any]:
    """Return {ok, findings: [...]}."""
    return {
        "ok": all(finding.level != "bad" for finding in findings),
        "findings": [asdict(finding) for finding in findings],
    }


def examine(
    *, folder: StateFolder | None, settings: dict[str, Any], enrolled: bool | None, server: str = "", damaged: str = "",
    mend: str = "move the folder away, and enrol this machine again",
) -> list[Finding]:  # fmt: skip
    """Return one finding per thing looked at, the gravest of them first. enrolled: None where that cannot be read, for
    the reason in `damaged`."""
    found = [Finding("state", "bad", damaged, mend) if enrolled is None else _enrolment(enrolled), *_server(server)]
    found += [*doctor_engine.look(settings), *doctor_gpus.look(settings)]
    found += [_disk(folder.path if folder else Path("/")), _clock()]
    order = {"bad": 0, "warn": 1, "good": 2}
    return sorted(found, key=lambda finding: order[finding.level])


def _enrolment(enrolled: bool) -> Finding:
    if enrolled:
        return Finding("enrolment", "good", "this machine is enrolled")
    mend = "`gpuyard host enrol NAME --zone ZONE` gives a token; here: gpuyard-agent enrol --server URL --token TOKEN"
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
