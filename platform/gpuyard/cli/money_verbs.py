"""gpuyard wallet, invoice, statement, budget, earnings, payout."""

from __future__ import annotations

import re
from typing import Any

import click

from gpuyard.cli import inputs, money_views, naming, views
from gpuyard.cli.session import Family, Verb, Write, listing_options, session
from gpuyard.cli.values import money


@click.group(cls=Family, default="show")
def wallet() -> None:
    """Show what is there, what is held, and how long it lasts."""


@wallet.command()
def show() -> None:
    """Show the wallet."""
    here = session()
    found = here.client.wallet.get()
    here.show_list(found.balances, views.BALANCES, limit=None)
    for balance in found.balances:
        owed = balance.to_dict().get("owed")
        if owed and any(digit in "123456789" for digit in owed["amount"]):
            here.say(f"{money(owed)} is owed for a payment that a bank took back; it is taken from what comes in next.")


@wallet.command()
@listing_options
def entries(limit: int | None) -> None:
    """Show what was booked."""
    here = session()
    here.show_list(here.client.ledger_entries.list(), views.ENTRIES, limit=limit)


@wallet.command("top-ups")
@listing_options
def top_ups(limit: int | None) -> None:
    """Show payments into the wallet."""
    here = session()
    here.show_list(here.client.wallet.top_ups(), money_views.TOP_UPS, limit=limit)


@wallet.command("top-up", cls=Write)
@click.argument("amount", type=inputs.Amount(), metavar="AMOUNT")
@click.option("--provider", help="Who takes the payment, where there is a choice.")
def top_up(amount: tuple[str, str | None], provider: str | None) -> None:
    """Begin a payment of AMOUNT, such as "100 CNY"; the wallet has it once the provider says so."""
    here = session()
    here.show(here.client.wallet.top_up(amount=inputs.money(amount), provider=provider), views.anything)


@wallet.command(cls=Write)
@click.argument("code")
def voucher(code: str) -> None:
    """Redeem a voucher."""
    here = session()
    here.show(here.client.wallet.redeem_voucher(code=code), views.anything)


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


@click.command(cls=Verb)
@click.argument("month", required=False)
def statement(month: str | None) -> None:
    """Show what a MONTH (2026-11; this one if not given) cost, lease by lease, per currency."""
    here = session()
    year, number = _month(month) if month else (None, None)
    found = here.client.statements.list(year=year, month=number).first(64)
    here.show_list(found, money_views.STATEMENTS, limit=None)
    for each in found:
        leases = each.to_dict().get("references")
        if leases:
            here.show_table(leases, money_views.REFERENCES)


def _month(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"([0-9]{4})-(0[1-9]|1[0-2])", text, re.ASCII)
    if found is None:
        raise click.BadParameter(f"{text!r} is no month: write 2026-11.", param_hint="MONTH")
    return int(found[1]), int(found[2])


@click.group(cls=Family, default="list")
def budget() -> None:
    """Draw a line over what a month may cost, of everything or of what bears a label."""


@budget.command("list")
@listing_options
def list_budgets(limit: int | None) -> None:
    """List budgets."""
    here = session()
    here.show_list(here.client.budgets.list(), money_views.BUDGETS, limit=limit)


@budget.command("get")
@click.argument("name")
def get_budget(name: str) -> None:
    """Show a budget and what is spent of it this month."""
    here = session()
    budget_id = naming.one(here.client.budgets.list(), name, what="budget")
    here.show(here.client.budgets.get(budget_id), money_views.budget)


@budget.command("set", cls=Write)
@click.argument("name")
@click.argument("amount", type=inputs.Amount(), metavar="AMOUNT")
@click.option("--label", type=inputs.Pair(), help="Only of what bears this label: team=vision.")
@click.option("--warn-at", "thresholds", type=inputs.Percent(), multiple=True, help="50% (repeatable): tell us then.")
@click.option(
    "--then",
    "action",
    type=click.Choice(["notify", "refuse", "stop"]),
    help="At 100 %: tell (default), refuse new leases, or end what runs, too.",
)
def set_budget(
    name: str,
    amount: tuple[str, str | None],
    label: tuple[str, str] | None,
    thresholds: tuple[int, ...],
    action: str | None,
) -> None:
    """Let a month cost AMOUNT at most, such as "500 CNY"; a budget of that NAME and label is changed."""
    here = session()
    fields: dict[str, Any] = {"name": name, "amount": inputs.money(amount), "action": action}
    fields["label"] = f"{label[0]}={label[1]}" if label else None
    fields["thresholds_bp"] = sorted(thresholds) or None
    known = [each.to_dict() for each in here.client.budgets.list()]
    same = [row for row in known if row.get("name") == name and row.get("label") == fields["label"]]
    if not same:
        here.show(here.client.budgets.create(**fields), money_views.budget)
        return
    changes = {key: fields[key] for key in ("amount", "action", "thresholds_bp") if fields[key] is not None}
    seen = here.client.budgets.get(str(same[0]["id"]))
    here.show(here.client.budgets.update(str(same[0]["id"]), if_match=seen.etag or "*", **changes), money_views.budget)


@budget.command("rm", cls=Write)
@click.argument("name")
def remove_budget(name: str) -> None:
    """Take a budget away."""
    here = session()
    budget_id = naming.one(here.client.budgets.list(), name, what="budget")
    here.client.budgets.delete(budget_id)
    here.done(f"{name} is taken away.")


@click.command(cls=Verb)
@listing_options
def earnings(limit: int | None) -> None:
    """Show what your hosts have earned, after commission, and what of it is being paid out."""
    here = session()
    here.show_list(here.client.earnings.list(), money_views.EARNINGS, limit=limit)


@click.group(cls=Family, default="list")
def payout() -> None:
    """Look after what is paid out of earnings."""


@payout.command("list")
@listing_options
def list_payouts(limit: int | None) -> None:
    """List payouts."""
    here = session()
    here.show_list(here.client.payouts.list(), money_views.PAYOUTS, limit=limit)


@payout.command(cls=Write)
@click.argument("amount", type=inputs.Amount(), metavar="AMOUNT")
def ask(amount: tuple[str, str | None]) -> None:
    """Have AMOUNT of your earnings paid out, such as "100 CNY"; `gpuyard earnings` says what there is."""
    here = session()
    here.show(here.client.payouts.create(amount=inputs.money(amount)), views.anything)
