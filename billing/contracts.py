"""Reservations paid ahead: period k is paid once, earned second by second, and ended early by a stated formula.

Early end: used = floor(price x used seconds / seconds of the period), fee = floor(rest x fee_bp / 10000), refund = rest
- fee. The fee goes the way of usage: the host has kept the machine. Seconds that could not be used are refunded at the
period's end. What is not earned yet lies in an account of its own, so it cannot be spent twice.
"""

from datetime import UTC, datetime
from uuid import UUID
from zoneinfo import ZoneInfo

from django.db import transaction
from django.db.models import F

from apikit.errors import DomainError
from billing import charging, exhaustion, holds, ledger, pricing, wallets
from billing.models import Account, Contract, ContractPeriod
from billing.models.accounts import AccountKind


class ContractEnded(DomainError):
    slug = "contract-ended"
    title = "The contract has ended"


class WorseTerms(DomainError):
    slug = "worse-terms"
    title = "A change never takes away a discount that was earned"


@transaction.atomic
def open_contract(
    *,
    payer: UUID,
    payee: UUID,
    currency: str,
    reference: str,
    price_micros: int,
    anchor: datetime,
    at: datetime,
    months: int = 0,
    days: int = 0,
    time_zone: str = "UTC",
    discount_bp: int = 0,
    fee_bp: int = 0,
    commission_bp: int = 0,
    renews: bool = False,
) -> Contract:
    """Begin a contract and pay its first period. The same reference again returns the first.

    Raises holds.InsufficientFunds.
    """
    found = Contract.objects.filter(reference=reference).first()
    if found is not None:
        return found
    contract = Contract.objects.create(
        payer=wallets.account_of(owner=payer, currency=currency, at=at),
        payee=ledger.account(kind=AccountKind.HOST_EARNINGS, owner=payee, currency=currency, at=at),
        reference=reference,
        anchor=anchor,
        time_zone=time_zone,
        months=months,
        days=days,
        price_micros=price_micros,
        discount_bp=discount_bp,
        fee_bp=fee_bp,
        commission_bp=commission_bp,
        renews=renews,
    )
    pay_period(contract=contract, k=0, at=at)
    return contract


def bounds_s(contract: Contract, k: int) -> tuple[int, int]:
    """Return the seconds at which period k begins and ends: each a step from the anchor, in the contract's zone."""
    anchor = contract.anchor.astimezone(ZoneInfo(contract.time_zone))
    edges = [pricing.boundary_instant(anchor, k=i, months=contract.months, days=contract.days) for i in (k, k + 1)]
    return int(edges[0].timestamp()), int(edges[1].timestamp())


@transaction.atomic
def pay_period(*, contract: Contract, k: int, at: datetime) -> ContractPeriod:
    """Move the price of period k out of the wallet, once. Raises holds.InsufficientFunds, ContractEnded."""
    wallet, currency = contract.payer, contract.payer.currency
    row = wallets.refreshed(wallet, at=at)
    paid = ContractPeriod.objects.filter(contract=contract, k=k).first()
    if paid is not None:
        return paid
    if Contract.objects.get(pk=contract.pk).ended_at is not None:
        raise ContractEnded(f"{contract.reference} has ended.", reference=contract.reference)
    spare = wallets.pledgeable(wallet, row, at=at)[-1][1]
    if spare < contract.price_micros:
        raise holds.InsufficientFunds(
            "The wallet does not cover the period.",
            needed=pricing.money(contract.price_micros, currency),
            missing=pricing.money(contract.price_micros - max(0, spare), currency),
        )
    prepaid = ledger.account(
        kind=AccountKind.PREPAID_TERM, owner=wallet.owner, currency=currency, part=f"{contract.pk}:{k}", at=at
    )
    start_s, end_s = bounds_s(contract, k)
    ledger.post(
        key=f"period:{contract.pk}:{k}",
        kind="prepaid",
        legs=ledger.flow(wallet, prepaid, contract.price_micros),
        effective_at=datetime.fromtimestamp(start_s, UTC),
        at=at,
    )
    exhaustion.refresh(accounts=[wallet.pk], at=at)
    return ContractPeriod.objects.create(
        contract=contract, k=k, prepaid=prepaid, start_s=start_s, end_s=end_s, price_micros=contract.price_micros
    )


@transaction.atomic
def unusable(*, contract: Contract, seconds: int, at: datetime) -> None:
    """Count seconds of the running period that could not be used: they are refunded when it ends."""
    at_s = int(at.timestamp())
    running = ContractPeriod.objects.filter(contract=contract, start_s__lte=at_s, end_s__gt=at_s, closed=False)
    running.update(unusable_s=F("unusable_s") + seconds)


def earn_due(*, at: datetime) -> int:
    """Post what every open period has earned by `at`, and end or renew those that are over; return how many."""
    due = ContractPeriod.objects.filter(closed=False, start_s__lt=int(at.timestamp())).order_by("pk")
    for pk in list(due.values_list("pk", flat=True)):
        earn(period_id=pk, at=at)
    return len(due)


@transaction.atomic
def earn(*, period_id: int, at: datetime) -> None:
    """Post what one period has earned by `at`; at its end refund what was unusable, and pay the next if it renews."""
    period = _locked(period_id)
    if period.closed:
        return
    at_s = min(int(at.timestamp()), period.end_s)
    over = at_s == period.end_s
    usable_s = max(0, at_s - period.start_s - (period.unusable_s if over else 0))
    used = pricing.prorate(price_micros=period.price_micros, used=usable_s, period=period.end_s - period.start_s)
    _earn(period, max(used, 0), at_s=at_s, at=at)
    if over:
        _close(period, refund_micros=period.price_micros - used, at_s=at_s, at=at)
        if period.contract.renews and period.contract.ended_at is None:
            _renew(period, at=at)


@transaction.atomic
def terminate(*, contract_id: UUID, at: datetime) -> pricing.Termination:
    """End a contract before its time: used + fee + refund = price, the refund into the wallet.

    Raises ContractEnded if no period of it is running.
    """
    at_s = int(at.timestamp())
    running = ContractPeriod.objects.filter(contract=contract_id, closed=False, end_s__gt=at_s).order_by("k").first()
    if running is None:
        raise ContractEnded("No period of this contract is running.")
    period = _locked(running.pk)
    ended = pricing.terminate(
        price_micros=period.price_micros,
        used_s=max(0, at_s - period.start_s),
        period_s=period.end_s - period.start_s,
        fee_bp=period.contract.fee_bp,
    )
    _earn(period, max(period.earned_micros, ended.used) + ended.fee, at_s=at_s, at=at)
    _close(period, refund_micros=period.price_micros - period.earned_micros, at_s=at_s, at=at)
    Contract.objects.filter(pk=contract_id).update(ended_at=at)
    return ended


@transaction.atomic
def change(*, contract_id: UUID, price_micros: int, discount_bp: int, at: datetime) -> Contract:
    """Set the price of later periods (an upgrade or an extension). Raises WorseTerms if the discount would shrink."""
    contract = Contract.objects.select_for_update(of=("self",), no_key=True).get(pk=contract_id)
    if contract.ended_at is not None:
        raise ContractEnded(f"{contract.reference} has ended.", reference=contract.reference)
    if discount_bp < contract.discount_bp:
        raise WorseTerms(f"{contract.discount_bp} bp have been earned.", discount_bp=contract.discount_bp)
    contract.price_micros, contract.discount_bp = price_micros, discount_bp
    contract.save(update_fields=["price_micros", "discount_bp"])
    return contract


def _locked(period_id: int) -> ContractPeriod:
    found = ContractPeriod.objects.select_related("contract__payer", "contract__payee", "prepaid").get(pk=period_id)
    ledger.lock([found.contract.payer_id])
    found.refresh_from_db(fields=["earned_micros", "closed", "unusable_s"])
    return found


def _earn(period: ContractPeriod, earned: int, *, at_s: int, at: datetime) -> None:
    contract, before = period.contract, period.earned_micros
    if earned <= before:
        return
    new, old = (pricing.parts(gross=n, commission_bp=contract.commission_bp) for n in (earned, before))
    shared = new.minus(old)
    through = charging.clearing(period.prepaid.currency, at=at)
    commission = ledger.account(kind=AccountKind.COMMISSION, currency=period.prepaid.currency, at=at)
    legs = ledger.flow(period.prepaid, through, shared.gross)
    legs += ledger.flow(through, contract.payee, shared.host) + ledger.flow(through, commission, shared.fee)
    _post(period, f"earned:{contract.pk}:{period.k}:{earned}", legs, at_s=at_s, at=at)
    period.earned_micros = earned
    period.save(update_fields=["earned_micros"])


def _close(period: ContractPeriod, *, refund_micros: int, at_s: int, at: datetime) -> None:
    wallet: Account = period.contract.payer
    legs = ledger.flow(period.prepaid, wallet, refund_micros)
    _post(period, f"unearned:{period.contract_id}:{period.k}", legs, at_s=at_s, at=at)
    period.closed = True
    period.save(update_fields=["closed"])
    exhaustion.refresh(accounts=[wallet.pk], at=at)


def _renew(period: ContractPeriod, *, at: datetime) -> None:
    try:
        pay_period(contract=period.contract, k=period.k + 1, at=at)
    except holds.InsufficientFunds:
        Contract.objects.filter(pk=period.contract_id).update(ended_at=at)


def _post(period: ContractPeriod, key: str, legs: list[ledger.Leg], *, at_s: int, at: datetime) -> None:
    if legs:
        effective_at = datetime.fromtimestamp(at_s, UTC)
        ledger.post(key=key, kind="term", legs=legs, effective_at=effective_at, at=at)
