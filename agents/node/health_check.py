"""Whether a workload says of itself that it is well: an HTTP answer on one of its ports, or a command inside."""

import http.client

from agents.node.engines import Engine, EngineDown, EngineError
from agents.protocol import HealthCheck, WorkloadSpec

SAID_MAX = 160


def of(spec: WorkloadSpec) -> HealthCheck | None:
    return None if spec.health is None else HealthCheck.from_json(spec.health)


def ask(engine: Engine, container: str, check: HealthCheck) -> str | None:
    """Return None if it is well, else in words what speaks against it. Raises EngineDown: then nobody knows."""
    try:
        if check.command is not None:
            code, output = engine.exec(container, check.command, timeout_s=check.timeout_s)
            last = output.strip().splitlines()[-1:] or [""]
            return None if code == 0 else f"health check ended with code {code}: {last[0]}"[:SAID_MAX]
        return _over_http(*engine.address(container, check.port or 0), check)
    except EngineDown:
        raise
    except EngineError as fault:
        return f"health check: {fault}"[:SAID_MAX]


def _over_http(host: str, port: int, check: HealthCheck) -> str | None:
    # Only the status is read: the answer is a tenant's, and redirects of his are not followed.
    connection = http.client.HTTPConnection(host, port, timeout=check.timeout_s)
    try:
        connection.request("GET", check.path, headers={"User-Agent": "gpuyard-health", "Connection": "close"})
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as fault:
        return f"health check on port {check.port}: {fault or type(fault).__name__}"[:SAID_MAX]
    finally:
        connection.close()
    return None if 200 <= status < 400 else f"health check on port {check.port}{check.path}: status {status}"[:SAID_MAX]
