"""Where the published ports of a lease are reached, and what each of them is for."""

from collections.abc import Mapping
from typing import Any

from agents.models import Host, Workload


def of(host: Host, workload: Workload | None, services: Mapping[str, int]) -> list[dict[str, Any]]:
    """Return where the container's ports can be reached from elsewhere; nothing once it is not to run any more.

    services: what a port is for, {"ssh": 22}. The address is the host's as the control plane sees it; a host behind
    NAT is reached there only where its owner forwards the port.
    """
    if workload is None or not workload.wanted or workload.gone_at is not None or not host.address:
        return []
    names = {22: "ssh"} | {port: name for name, port in services.items()}
    ports = sorted((int(port), host_port) for port, host_port in workload.ports.items() if port.isdecimal())
    return [_endpoint(names.get(port, "tcp"), host.address, port, host_port) for port, host_port in ports]


def _endpoint(service: str, address: str, port: int, host_port: int) -> dict[str, Any]:
    line = {"port": port, "service": service, "address": address, "host_port": host_port}
    if service == "jupyter":
        line["url"] = f"http://{f'[{address}]' if ':' in address else address}:{host_port}/"
    return line
