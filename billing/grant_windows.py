"""When each credit of a wallet counts, what is left of it, and which is drawn first."""

from collections import defaultdict
from collections.abc import Collection
from datetime import UTC, datetime

from django.db.models import F, Q

from billing import pricing
from billing.models import Account, Grant
from billing.models.accounts import AccountKind

# Priority, then what expires first, promotional before paid, effective first, created first.
DRAW_ORDER = ("priority", F("expires_at").asc(nulls_last=True), "-promotional", "effective_at", "created_at", "pk")


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
