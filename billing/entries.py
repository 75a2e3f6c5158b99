"""The entries of an organization in the ledger: what touched its accounts."""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.db.models import Q, QuerySet

from billing import payouts
from billing.models import Account, Invoice, PriceVersion, Transfer
from billing.models.accounts import AccountKind
from billing.models.documents import InvoiceState

TENANT_KINDS = (
    AccountKind.WALLET,
    AccountKind.PROMO_GRANT,
    AccountKind.PREPAID_TERM,
    AccountKind.HOST_EARNINGS,
    AccountKind.PAYOUT_TRANSIT,
)


@dataclass(frozen=True)
class Earnings:
    """What an owner of hosts has in one currency: earned and not paid out (below zero: owed), and on its way."""

    currency: str
    balance_micros: int
    in_transit_micros: int


def of_owner(*, owner: UUID, since: datetime | None = None, until: datetime | None = None) -> QuerySet[Transfer]:
    """Return the transfers that touch an organization's accounts, platform's memoranda left out.

    since, until: only those effective from the one and before the other.
    """
    touching = Q(debit__owner=owner, debit__kind__in=TENANT_KINDS) | Q(
        credit__owner=owner, credit__kind__in=TENANT_KINDS
    )
    found = Transfer.objects.filter(touching).select_related("journal", "debit", "credit")
    if since is not None:
        found = found.filter(journal__effective_at__gte=since)
    return found if until is None else found.filter(journal__effective_at__lt=until)


def signed_micros(transfer: Transfer, *, owner: UUID) -> int:
    """Return a transfer as the organization sees it: above zero what it gained, 0 between two of its own accounts."""
    gained = transfer.credit.owner == owner and transfer.credit.kind in TENANT_KINDS
    lost = transfer.debit.owner == owner and transfer.debit.kind in TENANT_KINDS
    return transfer.amount_micros * (int(gained) - int(lost))


def currencies_of(*, owner: UUID) -> list[str]:
    """Return the currencies in which an organization has a wallet."""
    wallets = Account.objects.filter(owner=owner, kind=AccountKind.WALLET)
    return sorted(wallets.values_list("currency", flat=True))


def issued_invoices(*, owner: UUID) -> QuerySet[Invoice]:
    return Invoice.objects.filter(owner=owner).exclude(state=InvoiceState.DRAFT)


def earnings(*, owner: UUID, at: datetime) -> list[Earnings]:
    """Return what an owner of hosts has earned, one figure per currency."""
    own = Account.objects.filter(owner=owner, kind=AccountKind.HOST_EARNINGS).order_by("currency")
    transit = {
        account.currency: account.limited.balance_micros
        for account in Account.objects.filter(owner=owner, kind=AccountKind.PAYOUT_TRANSIT, part="payout")
    }
    return [
        Earnings(
            currency=account.currency,
            balance_micros=payouts.payable_micros(owner=owner, currency=account.currency, at=at),
            in_transit_micros=transit.get(account.currency, 0),
        )
        for account in own
    ]


def published_prices(*, sku: str, region: str, since: datetime) -> list[PriceVersion]:
    """Return the history of every price of a model in a region since an instant, oldest first."""
    versions = PriceVersion.objects.filter(series__sku=sku, series__region=region, during__endswith__gt=since)
    open_ones = PriceVersion.objects.filter(series__sku=sku, series__region=region, during__upper_inf=True)
    found = (versions | open_ones).select_related("series")
    return list(found.order_by("series_id", "during"))
