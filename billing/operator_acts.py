"""What an operator does to money by hand: each with a reason, and in the audit log."""

from datetime import datetime
from uuid import UUID

from django.db import transaction

from audit import log
from billing import documents, grants, payments, payouts, pricing, vouchers, wallets
from billing.models import Grant, Journal, Payment, Payout, Refund
from billing.models.payments import IntentState
from billing.providers import Answer


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


@transaction.atomic
def give_credit(
    *,
    owner: UUID,
    currency: str,
    amount_micros: int,
    key: str,
    expires_at: datetime | None,
    operator: str,
    reason: str,
    at: datetime,
) -> Grant:
    """Give promotional credit, usable from `at` on; the same key again changes nothing."""
    if amount_micros < 1 or (expires_at is not None and expires_at <= at):
        raise ValueError("credit is a positive amount that has not expired")
    known = Journal.objects.filter(key=f"grant:{owner}:{key}").exists()
    grant = grants.give(
        owner=owner, currency=currency, amount_micros=amount_micros, key=key, effective_at=at, expires_at=expires_at,
        reason=reason, by=operator, at=at,
    )  # fmt: skip
    if not known:
        log.record(
            actor=operator, organization=owner, action="wallet.credit_given", target=f"grant:{grant.pk}",
            after={"amount": pricing.money(amount_micros, currency)}, why=reason, at=at,
        )  # fmt: skip
    return grant


@transaction.atomic
def set_credit_line(
    *, owner: UUID, currency: str, credit_micros: int, operator: str, reason: str, at: datetime
) -> None:
    """Let a wallet go down to minus an amount. Raises what wallets.set_credit_line raises."""
    before = wallets.balance(owner=owner, currency=currency, at=at).credit_micros
    wallets.set_credit_line(owner=owner, currency=currency, credit_micros=credit_micros, at=at)
    log.record(
        actor=operator, organization=owner, action="wallet.credit_line_set", target=f"organization:{owner}",
        before={"credit_line": pricing.money(before, currency)},
        after={"credit_line": pricing.money(credit_micros, currency)}, why=reason, at=at,
    )  # fmt: skip


@transaction.atomic
def issue_voucher(
    *, currency: str, amount_micros: int, valid_until: datetime | None, operator: str, reason: str, at: datetime
) -> str:
    """Make a voucher and return its code, which nobody can read again."""
    if amount_micros < 1 or (valid_until is not None and valid_until <= at):
        raise ValueError("a voucher is a positive amount that is still valid")
    code = vouchers.issue(currency=currency, amount_micros=amount_micros, valid_until=valid_until, at=at)
    log.record(
        actor=operator, organization=None, action="voucher.issued", target="voucher",
        after={"amount": pricing.money(amount_micros, currency)}, why=reason, at=at,
    )  # fmt: skip
    return code


@transaction.atomic
def record_payout(*, payout_id: UUID, paid: bool, reference: str, operator: str, at: datetime) -> Payout:
    """Write down what became of a transfer that an operator has made, or could not make: the first outcome stands."""
    state = IntentState.SETTLED if paid else IntentState.REFUSED
    before = Payout.objects.get(pk=payout_id).state
    payout = payouts.record(payout_id=payout_id, answer=Answer(state, reference), at=at)
    if payout.state != before:
        log.record(
            actor=operator, organization=payout.payee.owner, action=f"payout.{state}", target=payout.public_id,
            before={"state": before}, after={"state": payout.state}, why=reference, at=at,
        )  # fmt: skip
    return payout


@transaction.atomic
def refund(*, payment: UUID, amount_minor: int, key: str, operator: str, reason: str, at: datetime) -> Refund | None:
    """Send part of a payment back through its provider; None if this form's `key` has done it.

    Raises what payments.begin_refund raises.
    """
    paid = Payment.objects.select_for_update(no_key=True, of=("self",)).select_related("wallet").get(pk=payment)
    by = f"{operator} {key}"
    if Journal.objects.filter(key__startswith=f"refund:{payment}:", by=by).exists():
        return None
    begun = payments.begin_refund(payment_id=payment, amount_minor=amount_minor, memo=reason, by=by, at=at)
    log.record(
        actor=operator, organization=paid.wallet.owner, action="payment.refunded", target=paid.public_id,
        after={"amount": documents.minor(amount_minor, paid.wallet.currency)}, why=reason, at=at,
    )  # fmt: skip
    return begun
