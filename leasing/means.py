"""What a lease must find before it costs more than now, or anything again: room in its budgets, and some money."""

from datetime import datetime

from django.conf import settings

from apikit import statements
from billing import budgets, holds, pricing, wallets
from leasing import catalogue_view, promised_price
from leasing.grammar import Request
from leasing.models import Lease


def check_budgets(lease: Lease, *, at: datetime) -> None:
    """Raise budgets.BudgetExceeded if a budget that caps what a lease costs is used up."""
    budgets.refuse_if_exceeded(owner=lease.organization_id, currency=lease.currency, labels=lease.labels, at=at)


def check_funds(lease: Lease, *, micros_per_hour: int, at: datetime) -> None:
    """Raise holds.InsufficientFunds if the wallet does not hold the first minutes at this price. Nothing is held."""
    needed = micros_per_hour * settings.REQUEST_HOLD_MINUTES // 60
    available = wallets.balance(owner=lease.organization_id, currency=lease.currency, at=at).available_micros
    if available < needed:
        raise holds.InsufficientFunds(
            f"{pricing.show(needed)} {lease.currency} are needed and {pricing.show(available)} are available.",
            needed=pricing.money(needed, lease.currency),
            missing=pricing.money(needed - available, lease.currency),
        )


def dearest_micros(lease: Lease) -> int:
    """Return what an hour of the dearest alternative of a lease costs by the list that it is promised.

    Raises promised_price.NothingForSale.
    """
    view = catalogue_view.current()
    options = Request.from_json(lease.request_options, view.catalogue).options
    asked = promised_price.tops(
        options=options, view=view, regions=lease.constraints.get("regions", ()), currency=lease.currency,
        term=lease.price_term, at=lease.priced_at,
    )  # fmt: skip
    return promised_price.highest(options=options, answers=statements.run(*asked), currency=lease.currency)
