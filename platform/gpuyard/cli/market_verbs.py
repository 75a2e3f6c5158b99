"""gpuyard offers, quote, images, models, regions, market."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import click

from gpuyard.cli import inputs, values, views
from gpuyard.cli.session import Family, Verb, Write, listing_options, session
from gpuyard.objects import Offer


@click.command(cls=Verb)
@click.argument("request", required=False)
@click.option("--term", help="on_demand (default), spot, P1M, ...")
@click.option("--region")
@click.option("--sort")
@click.option("--group-by", multiple=True, type=click.Choice(["model", "region"]))
@click.option("--max-price", help="Leave out what costs more per GPU-hour: 1.20")
@listing_options
def offers(
    request: str | None,
    term: str | None,
    region: str | None,
    sort: str | None,
    group_by: tuple[str, ...],
    max_price: str | None,
    limit: int | None,
) -> None:
    """Show what can be leased now, e.g. gpuyard offers "any:24G+ x2" --max-price 1.20"""
    here = session()
    bound = Decimal(inputs.max_price(max_price)["amount"]) if max_price is not None else None
    found = here.client.offers.list(request=request, term=term, region=region, group_by=group_by or None, sort=sort)
    here.show_list((offer for offer in found if _within(offer, bound)), views.OFFERS, limit=limit)


def _within(offer: Offer, bound: Decimal | None) -> bool:
    row = offer.to_dict()
    if bound is None:
        return True
    if isinstance(row.get("price"), dict):
        return Decimal(row["price"]["amount"]) <= bound
    return "price_micros_per_hour" in row and Decimal(row["price_micros_per_hour"]) / 1_000_000 <= bound


@click.group(cls=Family, default="create")
def quote() -> None:
    """Hold devices at a fixed price for a short time: gpuyard quote "A100_80G x4" --ttl 5m"""


@quote.command(cls=Write)
@click.argument("request")
@click.option("--ttl", "ttl_s", type=inputs.Duration(), help="At most 15m; 2m if not given.")
@inputs.quote_options
def create(request: str, ttl_s: int | None, **given: Any) -> None:
    """Make a quote; `gpuyard lease create --quote ID` redeems it.

    What the price depends on is said here. Image, command, env, ports, SSH keys, name and labels may also be said when
    it is redeemed.
    """
    here = session()
    made = here.client.quotes.create(ttl_s=ttl_s, **inputs.lease_fields(request, (), given))
    here.show(made, _quote)


def _quote(row: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "quote", f"{row.get('id')}{values.badge(row)}"
    yield "request", values.plain(row.get("request"))
    yield "price", values.price(row)
    yield "expires", f"{values.ago(row.get('expires_at'))} ({row.get('expires_at')})"
    for name, value in row.items():
        if name not in ("id", "request", "price", "expires_at", "version", "simulated", "created_at", "actions"):
            yield name.replace("_", " "), values.readable(name, value, row)


@quote.command("list")
@listing_options
def list_quotes(limit: int | None) -> None:
    """List quotes."""
    here = session()
    here.show_list(here.client.quotes.list(), views.QUOTES, limit=limit)


@quote.command()
@click.argument("quote_id")
def get(quote_id: str) -> None:
    """Show a quote."""
    here = session()
    here.show(here.client.quotes.get(quote_id), _quote)


@quote.command(cls=Write)
@click.argument("quote_id")
def delete(quote_id: str) -> None:
    """Give a quote's devices back."""
    here = session()
    here.client.quotes.delete(quote_id)
    here.done(f"{quote_id} is given back.")


@click.command(cls=Verb, hidden=True)
@listing_options
def images(limit: int | None) -> None:
    """List the images that can be started by name (the same as `image list`)."""
    here = session()
    here.show_list(here.client.images.list(), views.IMAGES, limit=limit)


@click.command(cls=Verb)
@listing_options
def models(limit: int | None) -> None:
    """List the GPU models of the catalogue."""
    here = session()
    here.show_list(here.client.gpu_models.list(), views.GPU_MODELS, limit=limit)


@click.command(cls=Verb)
@listing_options
def regions(limit: int | None) -> None:
    """List regions."""
    here = session()
    here.show_list(here.client.regions.list(), views.REGIONS, limit=limit)


@click.group(cls=Family, default="prices")
def market() -> None:
    """Show published prices (no key is needed)."""


@market.command()
@click.argument("model", required=False)
@click.option("--region")
@listing_options
def prices(model: str | None, region: str | None, limit: int | None) -> None:
    """Show the prices in force, of all models or of MODEL."""
    here = session()
    here.show_list(here.client.market.prices(sku=model, region=region), views.PRICES, limit=limit)


@market.command()
@click.argument("model")
@click.option("--region", required=True)
@listing_options
def history(model: str, region: str, limit: int | None) -> None:
    """Show how the price of MODEL changed, and will."""
    here = session()
    here.show_list(here.client.market.history(sku=model, region=region), views.PRICES, limit=limit)
