"""gpuyard host earnings, summary, advice, maintain: what a machine brings, and when it will be away."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import click

from gpuyard.cli import host_views, inputs, naming
from gpuyard.cli.host_terms import host
from gpuyard.cli.session import Write, listing_options, session

__all__ = ["host"]  # with the verbs of this file

_days = click.option("--days", type=click.IntRange(1, 92), help="Of so many days, today included; 30 if not given.")


@host.command("earnings")
@naming.host_argument
@_days
@click.option("--by", type=click.Choice(["day", "lease"]), default="lease", show_default=True)
def earnings(host_id: str, days: int | None, by: str) -> None:
    """Show what a host earned, by lease or by day."""
    here = session()
    found = here.client.hosts.earnings(host_id, days=days)
    here.show(found, host_views.earned)
    rows = [row for row in found.to_dict().get(f"by_{by}") or [] if row.get("gpu_seconds")]
    here.show_table(rows, host_views.EARNED)


@host.command()
@naming.host_argument
@_days
def summary(host_id: str, days: int | None) -> None:
    """Show how much of a host was in use, what it earned, what an idle hour costs, and what its GPUs measured."""
    here = session()
    found = here.client.hosts.summary(host_id, days=days)
    here.show(found, host_views.summary)
    here.show_table(found.to_dict().get("idle_hour") or [], host_views.IDLE)
    if figures := found.to_dict().get("figures"):
        here.show_table(figures, host_views.FIGURES)


@host.command()
@naming.host_argument
@click.option("--cost", type=inputs.Amount(), help="What a GPU-hour of use costs you, mostly power: 0.12")
def advice(host_id: str, cost: tuple[str, str | None] | None) -> None:
    """Say which price floor would leave the most, from what comparable GPUs were sold for."""
    here = session()
    micros = None if cost is None else int(Decimal(cost[0]) * 1_000_000)
    found = here.client.hosts.price_advice(host_id, cost_micros_per_gpu_hour=micros)
    here.show(found, host_views.floor)
    here.show_table(found.to_dict().get("items") or [], host_views.ADVICE)


@host.command(cls=Write)
@naming.host_argument
@click.option("--from", "starts_at", type=inputs.Instant(), required=True, help="An instant, or +2d.")
@click.option("--to", "ends_at", type=inputs.Instant(), required=True, help="An instant, or +2d.")
@click.option("--message", required=True, help="What tenants are told.")
@click.option("--lead", "lead_s", type=inputs.Duration(), help="How long before it takes no new leases.")
def maintain(host_id: str, **window: Any) -> None:
    """Announce when a host will be away: tenants are told, it is drained before and opened again after."""
    here = session()
    here.show(here.client.hosts.announce_maintenance(host_id, **window), host_views.maintenance)


@host.command()
@naming.host_argument
@listing_options
def maintenance(host_id: str, limit: int | None) -> None:
    """List the windows in which a host will be away."""
    here = session()
    here.show_list(here.client.hosts.maintenances(host_id), host_views.MAINTENANCES, limit=limit)


@host.command("withdraw", cls=Write)
@naming.host_argument
@click.argument("maintenance_id")
def withdraw(host_id: str, maintenance_id: str) -> None:
    """Take an announced window back."""
    here = session()
    here.client.hosts.withdraw_maintenance(host_id, maintenance_id)
    here.done(f"{maintenance_id} is taken back.")
