"""What owners of hosts earned, on its way to them: one payout in flight each, and an unknown one blocks the next."""

from datetime import datetime
from uuid import UUID

from django.db import transaction

from apikit.errors import DomainError
from billing import currencies, ledger, pricing
from billing.models import Account, Payout
from billing.models.accounts import AccountKind
from billing.models.payments import OPEN, IntentState
from billing.providers import Answer, Provider, ProviderSilent


class NothingToPayOut(DomainError):
    slug = "nothing-to-pay-out"
    title = "Less than the least payout has been earned"


class PayoutInFlight(DomainError):
    slug = "payout-in-flight"
    title = "A payout is on its way; the next waits until its outcome is known"


def earnings_of(*, owner: UUID, currency: str, at: datetime) -> Account:
    return ledger.account(kind=AccountKind.HOST_EARNINGS, owner=owner, currency=currency, at=at)


def payable_micros(*, owner: UUID, currency: str, at: datetime, earned_before: datetime | None = None) -> int:
    """Return what may be paid out: earnings effective before `earned_before` (the holding time), less every debit.

    Below zero it is a debt, which later earnings pay first.
    """
    earnings = earnings_of(owner=owner, currency=currency, at=at)
    total = ledger.balance_micros(earnings)
    if earned_before is None:
        return total
    # What a refused payout gave back was earned before it was asked for.
    young = earnings.credits.filter(journal__effective_at__gte=earned_before).exclude(journal__kind="payout")
    return total - sum(young.values_list("amount_micros", flat=True))


@transaction.atomic
def request(
    *,
    owner: UUID,
    currency: str,
    period: str,
    provider: str,
    at: datetime,
    amount_minor: int | None = None,
    minimum_micros: int = 0,
    earned_before: datetime | None = None,
) -> Payout:
    """Put an amount (default: all that is payable, in whole minor units) into transit; the rest stays.

    `period` names it, e.g. "2026-05". Raises PayoutInFlight, NothingToPayOut (more than is payable, below the minimum,
    or a debt), ValueError for an amount below 1.
    """
    if amount_minor is not None and amount_minor < 1:
        raise ValueError(f"{amount_minor} is no amount to pay out")
    earnings = Account.objects.select_for_update(no_key=True).get(
        pk=earnings_of(owner=owner, currency=currency, at=at).pk
    )
    if Payout.objects.filter(payee=earnings, state__in=OPEN).exists():
        raise PayoutInFlight("A payout is on its way.")
    fine = currencies.get(currency).micros_per_minor
    payable = payable_micros(owner=owner, currency=currency, at=at, earned_before=earned_before)
    most_minor, _ = pricing.to_minor(max(0, payable), micros_per_minor=fine)
    amount_minor = most_minor if amount_minor is None else amount_minor
    least_micros = max(minimum_micros, fine)
    if not 1 <= amount_minor <= most_minor or amount_minor * fine < least_micros:
        raise NothingToPayOut(
            f"{pricing.show(payable)} {currency} can be paid out, {pricing.show(least_micros)} at least.",
            payable=pricing.money(payable, currency),
            minimum=pricing.money(least_micros, currency),
        )
    n = Payout.objects.filter(payee=earnings, period=period).count()
    payout = Payout.objects.create(
        payee=earnings,
        provider=provider,
        period=period,
        n=n,
        key=f"payout:{owner}:{period}:{n}",
        amount_minor=amount_minor,
        created_at=at,
    )
    legs = ledger.flow(earnings, _transit(earnings, at=at), amount_minor * fine)
    ledger.post(key=payout.key, kind="payout", legs=legs, effective_at=at, at=at)
    return payout


def send(*, payout_id: UUID, provider: Provider, at: datetime) -> Payout:
    """Send a payout, or look up what became of one whose answer was lost. Only a new one is ever sent."""
    payout = Payout.objects.select_related("payee").get(pk=payout_id)
    answer: Answer | None = None
    try:
        if payout.state == IntentState.UNKNOWN:
            answer = provider.find(key=payout.key)
        elif Payout.objects.filter(pk=payout_id, state=IntentState.CREATED).update(state=IntentState.UNKNOWN):
            # Unknown before the call: whoever dies in it leaves a payout that nobody sends a second time.
            answer = provider.pay_out(
                key=payout.key,
                amount_minor=payout.amount_minor,
                currency=payout.payee.currency,
                to=str(payout.payee.owner),
            )
    except ProviderSilent:
        answer = None
    if answer is not None:
        record(payout_id=payout_id, answer=answer, at=at)
    return Payout.objects.get(pk=payout_id)


@transaction.atomic
def record(*, payout_id: UUID, answer: Answer, at: datetime) -> Payout:
    """Write down what became of a payout: paid, or refused, which frees the money. The first outcome stands."""
    payout = Payout.objects.select_for_update(of=("self",)).select_related("payee").get(pk=payout_id)
    if payout.state not in OPEN:
        return payout
    earnings, currency = payout.payee, payout.payee.currency
    cash = ledger.account(kind=AccountKind.CASH, currency=currency, part=payout.provider, at=at)
    to = cash if answer.state == IntentState.SETTLED else earnings
    amount_micros = payout.amount_minor * currencies.get(currency).micros_per_minor
    legs = ledger.flow(_transit(earnings, at=at), to, amount_micros)
    ledger.post(key=f"{payout.key}:{answer.state}", kind="payout", legs=legs, effective_at=at, at=at)
    payout.state, payout.provider_ref, payout.settled_at = answer.state, answer.ref, at
    payout.save(update_fields=["state", "provider_ref", "settled_at"])
    return payout


def _transit(earnings: Account, *, at: datetime) -> Account:
    return ledger.account(
        kind=AccountKind.PAYOUT_TRANSIT, owner=earnings.owner, currency=earnings.currency, part="payout", at=at
    )
