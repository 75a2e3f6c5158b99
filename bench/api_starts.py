"""Half of bench/api.py: from the request for a lease to `active`, beside `docker run` of the same image, in turns.

The engine, the agent, the loops and the doors are those of the embedded stack; the image lies at the engine.
"""

import http.client
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import api_load as load

from embedded import engine, processes, stack
from embedded.demo_image import REFERENCE

HOSTS = [{"name": "bench-host", "gpus": ["A100_80G x2"], "engine": "auto"}]
SETTINGS = {"WORKLOAD_STOP_GRACE_S": "2", "RATE_LIMIT_REQUESTS": "1000000", "RATE_LIMIT_LEASE_CREATE": "1000000"}
STATE_WITHIN_S = 120.0


def measure(*, samples: int) -> dict[str, Any]:
    """Return the figures; without a real engine only the reason why there are none, which is printed too."""
    with tempfile.TemporaryDirectory(prefix="gybench-", ignore_cleanup_errors=True) as temporary:
        Path(temporary).chmod(0o755)
        path, pool = Path(temporary) / "state", Path(temporary) / "pool.json"
        pool.write_text(json.dumps({"hosts": HOSTS}))
        try:
            access = stack.up(path, pool=pool, environment=SETTINGS, within_s=300)
            used = access["container_engine"]
            if used["kind"] == "process":
                print(f"\nSKIPPED: request-to-active needs a real container engine; {used['reason']}")
                return {"request_to_active_skipped": used["reason"]}
            return _measured(Tenant(access), Path(used["socket"]), used["kind"], samples)
        finally:
            stack.down(path, remove=True)


def _measured(tenant: "Tenant", socket: Path, kind: str, samples: int) -> dict[str, Any]:
    run, how = _plain_run(socket, kind)
    processes.poll_until(tenant.can_lease, within_s=STATE_WITHIN_S, what="The verification of the host")
    tenant.start_and_end(), run()  # the first of each pays for what the others find warm
    ours, plain = [], []
    for _ in range(samples):
        plain.append(run())
        ours.append(tenant.start_and_end())
    figures = {
        "request_to_active_p50_s": round(load.percentile(ours, 50), 3),
        "request_to_active_max_s": round(max(ours), 3),
        "docker_run_p50_s": round(load.percentile(plain, 50), 3),
        "docker_run_max_s": round(max(plain), 3),
        "overhead_p50_s": round(load.percentile(ours, 50) - load.percentile(plain, 50), 3),
        "docker_run_is": how,
        "container_engine": kind,
        "samples": samples,
    }
    print(
        f"\nrequest-to-active p50 {figures['request_to_active_p50_s']} s (max {figures['request_to_active_max_s']} s)"
        f" beside {how} p50 {figures['docker_run_p50_s']} s (max {figures['docker_run_max_s']} s):"
        f" overhead {figures['overhead_p50_s']} s, {samples} samples"
    )
    return figures


class Tenant:
    """A tenant's program: asks for a lease and follows it with long polls."""

    def __init__(self, access: dict[str, Any]) -> None:
        self._connection = http.client.HTTPConnection(
            "127.0.0.1", int(access["api_url"].rpartition(":")[2]), timeout=90
        )
        self._who = {"Authorization": f"Bearer {access['api_key']}", "Content-Type": "application/json"}

    def can_lease(self) -> bool:
        return bool(self._call("GET", "/offers")[1]["items"])

    def start_and_end(self) -> float:
        """Return the seconds from the request to `active` as this tenant sees it; then end the lease."""
        began = time.perf_counter()
        body = {"request": "A100_80G", "image": "gpuyard_demo"}
        etag, lease = self._call("POST", "/leases", body, {"Idempotency-Key": uuid4().hex})
        path = f"/leases/{lease['id']}"
        self._follow(path, etag, "active")
        took_s = time.perf_counter() - began
        etag, _ = self._call("DELETE", path)
        self._follow(path, etag, "ended")
        return took_s

    def _follow(self, path: str, etag: str, state: str) -> None:
        deadline = time.monotonic() + STATE_WITHIN_S
        while True:
            etag, lease = self._call("GET", f"{path}?wait_s=20", None, {"If-None-Match": etag})
            if lease and lease["state"] == state:
                return
            if time.monotonic() > deadline:
                raise RuntimeError(f"{path} did not become {state}: {lease}")

    def _call(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> tuple[str, Any]:
        text = None if body is None else json.dumps(body)
        self._connection.request(method, f"/api/v1{path}", text, self._who | (headers or {}))
        answer = self._connection.getresponse()
        said = answer.read()
        if answer.status >= 400:
            raise RuntimeError(f"{method} {path}: {answer.status} {said[:500].decode(errors='replace')}")
        return answer.headers.get("ETag") or "", json.loads(said) if said else None


def _plain_run(socket: Path, kind: str) -> tuple[Callable[[], float], str]:
    """Return an act that runs the image once and returns the seconds until it runs, and what the act is."""
    program = shutil.which(kind)
    if program is not None and kind == "docker":
        return lambda: _by_program(program, socket), "`docker run -d`"
    return lambda: _by_api(socket), "create and start by the engine's API"


def _by_program(program: str, socket: Path) -> float:
    name = f"bench-{uuid4().hex}"
    at = [program, "--host", f"unix://{socket}"]
    began = time.perf_counter()
    subprocess.run([*at, "run", "-d", "--name", name, REFERENCE], check=True, capture_output=True)
    took_s = time.perf_counter() - began
    subprocess.run([*at, "rm", "-f", name], check=True, capture_output=True)
    return took_s


def _by_api(socket: Path) -> float:
    began = time.perf_counter()
    status, answer = engine.call(socket, "POST", "/containers/create", json.dumps({"Image": REFERENCE}).encode())
    made = json.loads(answer)["Id"]
    status, _ = engine.call(socket, "POST", f"/containers/{made}/start")
    took_s = time.perf_counter() - began
    engine.call(socket, "DELETE", f"/containers/{made}?force=1")
    if status >= 400:
        raise RuntimeError(f"the engine started nothing: {status}")
    return took_s
