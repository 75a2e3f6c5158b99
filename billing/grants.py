"""Credit that is drawn before the wallet: its order, its window, its end.

A wallet's row is locked before those of its grants; whoever draws holds it.
"""

from collections import defaultdict
from collections.abc import Collection
from datetime import UTC, datetime
from uuid import UUID

from django.db import transaction
from django.db.models import F, Q

from apikit.clock import whole_second
from billing import exhaustion, ledger, pricing, shards
from billing.models import Account, Grant
from billing.models.accounts import AccountKind

# Priority, then what expires first, promotional before paid, effective first, created first.
DRAW_ORDER = ("priority", F("expires_at").asc(nulls_last=True), "-promotional", "effective_at", "created_at", "pk")


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


def of_wallet(wallet: Account, *, start_s: int, end_s: int) -> list[Grant]:
    """Return the grants whose window meets [start_s, end_s], in draw-down order, with their balances."""
    start, end = datetime.fromtimestamp(start_s, UTC), datetime.fromtimestamp(end_s, UTC)
    grants = Grant.objects.filter(
        Q(expires_at=None) | Q(expires_at__gt=start),
        account__owner=wallet.owner,
        account__currency=wallet.currency,
        effective_at__lte=end,
    )
    return list(grants.select_related("account", "account__limited").order_by(*DRAW_ORDER))


def window_s(grant: Grant) -> tuple[int, int | None]:
    return int(grant.effective_at.timestamp()), int(grant.expires_at.timestamp()) if grant.expires_at else None


def boundaries_s(grants: Collection[Grant]) -> list[int]:
    """Return the seconds at which a grant begins or ends: usage is evaluated there as well."""
    return sorted({edge for grant in grants for edge in window_s(grant) if edge is not None})


def credits_of(wallets: Collection[int] | None) -> dict[int, list[pricing.Credit]]:
    """Return what is left of the grants of these wallets (None: all), in draw-down order, by wallet."""
    grants = Grant.objects.filter(account__limited__balance_micros__gt=0)
    owners = Account.objects.filter(kind=AccountKind.WALLET)
    if wallets is not None:
        owners = owners.filter(pk__in=wallets)
        grants = grants.filter(account__owner__in=owners.values("owner"))
    by_purse = defaultdict(list)
    for grant in grants.select_related("account", "account__limited").order_by(*DRAW_ORDER):
        left = grant.account.limited.balance_micros - grant.account.limited.held_micros
        by_purse[grant.account.owner, grant.account.currency].append(pricing.Credit(*window_s(grant), left))
    if not by_purse:
        return {}
    found = owners.filter(owner__in={owner for owner, _ in by_purse})
    return {w.pk: by_purse[w.owner, w.currency] for w in found if (w.owner, w.currency) in by_purse}
