"""Exchange between wallets of an organization: two transfers through the exchange accounts, one per currency."""

from datetime import datetime
from uuid import UUID

from django.db import transaction

from billing import exhaustion, ledger, pricing, wallets
from billing.holds import InsufficientFunds
from billing.models import Journal
from billing.models.accounts import AccountKind


@transaction.atomic
def exchange(
    *, owner: UUID, currency: str, amount_micros: int, to_currency: str, rate: str, key: str, by: str, at: datetime
) -> Journal:
    """Change money at a decimal rate (units of `to_currency` for one); the rate stays in the journal.

    The same key again returns the first. Raises InsufficientFunds, ValueError for a bad rate or amount.
    """
    if amount_micros <= 0 or currency == to_currency:
        raise ValueError("only a positive amount is exchanged, into another currency")
    received = pricing.exchange(amount_micros, rate=rate)
    source = wallets.account_of(owner=owner, currency=currency, at=at)
    target = wallets.account_of(owner=owner, currency=to_currency, at=at)
    ledger.lock([source.pk, target.pk])
    spare = wallets.pledgeable(source, wallets.refreshed(source, at=at), at=at)[-1][1]
    known = Journal.objects.filter(key=f"fx:{key}").exists()
    if spare < amount_micros and not known:
        raise InsufficientFunds(
            "The wallet holds less than that.",
            needed=pricing.money(amount_micros, currency),
            missing=pricing.money(amount_micros - max(0, spare), currency),
        )
    journal = ledger.post(
        key=f"fx:{key}",
        kind="exchange",
        legs=ledger.flow(source, ledger.account(kind=AccountKind.FX, currency=currency, at=at), amount_micros)
        + ledger.flow(ledger.account(kind=AccountKind.FX, currency=to_currency, at=at), target, received),
        effective_at=at,
        at=at,
        memo=f"1 {currency} = {rate} {to_currency}",
        by=by,
    )
    exhaustion.refresh(accounts=[source.pk, target.pk], at=at)
    return journal
