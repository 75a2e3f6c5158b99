"""gpuyard lease ..., ps, logs, stop, run."""

from __future__ import annotations

from typing import Any

import click

from gpuyard.cli import following, inputs, naming, problems, values, views
from gpuyard.cli.session import Family, Session, Verb, Write, listing_options, session
from gpuyard.errors import LeaseEnded
from gpuyard.objects import Lease

_STATES = ("pending", "scheduled", "provisioning", "active", "parked", "interrupted", "ending", "ended")


@click.group(cls=Family)
def lease() -> None:
    """Lease GPUs and look after leases."""


@lease.command(cls=Write)
@click.argument("request", required=False)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@inputs.lease_options
@click.option("--wait", "waits", is_flag=True, help="Follow it until it is active.")
@click.option("--timeout", "timeout_s", type=inputs.Duration(), help="Wait at most so long.")
def create(request: str | None, command: tuple[str, ...], waits: bool, timeout_s: int | None, **given: Any) -> None:
    """Lease what REQUEST says, e.g. "A100_80G x4", "2*H100_80G x8", "any:24G+ x2 @cn-hangzhou".

    A COMMAND for the container stands behind `--`.
    """
    here = session()
    if request is None and given["quote"] is None:
        raise click.UsageError('Say what to lease, e.g. gpuyard lease create "A100_80G x4" --image pytorch_latest.')
    made = here.client.leases.create(**inputs.lease_fields(request, command, given))
    if here.dry_run or not waits:
        here.show(made, views.lease)
        return
    here.say(f"{made.id} is {made.state}.")
    here.show(following.wait(here, made.id, until=["active"], timeout_s=timeout_s), views.lease)


@lease.command("list")
@listing_options
@click.option("--state", "states", type=click.Choice(_STATES), multiple=True, help="Only in this state (repeatable).")
def list_(limit: int | None, states: tuple[str, ...]) -> None:
    """List leases, newest first, ended ones too."""
    here = session()
    here.show_list(here.client.leases.list(state=states or None), views.LEASES, limit=limit)


@lease.command()
@naming.lease_argument
def get(lease_id: str) -> None:
    """Show one lease."""
    here = session()
    here.show(here.client.leases.get(lease_id), views.lease)


@lease.command()
@naming.lease_argument
@click.option("--until", type=click.Choice(_STATES), multiple=True, default=("active",), show_default=True)
@click.option("--timeout", "timeout_s", type=inputs.Duration(), help="Give up after so long (exit code 8).")
def wait(lease_id: str, until: tuple[str, ...], timeout_s: int | None) -> None:
    """Follow a lease until it is in a state. Ctrl-C stops the following only."""
    here = session()
    here.show(following.wait(here, lease_id, until=until, timeout_s=timeout_s), views.lease)


def _end(lease_ids: tuple[str, ...], *, waits: bool) -> None:
    here = session()
    if len(lease_ids) > 1:
        here.confirm(f"End {len(lease_ids)} leases?")
    for lease_id in lease_ids:
        ended = here.client.leases.delete(lease_id)
        if waits and not here.dry_run:
            ended = following.wait(here, lease_id, until=["ended"], timeout_s=None)
        here.show(ended, views.ending)


@lease.command(cls=Write)
@naming.leases_argument
@click.option("--wait", "waits", is_flag=True, help="Until its devices are free again.")
def end(lease_id: tuple[str, ...], waits: bool) -> None:
    """End leases: their containers stop, and nothing more is charged."""
    _end(lease_id, waits=waits)


@click.command(cls=Write)
@naming.leases_argument
@click.option("--wait", "waits", is_flag=True, help="Until its devices are free again.")
def stop(lease_id: tuple[str, ...], waits: bool) -> None:
    """End leases (the same as `lease end`)."""
    _end(lease_id, waits=waits)


@lease.command()
@naming.lease_argument
@click.option("-f", "--follow", is_flag=True, help="Go on until it has ended.")
@listing_options
def events(lease_id: str, follow: bool, limit: int | None) -> None:
    """Show what happened to a lease."""
    here = session()
    if not follow:
        here.show_list(here.client.leases.events(lease_id), views.EVENTS, limit=limit)
        return
    with following.keeping(here, lease_id):
        for event in here.client.leases.events(lease_id, follow=True):
            following.print_event(here, event)


@lease.command()
@naming.lease_argument
def charges(lease_id: str) -> None:
    """Show what a lease costs so far, and what for."""
    here = session()
    found = here.client.leases.charges(lease_id)
    here.show(found, _charged)
    here.show_table(found.to_dict().get("lines") or [], views.CHARGES)


def _charged(row: dict[str, Any]) -> list[tuple[str, str]]:
    return [("charged", f"{values.money(row.get('charged'))} for {row.get('billable_seconds')} s")]


@click.command(cls=Verb)
@listing_options
@click.option("-a", "ended_too", is_flag=True, help="Show those that ended, too.")
def ps(limit: int | None, ended_too: bool) -> None:
    """List the leases that live."""
    here = session()
    states = None if ended_too else [state for state in _STATES if state != "ended"]
    here.show_list(here.client.leases.list(state=states), views.LEASES, limit=limit)


@click.command(cls=Verb)
@naming.lease_argument
@click.option("-f", "--follow", is_flag=True, help="Go on until its output ends.")
@click.option("--member", type=click.IntRange(min=0), default=0, help="The rank of the machine in a gang.")
@click.option("--offset", type=click.IntRange(min=0), default=0, help="Leave out so many bytes.")
@click.option("--since", type=inputs.Past(), help="Leave out what is older: 5m, 2h, or an instant.")
def logs(lease_id: str, follow: bool, member: int, offset: int, since: str | None) -> None:
    """Print what a lease's container printed.

    With -f it goes on over broken connections without a gap; after Ctrl-C it says the --offset to go on from.
    """
    here = session()
    output = here.client.leases.logs(lease_id, follow=follow, member=member, offset=offset, since=since)
    following.print_output(here, lease_id, output, member=member)


@click.command(cls=Write)
@click.argument("request")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@inputs.lease_options
@click.option("--timeout", "timeout_s", type=inputs.Duration(), help="Wait at most so long for it to start.")
def run(request: str, command: tuple[str, ...], timeout_s: int | None, **given: Any) -> None:
    """Lease REQUEST, run COMMAND there, print its output, and exit with its exit code.

    gpuyard run "A100_80G x4" --image pytorch_latest -- python train.py
    """
    here = session()
    fields = inputs.lease_fields(request, command, given)
    made = here.client.leases.create(**{"on_exit": "end", **fields})
    if here.dry_run:
        here.show(made, views.lease)
        return
    here.say(f"{made.id} is {made.state}. Ctrl-C leaves it running; gpuyard stop {made.id} ends it.")
    with following.keeping(here, made.id):
        raise click.exceptions.Exit(_finish(here, made.id, timeout_s))


def _finish(here: Session, lease_id: str, timeout_s: int | None) -> int:
    """Follow a lease from its start to its end, and return the exit code that stands for it."""
    started = following.wait(here, lease_id, until=["active", "ending", "ended"], timeout_s=timeout_s)
    if started.state != "ended" or started.end_reason == "completed":
        following.print_output(here, lease_id, here.client.leases.logs(lease_id, follow=True))
    ended = here.client.leases.wait(lease_id, until="ended")
    return _outcome(here, ended)


def _outcome(here: Session, ended: Lease) -> int:
    code = ended.exit_code
    cost = values.money((ended.to_dict().get("cost") or {}).get("charged"))
    reason = values.ended_by(ended.end_reason)
    here.say(f"{ended.id} ended: {reason}{f', exit code {code}' if code is not None else ''}. It cost {cost}.")
    if ended.end_reason == "completed" and code is not None:
        return code
    return problems.exit_code(LeaseEnded(ended, until=["completed"]))
