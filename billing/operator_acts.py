"""What an operator does to money by hand: each with a reason, and in the audit log."""

from datetime import datetime
from uuid import UUID

from django.db import transaction

from audit import log
from billing import pricing, wallets
from billing.models import Journal


@transaction.atomic
def credit(
    *, owner: UUID, currency: str, amount_micros: int, key: str, operator: str, reason: str, at: datetime
) -> Journal:
    """Credit an organization offline; the same key again changes nothing. Raises what wallets.top_up raises."""
    known = Journal.objects.filter(key=f"topup:offline:{key}").exists()
    journal = wallets.top_up(
        owner=owner, currency=currency, amount_micros=amount_micros, key=key, by=operator, reason=reason, at=at
    )
    if not known:
        log.record(
            actor=operator,
            organization=owner,
            action="wallet.credited",
            target=f"journal:{journal.pk}",
            after={"amount": pricing.money(amount_micros, currency)},
            why=reason,
            at=at,
        )
    return journal
