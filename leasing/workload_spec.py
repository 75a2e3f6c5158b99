"""What one member's host is told to start: a pure translation of the lease (AGENT.md sections 11 and 12)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agents.protocol import WorkloadSpec

RENDEZVOUS_PORT = 29500


@dataclass(frozen=True)
class MemberPlan:
    """One host of the gang: its address, the UUIDs its driver reports, and units where a device is not whole."""

    rank: int
    address: str
    uuids: tuple[str, ...]
    units: Mapping[str, tuple[int, int]]
    cpu_milli: int
    ram_mib: int
    disk_mib: int


def build(
    *, lease_id: str, image_reference: str, command: Sequence[str] | None, env: Mapping[str, str],
    ports: Sequence[int], ssh_keys: Sequence[str], members: Sequence[MemberPlan], rank: int, with_fabric: bool,
    secrets: Sequence[str] = (), registry_login: bool = False, health: Mapping[str, Any] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Return the WorkloadSpec of member `rank` as JSON; CPU in milli, memory and disk in MiB, 0 = no limit known."""
    own = members[rank]
    addresses = [member.address or "127.0.0.1" for member in members]
    world = sum(len(member.uuids) for member in members)
    rendezvous = {
        "MASTER_ADDR": addresses[0],
        "MASTER_PORT": str(RENDEZVOUS_PORT),
        "NNODES": str(len(members)),
        "NODE_RANK": str(rank),
        "NPROC_PER_NODE": str(len(own.uuids)),
        "WORLD_SIZE": str(world),
        "GPUYARD_NODE_IPS": ",".join(addresses),
        "GPUYARD_LEASE_ID": lease_id,  # here, since hosts drop GPUYARD_* from what a tenant names
    }
    if not with_fabric:
        rendezvous["NCCL_IB_DISABLE"] = "1"
    return WorkloadSpec(
        image=image_reference,
        devices=list(own.uuids),
        command=list(command) if command is not None else None,
        env=dict(env),
        ports=list(ports),
        ssh_keys=list(ssh_keys),
        rendezvous=rendezvous,
        units={uuid: [first, end] for uuid, (first, end) in own.units.items()},
        cpu_milli=own.cpu_milli or None,
        ram_mib=own.ram_mib or None,
        disk_mib=own.disk_mib or None,
        secrets=list(secrets),
        registry_login=registry_login,
        health=None if health is None else dict(health),
    ).to_json()
