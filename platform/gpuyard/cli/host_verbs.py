"""gpuyard host ...: for whoever owns machines."""

from __future__ import annotations

import click

from gpuyard.cli import host_views, inputs, naming, views
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
@naming.host_argument
def get(host_id: str) -> None:
    """Show a host."""
    here = session()
    here.show(here.client.hosts.get(host_id), views.host)


@host.command()
@naming.host_argument
@listing_options
def devices(host_id: str, limit: int | None) -> None:
    """Show the GPUs of a host, and how they are."""
    here = session()
    here.show_list(here.client.hosts.devices(host_id), views.DEVICES, limit=limit)


@host.command()
@naming.host_argument
@listing_options
def events(host_id: str, limit: int | None) -> None:
    """Show what happened to a host, newest first."""
    here = session()
    here.show_list(here.client.hosts.events(host_id), views.HOST_EVENTS, limit=limit)


_reason = click.option("--reason", help="Why; it is kept with the act.")


@host.command(cls=Write)
@naming.host_argument
@_reason
def cordon(host_id: str, reason: str | None) -> None:
    """Take no new leases; what runs there goes on."""
    here = session()
    here.show(here.client.hosts.cordon(host_id, reason=reason), views.host)


@host.command(cls=Write)
@naming.host_argument
@_reason
def uncordon(host_id: str, reason: str | None) -> None:
    """Take leases again."""
    here = session()
    here.show(here.client.hosts.uncordon(host_id, reason=reason), views.host)


@host.command(cls=Write)
@naming.host_argument
@click.option("--within", "deadline_s", type=inputs.Duration(), help="How long its leases may stay: 10m, 2h.")
@_reason
def drain(host_id: str, deadline_s: int | None, reason: str | None) -> None:
    """Take no new leases, and let what runs there leave."""
    here = session()
    here.confirm(f"Drain {host_id}? Its leases will have to leave.")
    here.show(here.client.hosts.drain(host_id, deadline_s=deadline_s, reason=reason), views.host)


@host.command(cls=Write)
@naming.host_argument
@_reason
def retire(host_id: str, reason: str | None) -> None:
    """Take a host out of the pool for good."""
    here = session()
    here.confirm(f"Retire {host_id} for good?")
    here.show(here.client.hosts.retire(host_id, reason=reason), views.host)


@host.command(cls=Write)
@naming.host_argument
def verify(host_id: str) -> None:
    """Let a host prove again what it has."""
    here = session()
    here.show(here.client.hosts.verify(host_id), views.host)


@host.command(cls=Write)
@click.argument("name")
@click.option("--zone", required=True, help="Where it stands; `gpuyard regions` lists zones.")
@click.option("--access", type=click.Choice(["public", "shared_when_idle", "private"]))
def enrol(name: str, zone: str, access: str | None) -> None:
    """Make a one-time token with which the agent of a new machine joins as NAME. It is shown once."""
    here = session()
    here.show(here.client.enrolments.create(name=name, zone=zone, access=access), views.anything)


@host.command()
@naming.host_argument
def score(host_id: str) -> None:
    """Show how reliable a host has been: every point with its reason, and what would change it."""
    here = session()
    found = here.client.hosts.score(host_id)
    here.show(found, host_views.score)
    here.show_table(found.to_dict().get("entries") or [], host_views.SCORE_ENTRIES)


@host.command("self-tests")
@naming.host_argument
@listing_options
def self_tests(host_id: str, limit: int | None) -> None:
    """Show what a host was asked to prove, newest first, and which check failed."""
    here = session()
    here.show_list(here.client.hosts.self_tests(host_id), host_views.SELF_TESTS, limit=limit)


@host.command()
@listing_options
def enrolments(limit: int | None) -> None:
    """List the tokens that were made for new machines, and what became of them."""
    here = session()
    here.show_list(here.client.enrolments.list(), host_views.ENROLMENTS, limit=limit)


@host.command(cls=Write)
@click.argument("enrolment_id")
def revoke(enrolment_id: str) -> None:
    """Make an enrolment's token worthless."""
    here = session()
    here.client.enrolments.delete(enrolment_id)
    here.done(f"The token of {enrolment_id} is worthless now.")
