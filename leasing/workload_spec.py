"""What one member's host is told to start: a pure translation of the lease (AGENT.md sections 11 and 12)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agents.protocol import WorkloadSpec

RENDEZVOUS_PORT = 29500
RENDEZVOUS_PORTS = (29_500, 30_000)  # of gangs whose first host names no range: [first, end)


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
    ports: tuple[int, int] | None = None  # host ports [first, end) that its owner gave


def rendezvous_port(*, members: Sequence[MemberPlan], spread: int) -> int:
    """Return the port at which the members of a gang meet: the same inside the first one and on its host.

    spread: a number of the lease and its epoch, so that two gangs on a host seldom want the same port, and a gang that
    was refused one gets another at its next start.
    """
    if len(members) == 1:
        return RENDEZVOUS_PORT
    first, end = members[0].ports or RENDEZVOUS_PORTS
    return first + spread % (end - first)


def build(
    *, lease_id: str, image_reference: str, command: Sequence[str] | None, env: Mapping[str, str],
    ports: Sequence[int], ssh_keys: Sequence[str], members: Sequence[MemberPlan], rank: int, with_fabric: bool,
    secrets: Sequence[str] = (), registry_login: bool = False, health: Mapping[str, Any] | None = None,
    spread: int = 0,
) -> dict[str, Any]:  # fmt: skip
    """Return the WorkloadSpec of member `rank` as JSON; CPU in milli, memory and disk in MiB, 0 = no limit known."""
    own = members[rank]
    addresses = [member.address or "127.0.0.1" for member in members]
    world = sum(len(member.uuids) for member in members)
    port = rendezvous_port(members=members, spread=spread)
    rendezvous = {
        # The first member is itself the one to meet: from its own network its host's address may lead nowhere.
        "MASTER_ADDR": "127.0.0.1" if rank == 0 else addresses[0],
        "MASTER_PORT": str(port),
        "NNODES": str(len(members)),
        "NODE_RANK": str(rank),
        "NPROC_PER_NODE": str(len(own.uuids)),
        "WORLD_SIZE": str(world),
        "GPUYARD_NODE_IPS": ",".join(addresses),
        "GPUYARD_LEASE_ID": lease_id,  # here, since hosts drop GPUYARD_* from what a tenant names
    }
    if len(members) > 1:
        # Under these names torchrun reads its own options: it starts without any.
        names = ("MASTER_ADDR", "MASTER_PORT", "NNODES", "NODE_RANK", "NPROC_PER_NODE")
        rendezvous |= {f"PET_{name}": rendezvous[name] for name in names}
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
        fixed_ports={str(port): port} if rank == 0 and len(members) > 1 else {},
    ).to_json()
