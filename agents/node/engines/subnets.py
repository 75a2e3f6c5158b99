"""Which addresses the network of a lease gets. We choose them, and name the gateway too, for two reasons.

An engine that chooses by itself has some thirty networks to give. And an older Docker (20.10) that is killed while it
removes such a network leaves a note of it without addresses, over which it panics at every start from then on (moby
45057): the machine has no engine until a person deletes that file. Where the gateway was named, it passes over it.
"""

import hashlib
from collections.abc import Iterable, Iterator
from ipaddress import IPv4Network, ip_network
from pathlib import Path
from typing import Any

POOLS = tuple(IPv4Network(pool) for pool in ("10.231.0.0/16", "10.199.0.0/16", "172.29.0.0/16"))
PREFIX = 26
ROUTES = Path("/proc/net/route")


def free(name: str, taken: Iterable[IPv4Network]) -> Iterator[IPv4Network]:
    """Yield networks that overlap none of `taken`, from a place that the name draws: two who choose at once differ."""
    used = list(taken)
    draw = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4])
    for pool in POOLS:
        count, size = 2 ** (PREFIX - pool.prefixlen), 2 ** (32 - PREFIX)
        for n in range(count):
            subnet = IPv4Network((int(pool.network_address) + (draw + n) % count * size, PREFIX))
            if not any(subnet.overlaps(other) for other in used):
                yield subnet


def configuration(subnet: IPv4Network) -> dict[str, Any]:
    """Return what an engine is told."""
    return {"Config": [{"Subnet": str(subnet), "Gateway": str(subnet[1])}]}


def of_engine(rows: Iterable[dict[str, Any]]) -> Iterator[IPv4Network]:
    """Yield the networks that an engine's own list of networks names."""
    for row in rows:
        for config in (row.get("IPAM") or {}).get("Config") or []:
            subnet = _network(str(config.get("Subnet", "")))
            if subnet is not None:
                yield subnet


def of_machine(text: str | None = None) -> Iterator[IPv4Network]:
    """Yield the networks to which this machine has routes, but for the default route."""
    if text is None:
        text = ROUTES.read_text() if ROUTES.exists() else ""
    for line in text.splitlines()[1:]:
        columns = line.split()
        if len(columns) > 7 and columns[7] != "00000000":
            address, mask = (int.from_bytes(bytes.fromhex(columns[n])[::-1]) for n in (1, 7))
            yield IPv4Network((address & mask, mask.bit_count()))


def _network(text: str) -> IPv4Network | None:
    try:
        found = ip_network(text, strict=False)
    except ValueError:
        return None
    return found if isinstance(found, IPv4Network) else None
