"""The loop beside the notifications: what providers were asked for and have not told the end of is asked about.

Payments are looked at where no notification came; refunds and payouts are sent once and looked up after that. Every
step is one call outside of any transaction, then one act on its answer: one that dies is done again by the next tick.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta

from django.db.models import F

from billing import disputes, payments, payouts, wallets
from billing.models import Payment, Payout, Refund
from billing.models.payments import OPEN, IntentState
from billing.providers import OpensPayments

log = logging.getLogger(__name__)

AT_ONCE = 50  # of each kind in one tick
EVERY, EVERY_LATER, LATER = timedelta(minutes=2), timedelta(hours=1), timedelta(hours=1)
GIVE_UP = timedelta(days=7)  # a payment that nobody has confirmed by then is cancelled


def settle_due(*, providers: Mapping[str, OpensPayments], at: datetime) -> int:
    """Go on with what is due of these providers; return how many acts were tried."""
    acts = sum(
        _look_at_payments(provider, at=at) + _go_on_with_refunds(provider, at=at) + _go_on_with_payouts(provider, at=at)
        for provider in providers.values()
    )
    for wallet in disputes.owing():
        with _alone("debt", wallet.pk):
            wallets.pay_debt(wallet=wallet, at=at)
    return acts


@contextmanager
def _alone(kind: str, pk: object) -> Iterator[None]:
    """Let one that fails fail alone: it is told to the log, and tried again by a later tick."""
    try:
        yield
    except Exception:
        log.exception("could not go on with it", extra={"kind": kind, "row": pk})


def _look_at_payments(provider: OpensPayments, *, at: datetime) -> int:
    due = Payment.objects.filter(provider=provider.name, look_at__lte=at).order_by("look_at")[:AT_ONCE]
    found = list(due.values_list("pk", "created_at"))
    for pk, created_at in found:
        age = at - created_at
        again = at + (EVERY if age < LATER else EVERY_LATER)
        with _alone("payment", pk):
            # First: one that always fails must not be the first of each tick.
            Payment.objects.filter(pk=pk).update(look_at=again)
            done = payments.look(payment_id=pk, provider=provider, at=at, give_up=age >= GIVE_UP)
            # A card that was refused may be tried again with the same payment: only money, or the end, is the end.
            if done.state == IntentState.SETTLED or (done.state == IntentState.REFUSED and age >= GIVE_UP):
                Payment.objects.filter(pk=pk).update(look_at=None)
    return len(found)


def _go_on_with_refunds(provider: OpensPayments, *, at: datetime) -> int:
    due = Refund.objects.filter(payment__provider=provider.name, state__in=OPEN).order_by(F("pk"))[:AT_ONCE]
    found = list(due.values_list("pk", flat=True))
    for pk in found:
        with _alone("refund", pk):
            payments.attempt_refund(refund_id=pk, provider=provider, at=at)
    return len(found)


def _go_on_with_payouts(provider: OpensPayments, *, at: datetime) -> int:
    due = Payout.objects.filter(provider=provider.name, state__in=OPEN).order_by(F("pk"))[:AT_ONCE]
    found = list(due.values_list("pk", flat=True))
    for pk in found:
        with _alone("payout", pk):
            payouts.send(payout_id=pk, provider=provider, at=at)
    return len(found)
