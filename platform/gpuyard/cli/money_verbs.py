"""gpuyard wallet, invoice."""

import click

from gpuyard.cli import views
from gpuyard.cli.session import Family, listing_options, session


@click.group(cls=Family, default="show")
def wallet() -> None:
    """Show what is there, what is held, and how long it lasts."""


@wallet.command()
def show() -> None:
    """Show the wallet."""
    here = session()
    found = here.client.wallet.get()
    here.show_list(found.balances, views.BALANCES, limit=None)


@wallet.command()
@listing_options
def entries(limit: int | None) -> None:
    """Show what was booked."""
    here = session()
    here.show_list(here.client.ledger_entries.list(), views.ENTRIES, limit=limit)


@click.group(cls=Family, default="list")
def invoice() -> None:
    """Show invoices."""


@invoice.command("list")
@listing_options
def list_invoices(limit: int | None) -> None:
    """List invoices."""
    here = session()
    here.show_list(here.client.invoices.list(), views.INVOICES, limit=limit)


@invoice.command()
@click.argument("invoice_id")
@click.option("--format", "form", type=click.Choice(["html", "csv"]), help="The document itself.")
def get(invoice_id: str, form: str | None) -> None:
    """Show an invoice, or print its document."""
    here = session()
    if form is None:
        here.show(here.client.invoices.get(invoice_id), views.anything)
        return
    document = here.client.invoices.html(invoice_id) if form == "html" else here.client.invoices.csv(invoice_id)
    click.echo(document, nl=False)
