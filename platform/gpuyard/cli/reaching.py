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
_ID = re.compile(r"[0-9A-Za-z_][0-9A-Za-z_-]{0,63}", re.ASCII)
_KEY = re.compile(r"[0-9A-Za-z@.-]{1,64} [0-9A-Za-z+/]{16,4096}={0,2}", re.ASCII)


@dataclass(frozen=True)
class Reached:
    """Where one port of a container is published, and what is known of whoever answers there."""

    lease_id: str
    rank: int
    port: int
    address: str
    host_port: int
    user: str | None = None  # None: not known
    host_key: str | None = None  # of whoever answers by SSH, as `ssh-ed25519 AAAA...`; None: not known

    @property
    def is_private(self) -> bool:
        """Say whether the address means something only inside the host's own network."""
        try:
            found = ipaddress.ip_address(self.address)
        except ValueError:
            return False
        return not found.is_global and not found.is_loopback


def find_ssh(client: Client, lease_id: str, *, rank: int) -> Reached:
    """Return where to sign in: on a whole machine, or in the container of a member. Raises ClickException."""
    lease = client.leases.get(lease_id)
    member = _member(lease, rank)
    way_in = member.ssh
    if way_in is not None:
        key = way_in.host_key if way_in.host_key and _KEY.fullmatch(way_in.host_key) else None
        return _checked(Reached(lease.id, rank, SSH_PORT, way_in.host, way_in.port, way_in.user, key))
    for endpoint in member.endpoints or []:
        if endpoint.service == "ssh" or endpoint.port == SSH_PORT:
            return _checked(Reached(lease.id, rank, endpoint.port, endpoint.address, endpoint.host_port))
    raise click.ClickException(_why_not(lease, member, SSH_PORT))


def find(client: Client, lease_id: str, *, rank: int, port: int) -> Reached:
    """Return where the port of a member is published. Raises ClickException with what is missing, and what helps."""
    lease = client.leases.get(lease_id)
    member = _member(lease, rank)
    for endpoint in member.endpoints or []:
        if endpoint.port == port:
            return _checked(Reached(lease.id, rank, port, endpoint.address, endpoint.host_port))
    raise click.ClickException(_why_not(lease, member, port))


def _checked(found: Reached) -> Reached:
    """Return what was found if it may become words of an ssh command and parts of a path: hosts say such things."""
    sound = _ADDRESS.fullmatch(found.address) and _ID.fullmatch(found.lease_id) and _ID.fullmatch(found.user or "x")
    if not sound:
        raise click.ClickException(f"{printable(found.address)} is no address.")
    return found


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
    asked = "--ssh-key FILE, and an image that runs an SSH server" if port == SSH_PORT else f"--port {port}"
    return f"{lease.id} does not publish port {port}. {known} Ports are chosen when a lease is made: {asked}."


def _listed(ports: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(ports)))
