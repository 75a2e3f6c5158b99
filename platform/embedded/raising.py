"""What the supervisor of a stack does, in order: servers, tables, doors and workers, hosts; then it watches.

Every process gets the settings of production; only `DATABASE_URL` and `CELERY_BROKER_URL` name servers of our own.
"""

import json
import os
import secrets
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from embedded import demo_image, engine, leftovers, process_table, stack
from embedded.broker import Broker
from embedded.postgres import Postgres
from embedded.process_table import PoolHost
from embedded.stack_folder import StackFolder
from embedded.supervisor import Supervisor

# Of our own environment; more than this a server started by hand would not have either.
PASSED_ON = frozenset({"PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TMPDIR", "PYTHONPATH", "DOCKER_HOST"})
OURS = frozenset({"GPUYARD_DATABASE_URL", "GPUYARD_CELERY_BROKER_URL", "GPUYARD_TOKEN"})
SET_UP_WITHIN_S = 120.0
ENGINE_WITHIN_S = 20.0
AUTO = "auto"


def supervise(path: Path) -> int:
    """Raise the stack in `path` as its plan says and keep it up until SIGTERM. Returns the exit status."""
    folder = StackFolder(path)
    with folder.held_by_supervisor():
        # Children of a killed supervisor hold the ports and the agents' folders; workloads stay, to be adopted.
        leftovers.end(lambda: leftovers.children_of(folder.path))
        supervisor = Supervisor(folder)
        signal.signal(signal.SIGTERM, supervisor.stop)
        signal.signal(signal.SIGINT, supervisor.stop)
        try:
            _raise(supervisor, folder.read("plan"))
            supervisor.run_until(lambda: False)
        except Exception as fault:
            supervisor.tell(state="failed", error=str(fault))
            raise
        finally:
            supervisor.stop_children()
            stack.clear_up(folder)
        supervisor.tell(state="down", step="ended")
    return 0


def _raise(supervisor: Supervisor, plan: Mapping[str, Any]) -> None:
    folder = supervisor.folder
    hosts = process_table.read_pool(Path(plan["pool"])) if plan.get("pool") else []
    supervisor.tell(state="starting", step="PostgreSQL")
    postgres = Postgres.in_state_dir(folder.path).start()
    supervisor.tell(step="broker")
    broker = Broker.in_state_dir(folder.path).start()
    supervisor.servers = [postgres, broker]

    ports = folder.ports("api", "streams")
    supervisor.environment |= environment(folder, ports, plan.get("environment", {}))
    supervisor.environment |= {"DATABASE_URL": postgres.url(), "CELERY_BROKER_URL": broker.url}
    supervisor.tell(step="tables")
    static = supervisor.begin("collectstatic", *_django("collectstatic", "--no-input"))
    migrate = supervisor.begin("migrate", *_django("migrate", "--no-input"))
    supervisor.finish("migrate", migrate, within_s=SET_UP_WITHIN_S)
    supervisor.tell(step="catalogue, images, prices, first organization")
    tokens = _set_up(supervisor, hosts, ports)
    supervisor.finish("collectstatic", static, within_s=SET_UP_WITHIN_S)

    supervisor.tell(step="doors and workers")
    supervisor.add(process_table.control_plane(ports=ports, beat_folder=folder.path / "beat"))
    if any(host.engine == AUTO for host in hosts):
        hosts = _with_engine(supervisor, hosts)
    supervisor.run_until(supervisor.all_ready)
    supervisor.tell(step=f"{len(hosts)} simulated hosts")
    folders = {host.name: folder.agent(host.name) for host in hosts}
    server = f"http://127.0.0.1:{ports['streams']}"
    supervisor.add(process_table.agents(hosts, server=server, folders=folders, tokens=tokens))
    supervisor.run_until(supervisor.all_ready)
    supervisor.tell(state="up", step="up")


def _with_engine(supervisor: Supervisor, hosts: list[PoolHost]) -> list[PoolHost]:
    """Return the hosts with a real container engine in place of "auto", or the process sandbox if none works here.

    What was chosen, and why not a real one, stands in `access`.
    """
    folder = supervisor.folder
    faults = []
    for candidate in engine.candidates(folder.path):
        supervisor.tell(step=f"container engine: {candidate.kind}")
        try:
            _start_engine(supervisor, candidate)
            engine.prepare(candidate.socket)
        except engine.EngineFault as fault:
            faults.append(f"{candidate.kind}: {fault}")
            if candidate.process is not None:
                supervisor.remove(candidate.process.name)
            continue
        found = [host.name for host in hosts if host.engine == AUTO]
        _tell_engine(folder, kind=candidate.kind, socket=str(candidate.socket), hosts=found, reason="")
        with_socket = ("--engine-socket", str(candidate.socket))
        return [
            replace(host, engine=candidate.kind, options=(*host.options, *with_socket)) if host.engine == AUTO else host
            for host in hosts
        ]
    reason = "; ".join(faults) or "this machine has no docker and no podman"
    _tell_engine(folder, kind="process", socket="", hosts=[], reason=reason)
    return [replace(host, engine="process") if host.engine == AUTO else host for host in hosts]


def _start_engine(supervisor: Supervisor, candidate: engine.Candidate) -> None:
    if candidate.process is None:
        return
    supervisor.add([candidate.process])
    child = supervisor.children[candidate.process.name]
    deadline = time.monotonic() + ENGINE_WITHIN_S
    supervisor.run_until(lambda: child.ready or child.quick_ends > 0 or time.monotonic() > deadline)
    if not child.ready:
        raise engine.EngineFault(f"it did not start: {_last_line(supervisor.folder.log(candidate.process.name))}")


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()
    return lines[-1][-300:] if lines else "it said nothing"


def _tell_engine(folder: StackFolder, *, kind: str, socket: str, hosts: list[str], reason: str) -> None:
    told = {"kind": kind, "socket": socket, "hosts": hosts, "reason": reason, "image": demo_image.REFERENCE}
    folder.write("access", {**folder.read("access"), "container_engine": told})


def environment(folder: StackFolder, ports: Mapping[str, int], further: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of every process but where the servers are. Variables `GPUYARD_...` are passed on."""
    passed_on = {
        name: value
        for name, value in os.environ.items()
        if name in PASSED_ON or (name.startswith("GPUYARD_") and name not in OURS)
    }
    origins = ",".join(f"http://127.0.0.1:{port},http://localhost:{port}" for port in ports.values())
    return {
        **passed_on,
        "DJANGO_SETTINGS_MODULE": "config.settings",
        "ALLOW_SIMULATED": "1",
        "STAFF_SECOND_FACTOR": "0",  # a demonstration; its pages say so, and whoever adds one is asked for it
        "MAIL_URL": "console://",
        "CSRF_TRUSTED_ORIGINS": origins,
        "STATIC_ROOT": str(folder.path / "static"),
        **folder.secrets(),
        **further,
    }


def _set_up(supervisor: Supervisor, hosts: list[PoolHost], ports: Mapping[str, int]) -> dict[str, str]:
    """Load what a market needs and write `access`; return a one-time token for each host that has not enrolled yet."""
    folder = supervisor.folder
    password = folder.read("access").get("admin_password") or secrets.token_urlsafe(12)
    named = [part for host in hosts for part in ("--host", host.name)]
    begun = supervisor.begin("setup", *_django("setup_embedded", *named, f"--admin-password={password}"))
    said = json.loads(supervisor.finish("setup", begun, within_s=SET_UP_WITHIN_S).splitlines()[-1])
    tokens: dict[str, str] = said.pop("enrolment_tokens")
    folder.write(
        "access",
        {
            "api_url": f"http://127.0.0.1:{ports['api']}",
            "agents_url": f"http://127.0.0.1:{ports['streams']}",
            "admin_url": f"http://127.0.0.1:{ports['api']}/admin/",
            "admin_user": "admin",
            "admin_password": password,
            "api_key": said["tenant"]["api_key"],
            **said,
        },
    )
    return tokens


def _django(*arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "django", *arguments)
