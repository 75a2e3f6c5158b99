"""What one member's host is told to start: a pure translation of the lease (AGENT.md sections 11 and 12)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agents.protocol import WorkloadSpec

RENDEZVOUS_PORT = 29500
RENDEZVOUS_PORTS = (29_500, 30_000)  # of hosts whose owner names no range: [first, end)
GANG_PORTS = 8  # further ports of each member that the others reach


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


def gang_ports(member: MemberPlan, *, spread: int) -> range:
    """Return the ports of one member of a gang, the same inside it and on its host: first the one at which they meet
    (the first member's counts), then those that are its own.

    spread: a number of the lease and its epoch, so that two gangs on a host seldom want the same ports, and a gang that
    was refused them gets others at its next start.
    """
    first, end = member.ports or RENDEZVOUS_PORTS
    size = 1 + GANG_PORTS
    begin = first + spread % max(1, (end - first) // size) * size
    return range(begin, min(begin + size, end))


def _fixed_ports(own: range, *, rank: int, world: int) -> dict[str, int]:
    if world == 1:
        return {}
    return {str(port): port for port in (own if rank == 0 else own[1:])}


def build(
    *, lease_id: str, image_reference: str, command: Sequence[str] | None, env: Mapping[str, str],
    ports: Sequence[int], ssh_keys: Sequence[str], members: Sequence[MemberPlan], rank: int, with_fabric: bool,
    secrets: Sequence[str] = (), registry_login: bool = False, health: Mapping[str, Any] | None = None,
    read_only: bool = False, spread: int = 0, volumes: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:  # fmt: skip
    """Return the WorkloadSpec of member `rank` as JSON; CPU in milli, memory and disk in MiB, 0 = no limit known."""
    own = members[rank]
    addresses = [member.address or "127.0.0.1" for member in members]
    world = sum(len(member.uuids) for member in members)
    ports_of = [gang_ports(member, spread=spread) for member in members]
    port = ports_of[0][0] if len(members) > 1 else RENDEZVOUS_PORT
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
        # In the order of GPUYARD_NODE_IPS; "" where a host has no more than the port to meet at.
        rendezvous["GPUYARD_GANG_PORTS"] = ",".join(f"{row[1]}-{row[-1]}" if row[1:] else "" for row in ports_of)
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
        read_only=read_only,
        fixed_ports=_fixed_ports(ports_of[rank], rank=rank, world=len(members)),
        volumes=[
            {"name": v["name"], "place": v["place"], "path": v["path"], "size_mib": v["size_gib"] * 1024}
            for v in volumes
        ],
    ).to_json()
