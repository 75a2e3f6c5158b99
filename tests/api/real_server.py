"""The web server of production over the test's own database, as a process of its own, and a market at today's hour."""

import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from django.db import connection

from apikit import clock
from billing import wallets
from embedded import processes
from embedded.process_table import control_plane
from tenants.models import Organization
from tests.factories import make_host, make_image, make_organization, make_zone, price

ROOT = Path(__file__).resolve().parents[2]
UP_WITHIN_S, DOWN_WITHIN_S = 60.0, 15.0
NO_LIMITS = {"RATE_LIMIT_REQUESTS": "1000000000", "RATE_LIMIT_LEASE_CREATE": "1000000000"}


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def serving(name: str, *, folder: Path, port: int) -> Iterator[str]:
    """Run the process `api` (WSGI) or `streams` (ASGI) of the process table; yield its address."""
    ports = {"api": port, "streams": port}
    process = next(found for found in control_plane(ports=ports, beat_folder=folder) if found.name == name)
    search = os.pathsep.join([str(ROOT), str(ROOT / "platform")])
    environment = {**os.environ, **NO_LIMITS, "DATABASE_URL": database_url(), "PYTHONPATH": search}
    environment |= {"DJANGO_SETTINGS_MODULE": "config.settings", "DEBUG": "1", "CELERY_BROKER_URL": ""}
    with (folder / f"{name}.log").open("ab") as log:
        server = subprocess.Popen(
            process.command, cwd=folder, stdout=log, stderr=log, env=environment, start_new_session=True
        )
    try:
        what = f"the server {name} on port {port} ({sys.executable})"
        processes.poll_until(lambda: _answers(str(process.answers_at)), within_s=UP_WITHIN_S, what=what)
        yield f"127.0.0.1:{port}"
    finally:
        processes.end(server.pid, within_s=DOWN_WITHIN_S)
        server.wait(DOWN_WITHIN_S)


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def database_url() -> str:
    now = connection.settings_dict
    secret = f":{now['PASSWORD']}" if now["PASSWORD"] else ""
    host = now["HOST"] or "127.0.0.1"
    if host.startswith("/"):  # a folder of sockets
        return f"postgresql://{now['USER']}{secret}@/{now['NAME']}?host={host}&port={now['PORT']}"
    return f"postgresql://{now['USER']}{secret}@{host}:{now['PORT'] or 5432}/{now['NAME']}"


def market(*, gpus: int, quota: int = 5000) -> Organization:
    """Make one host that is heard now, a price from now on, an image, and a tenant with money."""
    at = clock.now()
    make_host(gpus=gpus, state_since=at, last_heard_at=at, zone=make_zone())
    price(starts_at=at)
    make_image()
    tenant = make_organization("Many", currency="XTS", gpu_quota=quota)
    wallets.top_up(
        owner=tenant.pk, currency="XTS", amount_micros=10**13, key=f"topup:{tenant.pk}", by="test", reason="test",
        at=at,
    )  # fmt: skip
    return tenant
