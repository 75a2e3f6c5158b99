"""The embedded stack, running, for tests that look at the whole: its doors, its database, its processes."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import psycopg

from audit import ids
from embedded import processes, stack
from embedded.postgres import Postgres
from tests import migrated_cluster

ROOT = Path(__file__).parents[1]
UP_WITHIN_S = 280.0  # seconds on a quiet machine; CI's machines are shared
# Many more requests come from one tenant than from a person: what is tried here is not the limit.
NO_RATE_LIMITS = {"RATE_LIMIT_REQUESTS": "1000000", "RATE_LIMIT_LEASE_CREATE": "1000000"}


@dataclass(frozen=True)
class RunningStack:
    """path: its folder. access: what `up` printed: URLs and keys."""

    path: Path
    access: dict[str, Any]

    @property
    def database_url(self) -> str:
        """The database's URL, also after a restart of the server."""
        server = Postgres.existing(self.path)
        assert server is not None
        return server.url()

    def ask(self, method: str, path: str, body: Any = None, *, of: str = "tenant") -> httpx2.Response:
        """Call a door of the API as the organization `of` (tenant, rival, owner); each POST is one of its own."""
        headers = {"Authorization": f"Bearer {self.access[of]['api_key']}"}
        if method == "POST":
            headers["Idempotency-Key"] = ids.new().hex
        url = f"{self.access['api_url']}/api/v1{path}"
        return httpx2.request(method, url, json=body, headers=headers, timeout=60, trust_env=False)

    def got(self, path: str, *, of: str = "tenant") -> dict[str, Any]:
        """Return the document at a path of the API."""
        answer = self.ask("GET", path, of=of)
        assert answer.status_code == 200, answer.text
        document: dict[str, Any] = answer.json()
        return document

    def rows(self, query: str, **values: Any) -> list[tuple[Any, ...]]:
        """Read the stack's own database."""
        with psycopg.connect(self.database_url, connect_timeout=10) as connection:
            return connection.execute(query, values).fetchall()

    def reconcile(self) -> subprocess.CompletedProcess[str]:
        """Run `manage.py reconcile` on it."""
        environment = {**os.environ, "DATABASE_URL": self.database_url, "DEBUG": "1"}
        environment.pop("GPUYARD_DATABASE_URL", None)
        command = [sys.executable, str(ROOT / "manage.py"), "reconcile"]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)

    def status(self) -> dict[str, Any]:
        return stack.status(self.path)


@contextmanager
def running_stack(
    *, hosts: Sequence[Mapping[str, Any]], settings: Mapping[str, str], keep_logs_in: Path | None = None
) -> Iterator[RunningStack]:
    """Bring a stack up with a pool of these hosts, and take everything away afterwards.

    keep_logs_in: a folder that gets a copy of its logs, to read when a test has failed.
    """
    with tempfile.TemporaryDirectory(prefix="gyst-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)  # the database's unprivileged account passes through it
        pool = Path(folder) / "pool.json"
        pool.write_text(json.dumps({"hosts": list(hosts)}))
        path = Path(folder) / "state"
        try:
            migrated_cluster.give_to(path)
            access = stack.up(path, pool=pool, environment=NO_RATE_LIMITS | dict(settings), within_s=UP_WITHIN_S)
            yield RunningStack(path, access)
        finally:
            if keep_logs_in is not None and (path / "log").exists():
                subprocess.run(["cp", "-r", str(path / "log"), str(keep_logs_in)], check=False)
            stack.down(path, remove=True)


def until[T](ask: Callable[[], T | None], *, what: str, within_s: float = 120.0, every_s: float = 0.1) -> T:
    """Ask until the answer is true and return it; fail after `within_s`, saying what did not come and what came."""
    deadline = time.monotonic() + within_s
    while not (answer := ask()):
        if time.monotonic() > deadline:
            raise processes.DeadlinePassed(f"{what} did not come within {within_s:g} s; last seen: {answer!r}")
        time.sleep(every_s)
    return answer
