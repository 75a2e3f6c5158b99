"""Credit that is drawn before the wallet: given, taken back, at its end.

A wallet's row is locked before those of its grants; whoever draws holds it.
"""

from datetime import datetime
from uuid import UUID

from django.db import transaction

from apikit.clock import whole_second
from billing import exhaustion, ledger, shards
from billing.models import Grant
from billing.models.accounts import AccountKind


@transaction.atomic
def give(
    *,
    owner: UUID,
    currency: str,
    amount_micros: int,
    key: str,
    effective_at: datetime,
    at: datetime,
    expires_at: datetime | None = None,
    priority: int = 100,
    promotional: bool = True,
    reason: str = "",
    by: str = "",
) -> Grant:
    """Give credit for usage in [effective_at, expires_at); the same key again returns the first grant.

    Promotional credit is the platform's expense; other credit was paid for, offline.
    """
    wallet = ledger.account(kind=AccountKind.WALLET, owner=owner, currency=currency, at=at)
    ledger.lock([wallet.pk])
    account = ledger.account(kind=AccountKind.PROMO_GRANT, owner=owner, currency=currency, part=key, at=at)
    source = AccountKind.PROMO_EXPENSE if promotional else AccountKind.CASH
    payer = ledger.account(kind=source, currency=currency, part="" if promotional else "offline", at=at)
    ledger.post(
        key=f"grant:{owner}:{key}",
        kind="grant",
        legs=ledger.flow(payer, account, amount_micros),
        effective_at=at,
        at=at,
        memo=reason,
        by=by,
    )
    grant, _ = Grant.objects.get_or_create(
        account=account,
        defaults={
            "priority": priority,
            "promotional": promotional,
            "amount_micros": amount_micros,
            "effective_at": whole_second(effective_at),
            "expires_at": None if expires_at is None else whole_second(expires_at),
            "reason": reason,
            "created_at": at,
        },
    )
    exhaustion.refresh(accounts=[wallet.pk], at=at)
    return grant


@transaction.atomic
def expire_due(*, at: datetime) -> int:
    """Move what is left of expired grants to breakage, once usage in their window is posted; return how many."""
    ended = Grant.objects.filter(expires_at__lte=at, account__limited__balance_micros__gt=0).select_related("account")
    count = 0
    for grant in ended.order_by("account__owner", "pk"):
        closed_to = shards.closed_to(shards.of_owner(grant.account.owner))
        assert grant.expires_at is not None  # the filter says so
        if closed_to is not None and closed_to >= grant.expires_at:
            count += _expire(grant, at=at)
    return count


def _expire(grant: Grant, *, at: datetime) -> int:
    account = grant.account
    wallet = ledger.account(kind=AccountKind.WALLET, owner=account.owner, currency=account.currency, at=at)
    ledger.lock([wallet.pk])
    row = ledger.lock([account.pk])[account.pk]
    left = row.balance_micros - row.held_micros
    if left <= 0:
        return 0
    breakage = ledger.account(kind=AccountKind.BREAKAGE, currency=account.currency, at=at)
    # The balance in the key: a refund that came back after the first expiry is taken as well.
    already = account.debits.filter(journal__kind="expire").count()
    ledger.post(
        key=f"expire:{grant.pk}:{already}",
        kind="expire",
        legs=ledger.flow(account, breakage, left),
        effective_at=grant.expires_at or at,
        at=at,
    )
    exhaustion.refresh(accounts=[wallet.pk], at=at)
    return 1
