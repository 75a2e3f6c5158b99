"""What the supervisor of a stack does, in order: servers, tables, doors and workers, hosts; then it watches.

Every process gets the settings of production; only `DATABASE_URL` and `CELERY_BROKER_URL` name servers of our own.
"""

import json
import os
import secrets
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from embedded import leftovers, process_table, stack
from embedded.broker import Broker
from embedded.postgres import Postgres
from embedded.process_table import PoolHost
from embedded.stack_folder import StackFolder
from embedded.supervisor import Supervisor

# Of our own environment; more than this a server started by hand would not have either.
PASSED_ON = frozenset({"PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TMPDIR", "PYTHONPATH", "DOCKER_HOST"})
OURS = frozenset({"GPUYARD_DATABASE_URL", "GPUYARD_CELERY_BROKER_URL", "GPUYARD_TOKEN"})
SET_UP_WITHIN_S = 120.0


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
    supervisor.run_once("migrate", *_django("migrate", "--no-input"), within_s=SET_UP_WITHIN_S)
    supervisor.run_once("collectstatic", *_django("collectstatic", "--no-input"), within_s=60.0)
    supervisor.tell(step="catalogue, images, prices, first organization")
    tokens = _set_up(supervisor, hosts, ports)

    supervisor.tell(step="doors and workers")
    supervisor.add(process_table.control_plane(ports=ports, beat_folder=folder.path / "beat"))
    supervisor.run_until(supervisor.all_ready)
    supervisor.tell(step=f"{len(hosts)} simulated hosts")
    folders = {host.name: folder.agent(host.name) for host in hosts}
    server = f"http://127.0.0.1:{ports['streams']}"
    supervisor.add(process_table.agents(hosts, server=server, folders=folders, tokens=tokens))
    supervisor.run_until(supervisor.all_ready)
    supervisor.tell(state="up", step="up")


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
    asked = _django("setup_embedded", *named, "--admin-password", password)
    said = json.loads(supervisor.run_once("setup", *asked, within_s=SET_UP_WITHIN_S).splitlines()[-1])
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
