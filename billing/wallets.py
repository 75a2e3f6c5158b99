"""An organization's money: what is in the wallet, what is kept, what runs against it, and how money comes in."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from django.db import transaction

from apikit.clock import whole_second
from billing import currencies, exhaustion, grant_windows, ledger, pricing
from billing.models import Account, AccountBalance, Journal, Transfer
from billing.models.accounts import AccountKind


@dataclass(frozen=True)
class Balance:
    """accrued_micros: runs, and is not posted yet; available_micros: what a new hold may take, grants included;
    owed_micros: for payments that a bank took back when the money was gone."""

    currency: str
    balance_micros: int
    held_micros: int
    accrued_micros: int
    available_micros: int
    credit_micros: int
    grants_micros: int
    burn_micros_per_hour: int
    exhausts_at: datetime | None
    owed_micros: int = 0


def account_of(*, owner: UUID, currency: str, at: datetime) -> Account:
    return ledger.account(kind=AccountKind.WALLET, owner=owner, currency=currency, at=at)


@transaction.atomic
def top_up(
    *,
    owner: UUID,
    currency: str,
    amount_micros: int,
    key: str,
    by: str,
    reason: str,
    at: datetime,
    provider: str = "offline",
) -> Journal:
    """Credit money that came in; the same key again changes nothing and returns the first journal.

    Raises ValueError for an amount that is not positive or finer than the currency's smallest unit.
    """
    fine = currencies.get(currency).micros_per_minor
    if amount_micros <= 0 or amount_micros % fine:
        raise ValueError(f"{amount_micros} micro-units of {currency} are no amount that money comes in")
    wallet = account_of(owner=owner, currency=currency, at=at)
    ledger.lock([wallet.pk])
    journal = ledger.post(
        key=f"topup:{provider}:{key}",
        kind="topup",
        legs=ledger.flow(_cash(provider, currency, at=at), wallet, amount_micros),
        request={"owner": owner, "currency": currency, "amount_micros": amount_micros},
        effective_at=at,
        at=at,
        memo=reason,
        by=by,
    )
    exhaustion.refresh(accounts=[wallet.pk], at=at)
    pay_debt(wallet=wallet, at=at)
    return journal


@transaction.atomic
def set_credit_line(*, owner: UUID, currency: str, credit_micros: int, at: datetime) -> None:
    """Let the wallet go down to minus `credit_micros`. Raises ledger.Overdrawn if it is below that already.

    What has run and is not posted counts: with a smaller line nobody but the platform could pay for it.
    """
    wallet = account_of(owner=owner, currency=currency, at=at)
    row = refreshed(wallet, at=at)
    left = pledgeable(wallet, row, at=at)[-1][1] + row.floor_micros  # what ran and is not posted is gone
    if credit_micros < 0 or left < -credit_micros:
        raise ledger.Overdrawn("More than that credit line is in use.", credit_micros=credit_micros)
    AccountBalance.objects.filter(pk=wallet.pk).update(floor_micros=-credit_micros)
    exhaustion.refresh(accounts=[wallet.pk], at=at)


def balance(*, owner: UUID, currency: str, at: datetime) -> Balance:
    """Return what an organization has, as of `at`; zeros where it never had a wallet in this currency."""
    wallet = Account.objects.filter(kind=AccountKind.WALLET, owner=owner, currency=currency).first()
    if wallet is None:
        return Balance(currency, 0, 0, 0, 0, 0, 0, 0, None)
    row = refreshed(wallet, at=at)
    funds = pledgeable(wallet, row, at=at)
    return Balance(
        currency=currency,
        balance_micros=row.balance_micros,
        held_micros=row.held_micros,
        accrued_micros=pricing.charge(max(0, row.accrued_num)),
        available_micros=max(0, sum(micros for _, micros in funds)),
        credit_micros=-row.floor_micros,
        grants_micros=sum(micros for account, micros in funds if account.pk != wallet.pk),
        burn_micros_per_hour=row.burn_micros_per_hour,
        exhausts_at=row.exhaust_at,
        owed_micros=owed_micros(wallet),
    )


@transaction.atomic
def refreshed(wallet: Account, *, at: datetime) -> AccountBalance:
    """Lock a wallet's row, bring its accrual to `at` and return it."""
    ledger.lock([wallet.pk])
    exhaustion.refresh(accounts=[wallet.pk], at=at)
    return AccountBalance.objects.get(pk=wallet.pk)


def pledgeable(wallet: Account, row: AccountBalance, *, at: datetime) -> list[tuple[Account, int]]:
    """Return (account, micro-units that may leave it): usable grants in their order, then the wallet.

    What ran and is not posted counts as gone, since the stored balance lags by up to an hour; the wallet's figure is
    below zero when less is left than ran.
    """
    gone = -(-max(0, row.accrued_num) // pricing.SECONDS_PER_HOUR)
    funds, at_s = [], int(whole_second(at).timestamp())
    for grant in grant_windows.of_wallet(wallet, start_s=at_s, end_s=at_s):
        left = grant.account.limited.balance_micros - grant.account.limited.held_micros
        drawn = min(left, gone)
        gone -= drawn
        funds.append((grant.account, left - drawn))
    return [*funds, (wallet, row.balance_micros - row.held_micros - row.floor_micros - gone)]


@transaction.atomic
def pay_debt(*, wallet: Account, at: datetime) -> int:
    """Pay what is owed out of what the wallet can spare; return the micro-units. Nothing owed costs one look."""
    if not owed_micros(wallet):
        return 0
    ledger.lock([wallet.pk])
    debt = debt_of(wallet, at=at)
    paid = min(owed_micros(wallet), spare_micros(wallet, at=at))
    if paid <= 0:
        return 0
    n = Transfer.objects.filter(credit=debt).count()  # grows with each, under the wallet's lock
    legs = ledger.flow(wallet, debt, paid)
    ledger.post(key=f"debt:{debt.pk}:{n}", kind="dispute", legs=legs, effective_at=at, at=at)
    exhaustion.refresh(accounts=[wallet.pk], at=at)
    return paid


def owed_micros(wallet: Account) -> int:
    """Return what a wallet's organization owes for payments that were taken back."""
    debt = Account.objects.filter(kind=AccountKind.DISPUTE_DEBT, owner=wallet.owner, currency=wallet.currency).first()
    return 0 if debt is None else max(0, -ledger.balance_micros(debt))


def spare_micros(wallet: Account, *, at: datetime) -> int:
    """Return what of a wallet's own money is neither held nor has run already; its credit line is not its money."""
    row = refreshed(wallet, at=at)
    return max(0, pledgeable(wallet, row, at=at)[-1][1] + row.floor_micros)


def debt_of(wallet: Account, *, at: datetime) -> Account:
    return ledger.account(kind=AccountKind.DISPUTE_DEBT, owner=wallet.owner, currency=wallet.currency, at=at)


def _cash(provider: str, currency: str, *, at: datetime) -> Account:
    return ledger.account(kind=AccountKind.CASH, currency=currency, part=provider, at=at)


def lasts(found: Balance, *, at: datetime) -> timedelta | None:
    """Return how long the money lasts at what is known now, or None if nothing runs it dry."""
    return None if found.exhausts_at is None else found.exhausts_at - at
