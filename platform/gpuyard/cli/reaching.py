"""How a container of a lease is reached: the published ports of its members, and a sentence where there is none."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass

import click

from gpuyard.cli.tables import printable
from gpuyard.client import Client
from gpuyard.objects import Lease, Member

SSH_PORT = 22
_ADDRESS = re.compile(r"[0-9A-Za-z:][0-9A-Za-z.:_-]{0,252}", re.ASCII)
_ID = re.compile(r"[0-9A-Za-z_]{1,64}", re.ASCII)
_KEY = re.compile(r"[0-9A-Za-z@.-]{1,64} [0-9A-Za-z+/]{16,4096}={0,2}", re.ASCII)


@dataclass(frozen=True)
class Reached:
    """Where one port of a container is published, and what is known of whoever answers there."""

    lease_id: str
    rank: int
    port: int
    address: str
    host_port: int
    ssh_host_keys: tuple[str, ...] = ()  # as `ssh-ed25519 AAAA...`; empty: not known

    @property
    def is_private(self) -> bool:
        """Say whether the address means something only inside the host's own network."""
        try:
            found = ipaddress.ip_address(self.address)
        except ValueError:
            return False
        return not found.is_global and not found.is_loopback


def find(client: Client, lease_id: str, *, rank: int, port: int) -> Reached:
    """Return where the port of a member is published. Raises ClickException with what is missing, and what helps."""
    lease = client.leases.get(lease_id)
    member = _member(lease, rank)
    for endpoint in member.endpoints or []:
        if endpoint.port == port:
            # Both become words of an ssh command and parts of a path, and a host says its address itself.
            if not _ADDRESS.fullmatch(endpoint.address) or not _ID.fullmatch(lease.id):
                raise click.ClickException(f"{printable(endpoint.address)} is no address.")
            keys = tuple(key for key in member.ssh_host_keys or () if _KEY.fullmatch(key))
            return Reached(lease.id, rank, port, endpoint.address, endpoint.host_port, keys)
    raise click.ClickException(_why_not(lease, member, port))


def _member(lease: Lease, rank: int) -> Member:
    members = {member.rank: member for member in lease.members or []}
    if not members:
        raise click.ClickException(_not_running(lease))
    if rank not in members:
        ranks = " ".join(str(known) for known in sorted(members))
        raise click.BadParameter(f"{lease.id} has no machine {rank}; it has {ranks}.", param_hint="--member")
    return members[rank]


def _not_running(lease: Lease) -> str:
    if lease.state == "ended":
        return f"{lease.id} has ended, so nothing of it can be reached."
    return f"{lease.id} is {lease.state}: nothing of it runs yet. `gpuyard lease wait {lease.id}` says when it does."


def _why_not(lease: Lease, member: Member, port: int) -> str:
    if lease.state != "active":
        return _not_running(lease)
    published = [endpoint.port for endpoint in member.endpoints or []]
    known = f"Published are: {_listed(published)}." if published else "It publishes none."
    asked = "--ssh-key FILE --port 22, and an image that runs an SSH server" if port == SSH_PORT else f"--port {port}"
    return f"{lease.id} does not publish port {port}. {known} Ports are chosen when a lease is made: {asked}."


def _listed(ports: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(ports)))
