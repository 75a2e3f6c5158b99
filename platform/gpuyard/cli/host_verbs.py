"""gpuyard host ...: for whoever owns machines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from gpuyard.cli import inputs, views
from gpuyard.cli.session import Family, Write, listing_options, session


@click.group(cls=Family)
def host() -> None:
    """Look after your own machines in the pool."""


@host.command("list")
@listing_options
def list_hosts(limit: int | None) -> None:
    """List your hosts."""
    here = session()
    here.show_list(here.client.hosts.list(), views.HOSTS, limit=limit)


@host.command()
@click.argument("host_id")
def get(host_id: str) -> None:
    """Show a host."""
    here = session()
    here.show(here.client.hosts.get(host_id), views.anything)


@host.command()
@click.argument("host_id")
@listing_options
def events(host_id: str, limit: int | None) -> None:
    """Show what happened to a host."""
    here = session()
    here.show_list(here.client.hosts.events(host_id), views.EVENTS, limit=limit)


def _act(host_id: str, name: str) -> None:
    here = session()
    act: Callable[[str], Any] = getattr(here.client.hosts, name)
    here.show(act(host_id), views.anything)


@host.command(cls=Write)
@click.argument("host_id")
def cordon(host_id: str) -> None:
    """Take no new leases; what runs there goes on."""
    _act(host_id, "cordon")


@host.command(cls=Write)
@click.argument("host_id")
def uncordon(host_id: str) -> None:
    """Take leases again."""
    _act(host_id, "uncordon")


@host.command(cls=Write)
@click.argument("host_id")
def drain(host_id: str) -> None:
    """Take no new leases, and let what runs there leave after its notice."""
    session().confirm(f"Drain {host_id}? Its leases will have to leave.")
    _act(host_id, "drain")


@host.command(cls=Write)
@click.argument("host_id")
def retire(host_id: str) -> None:
    """Take a host out of the pool for good."""
    session().confirm(f"Retire {host_id} for good?")
    _act(host_id, "retire")


@host.command(cls=Write)
@click.option("--name", help="What the host will be called.")
@click.option("--region")
@click.option("--zone")
@click.option("--ttl", "ttl_s", type=inputs.Duration(), help="How long the token is good.")
def enrol(**given: Any) -> None:
    """Make a one-time token with which `gpuyard-agent enrol` joins a new machine. It is shown once."""
    here = session()
    fields = {name: value for name, value in given.items() if value is not None}
    made = here.client.enrolments.create(**fields)
    here.show(made, views.anything)
