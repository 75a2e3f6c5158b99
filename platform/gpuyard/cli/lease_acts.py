"""gpuyard lease park, resume, restart, extend, shorten, defer, renew, resize, move, cancel, edit, members; plan."""

from __future__ import annotations

from typing import Any

import click

from gpuyard.cli import following, inputs, naming, views
from gpuyard.cli.lease_verbs import lease
from gpuyard.cli.session import Session, Write, listing_options, session
from gpuyard.objects import Lease

_wait = click.option("--wait", "waits", is_flag=True, help="Follow it until it is active.")
_by = click.option("--by", "by_s", type=inputs.Duration(), help="By so much: 30m, 2h, 7d.")


@lease.command(cls=Write)
@naming.lease_argument
def cancel(lease_id: str) -> None:
    """Take back a lease that has not started."""
    here = session()
    here.show(here.client.leases.cancel(lease_id), views.ending)


@lease.command(cls=Write)
@naming.lease_argument
@_by
@click.option("--end-at", type=inputs.Instant(), help="An instant, or +2h from now.")
def extend(lease_id: str, by_s: int | None, end_at: str | None) -> None:
    """Let a lease end later."""
    here = session()
    here.show(here.client.leases.extend(lease_id, **_either("end_at", by_s, end_at)), views.lease)


@lease.command(cls=Write)
@naming.lease_argument
@_by
@click.option("--end-at", type=inputs.Instant(), help="An instant, or +2h from now.")
def shorten(lease_id: str, by_s: int | None, end_at: str | None) -> None:
    """Let a lease end earlier."""
    here = session()
    here.show(here.client.leases.shorten(lease_id, **_either("end_at", by_s, end_at)), views.lease)


def _either(name: str, by_s: int | None, at: str | None) -> dict[str, Any]:
    """Return the one that was said: relative or absolute."""
    if (by_s is None) == (at is None):
        raise click.UsageError(f"Say either --by 2h or --{name.replace('_', '-')} 2026-12-01T08:00:00Z.")
    return {"by_s": by_s} if at is None else {name: at}


@lease.command(cls=Write)
@naming.lease_argument
@_by
@click.option("--start-at", type=inputs.Instant(), help="An instant, or +2h from now.")
def defer(lease_id: str, by_s: int | None, start_at: str | None) -> None:
    """Let a lease that has not started begin later."""
    here = session()
    here.show(here.client.leases.defer(lease_id, **_either("start_at", by_s, start_at)), views.lease)


@lease.command(cls=Write)
@naming.lease_argument
@click.option("--periods", type=click.IntRange(min=1), help="How many more; 1 if not given.")
def renew(lease_id: str, periods: int | None) -> None:
    """Add another period to a reserved lease."""
    here = session()
    here.show(here.client.leases.renew(lease_id, periods=periods), views.lease)


@lease.command(cls=Write)
@naming.lease_argument
@click.argument("request")
def resize(lease_id: str, request: str) -> None:
    """Give a lease other GPUs: gpuyard lease resize trainer "A100_80G x8"

    The new ones are taken first, then its containers start anew there; nothing is given up before the new is held.
    --dry-run says what it would cost.
    """
    here = session()
    here.show(here.client.leases.resize(lease_id, request=request), views.lease)


@lease.command(cls=Write)
@naming.lease_argument
def move(lease_id: str) -> None:
    """Go on with the same GPUs on other hosts.

    They are taken first, then its containers start anew there. --dry-run says where.
    """
    here = session()
    here.show(here.client.leases.move(lease_id), views.lease)


@lease.command(cls=Write)
@naming.lease_argument
@click.option("--keep", type=click.Choice(["hold", "queue"]), help="What becomes of its GPUs; hold if not given.")
def park(lease_id: str, keep: str | None) -> None:
    """Stop a lease's containers and go on later.

    --keep hold keeps the GPUs, at the hold fee; --keep queue gives them up, costs nothing, and waits for the same
    kind again when it is resumed. `gpuyard lease resume` goes on.
    """
    here = session()
    how = {} if keep is None else {"keep": keep}
    here.show(here.client.leases.park(lease_id, **how), views.lease)


@lease.command(cls=Write)
@naming.lease_argument
@_wait
def resume(lease_id: str, waits: bool) -> None:
    """Start a parked lease again."""
    here = session()
    _show(here, here.client.leases.resume(lease_id), waits=waits)


@lease.command(cls=Write)
@naming.lease_argument
@_wait
def restart(lease_id: str, waits: bool) -> None:
    """Start a lease's containers anew, on the GPUs it has."""
    here = session()
    _show(here, here.client.leases.restart(lease_id), waits=waits)


def _show(here: Session, changed: Lease, *, waits: bool) -> None:
    if waits and not here.dry_run:
        changed = following.wait(here, changed.id, until=["active"], timeout_s=None)
    here.show(changed, views.lease)


@lease.command(cls=Write)
@naming.lease_argument
@click.option("--name", help="Another name.")
@click.option("-l", "--label", "labels", type=inputs.Pair(), multiple=True, help="Set a label (repeatable).")
@click.option("--no-label", "dropped", multiple=True, help="Drop a label by its name (repeatable).")
@click.option("--ssh-key", "ssh_keys", multiple=True, help="These keys instead of what it has; a key or its file.")
@click.option("--on-interrupt", type=click.Choice(["restart_elsewhere", "wait_for_host", "end"]))
def edit(
    lease_id: str,
    name: str | None,
    labels: tuple[tuple[str, str], ...],
    dropped: tuple[str, ...],
    ssh_keys: tuple[str, ...],
    on_interrupt: str | None,
) -> None:
    """Change what a lease is called, its labels, its SSH keys, or what an interruption does."""
    here = session()
    seen = here.client.leases.get(lease_id)
    changes: dict[str, Any] = {"name": name, "on_interrupt": on_interrupt}
    if labels or dropped:
        known = {**(seen.labels or {}), **dict(labels)}
        changes["labels"] = {key: value for key, value in known.items() if key not in dropped}
    if ssh_keys:
        changes["ssh_keys"] = [inputs.ssh_key(text) for text in ssh_keys]
    said = {key: value for key, value in changes.items() if value is not None}
    if not said:
        raise click.UsageError("Say what to change: --name, --label, --no-label, --ssh-key or --on-interrupt.")
    here.show(here.client.leases.update(lease_id, if_match=seen.etag or "*", **said), views.lease)


@lease.command()
@naming.lease_argument
@listing_options
def members(lease_id: str, limit: int | None) -> None:
    """Show the machines of a lease, the state of each, and where its ports are published."""
    here = session()
    here.show_list(here.client.leases.members(lease_id), views.MEMBERS_OF_A_LEASE, limit=limit)


@click.command(cls=Write)
@click.argument("request")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@inputs.lease_options
def plan(request: str, command: tuple[str, ...], **given: Any) -> None:
    """Say where REQUEST would run, when, and what it would cost; nothing is changed, and nothing is promised.

    gpuyard plan "A100_80G x4" --image pytorch_latest --for 2h
    """
    here = session()
    here.dry_run = True
    here.show(here.client.leases.plan(**inputs.lease_fields(request, command, given)), views.lease)
