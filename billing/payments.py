"""Money in through a provider, and back: intent first, then the call, then what came of it; credited once on the
provider's id. Nothing here calls a provider inside a transaction."""

from datetime import datetime, timedelta
from uuid import UUID

from django.db import transaction
from django.db.models import Sum

from apikit.errors import DomainError
from billing import currencies, exhaustion, ledger, pricing, wallets
from billing.holds import InsufficientFunds
from billing.models import Account, Payment, Refund
from billing.models.accounts import AccountKind
from billing.models.payments import IntentState
from billing.providers import Answer, Opened, OpensPayments, Provider, ProviderSilent

FIRST_LOOK = timedelta(minutes=2)  # a notification is here sooner


class RefundAboveCapture(DomainError):
    slug = "refund-above-capture"
    title = "More would go back than was paid"


class PaymentRefused(DomainError):
    slug = "payment-refused"
    title = "The payment provider takes no such payment"
    status = 422


class ProviderAway(DomainError):
    slug = "payment-provider-away"
    title = "The payment provider does not answer"
    status = 503


class PaymentKeyReused(DomainError):
    slug = "payment-key-reused"
    title = "This key began another payment"


@transaction.atomic
def begin(*, owner: UUID, currency: str, amount_minor: int, provider: str, key: str, at: datetime) -> Payment:
    """Store the intent to pay in; the same key again returns the first. Raises PaymentKeyReused, ValueError below 1."""
    if amount_minor < 1:
        raise ValueError(f"{amount_minor} is no amount to pay")
    wallet = wallets.account_of(owner=owner, currency=currency, at=at)
    payment, _ = Payment.objects.get_or_create(
        key=key,
        defaults={
            "wallet": wallet,
            "provider": provider,
            "amount_minor": amount_minor,
            "created_at": at,
            "look_at": at + FIRST_LOOK,
        },
    )  # fmt: skip
    if (payment.wallet_id, payment.amount_minor, payment.provider) != (wallet.pk, amount_minor, provider):
        raise PaymentKeyReused(f"{key} began another payment.", key=key)
    return payment


def open_at(*, payment: Payment, provider: OpensPayments, at: datetime) -> Opened:
    """Open a payment with the provider, for its payer to confirm; again it is the same one, with the same secret.

    The intent is stored already. Raises PaymentRefused where the provider takes no such payment, and ProviderAway when
    no answer came: the same call later finds what this one began.
    """
    currency = payment.wallet.currency
    if payment.state == IntentState.SETTLED:
        raise PaymentRefused("This payment has been made.", provider=provider.name)
    if not provider.takes(currency):
        raise PaymentRefused(f"{provider.name} takes no {currency}.", provider=provider.name)
    try:
        opened = provider.open(
            key=payment.key, amount_minor=payment.amount_minor, currency=currency, payment=payment.public_id,
            ref=payment.provider_ref,
        )  # fmt: skip
    except ProviderSilent as silence:
        raise ProviderAway(f"{provider.name} does not answer; the same request again goes on from here.") from silence
    if isinstance(opened, Answer):
        record(payment_id=payment.pk, answer=opened, at=at)
        raise PaymentRefused(f"{provider.name} refused it: {opened.detail}", provider=provider.name)
    Payment.objects.filter(pk=payment.pk, provider_ref="").update(provider_ref=opened.ref, look_at=at + FIRST_LOOK)
    return opened


def look(*, payment_id: UUID, provider: OpensPayments, at: datetime, give_up: bool) -> Payment:
    """Ask what became of a payment that was opened and of which no notification came; `give_up` cancels an open one."""
    payment = Payment.objects.select_related("wallet").get(pk=payment_id)
    try:
        answer = provider.look(ref=payment.provider_ref) if payment.provider_ref else None
        if answer is None and give_up:
            # One that was never opened for sure moved no money: nobody was given its secret.
            answer = provider.cancel(ref=payment.provider_ref) if payment.provider_ref else Answer(
                IntentState.REFUSED, "", "never opened")  # fmt: skip
    except ProviderSilent:
        answer = None
    return payment if answer is None else record(payment_id=payment_id, answer=answer, at=at)


def attempt(*, payment_id: UUID, provider: Provider, at: datetime) -> Payment:
    """Ask the provider to charge, or after an unknown outcome what became of it. Safe to call any number of times."""
    payment = Payment.objects.select_related("wallet").get(pk=payment_id)
    if payment.state in (IntentState.SETTLED, IntentState.REFUSED):
        return payment
    try:
        answer = provider.find(key=payment.key) if payment.state == IntentState.UNKNOWN else None
        # Without a record the same key may be sent again: a charge that did happen is found by it, and not repeated.
        answer = answer or provider.charge(
            key=payment.key, amount_minor=payment.amount_minor, currency=payment.wallet.currency
        )
    except ProviderSilent as silence:
        Payment.objects.filter(pk=payment_id, state__in=["created", "unknown"]).update(
            state=IntentState.UNKNOWN, detail=str(silence)[:300]
        )
        return Payment.objects.get(pk=payment_id)
    return record(payment_id=payment_id, answer=answer, at=at)


@transaction.atomic
def record(*, payment_id: UUID, answer: Answer, at: datetime) -> Payment:
    """Write down what the provider said: money is credited at the first "settled", and never again."""
    payment = Payment.objects.select_for_update(of=("self",), no_key=True).select_related("wallet").get(pk=payment_id)
    if payment.state in (IntentState.SETTLED, answer.state):
        return payment
    payment.state, payment.detail = answer.state, answer.detail[:300]
    payment.provider_ref = answer.ref or payment.provider_ref
    payment.settled_at = at
    payment.look_at = None if answer.state == IntentState.SETTLED else payment.look_at
    payment.save(update_fields=["state", "provider_ref", "detail", "settled_at", "look_at"])
    if answer.state == IntentState.SETTLED:
        _credit(payment, at=at)
    return payment


def _credit(payment: Payment, *, at: datetime) -> None:
    amount_micros = _micros(payment.amount_minor, payment.wallet)
    owner = payment.wallet.owner
    assert owner is not None  # a wallet has an owner
    wallets.top_up(
        owner=owner,
        currency=payment.wallet.currency,
        amount_micros=amount_micros,
        key=payment.provider_ref,
        by=f"provider:{payment.provider}",
        reason=payment.public_id,
        at=at,
        provider=payment.provider,
    )
    ledger.post(
        key=f"captured:{payment.pk}",
        kind="captured",
        legs=ledger.flow(limit(payment, at=at), refundable(payment, at=at), amount_micros),
        effective_at=at,
        at=at,
    )


def refundable_minor(payment: Payment, *, at: datetime) -> int:
    """Return what may still go back of a payment: what was captured, less what was refunded or is on its way."""
    ledger_row = refundable(payment, at=at).limited
    return ledger_row.balance_micros // currencies.get(payment.wallet.currency).micros_per_minor


@transaction.atomic
def begin_refund(*, payment_id: UUID, amount_minor: int, at: datetime, memo: str = "", by: str = "") -> Refund:
    """Take money out of the wallet to send it back where it came from; the loop sends it.

    Raises RefundAboveCapture for more than is left of the payment, InsufficientFunds for more than the wallet can
    spare, ValueError for nothing.
    """
    payment = Payment.objects.select_for_update(of=("self",), no_key=True).select_related("wallet").get(pk=payment_id)
    wallet, amount_micros = payment.wallet, _micros(amount_minor, payment.wallet)
    if amount_minor < 1:
        raise ValueError(f"{amount_minor} is no amount to refund")
    spare = wallets.pledgeable(wallet, wallets.refreshed(wallet, at=at), at=at)[-1][1]
    if spare < amount_micros:
        raise InsufficientFunds(
            "The wallet holds less than that.",
            needed=pricing.money(amount_micros, wallet.currency),
            missing=pricing.money(amount_micros - max(0, spare), wallet.currency),
        )
    n = payment.refunds.count()
    legs = ledger.flow(wallet, _transit(wallet, at=at), amount_micros)
    legs += ledger.flow(refundable(payment, at=at), limit(payment, at=at), amount_micros)
    try:
        ledger.post(
            key=f"refund:{payment.pk}:{n}", kind="refund", legs=legs, effective_at=at, at=at, memo=memo, by=by
        )  # fmt: skip
    except ledger.Overdrawn as error:
        raise RefundAboveCapture("More would go back than was paid.", payment=payment.public_id) from error
    exhaustion.refresh(accounts=[wallet.pk], at=at)
    return Refund.objects.create(
        payment=payment, n=n, key=f"refund:{payment.pk}:{n}", amount_minor=amount_minor, created_at=at
    )


def attempt_refund(*, refund_id: int, provider: Provider, at: datetime) -> Refund:
    """Ask the provider to send money back. An unknown outcome is only ever looked up, never sent again."""
    refund = Refund.objects.select_related("payment__wallet").get(pk=refund_id)
    payment = refund.payment
    answer: Answer | None = None
    try:
        if refund.state == IntentState.UNKNOWN:
            answer = provider.find(key=refund.key, charge_ref=payment.provider_ref)
        elif Refund.objects.filter(pk=refund_id, state=IntentState.CREATED).update(state=IntentState.UNKNOWN):
            # Unknown before the call: whoever dies in it, or comes at the same time, sends nothing a second time.
            answer = provider.refund(
                key=refund.key,
                charge_ref=payment.provider_ref,
                amount_minor=refund.amount_minor,
                currency=payment.wallet.currency,
            )
    except ProviderSilent:
        answer = None
    if answer is not None:
        _record_refund(refund_id, answer, at=at)
    return Refund.objects.get(pk=refund_id)


@transaction.atomic
def _record_refund(refund_id: int, answer: Answer, *, at: datetime) -> None:
    refund = Refund.objects.select_for_update(of=("self",)).select_related("payment__wallet").get(pk=refund_id)
    if refund.state in (IntentState.SETTLED, IntentState.REFUSED):
        return
    payment, wallet = refund.payment, refund.payment.wallet
    amount_micros, transit = _micros(refund.amount_minor, wallet), _transit(wallet, at=at)
    if answer.state == IntentState.SETTLED:
        cash = ledger.account(kind=AccountKind.CASH, currency=wallet.currency, part=payment.provider, at=at)
        legs = ledger.flow(transit, cash, amount_micros)
    else:
        legs = ledger.flow(transit, wallet, amount_micros)
        legs += ledger.flow(limit(payment, at=at), refundable(payment, at=at), amount_micros)
    ledger.lock([wallet.pk])
    ledger.post(key=f"{refund.key}:{answer.state}", kind="refund", legs=legs, effective_at=at, at=at)
    refund.state, refund.provider_ref, refund.settled_at = answer.state, answer.ref, at
    refund.save(update_fields=["state", "provider_ref", "settled_at"])
    exhaustion.refresh(accounts=[wallet.pk], at=at)


def paid_minor(*, owner: UUID, currency: str) -> int:
    """Return what an organization has paid in through providers."""
    settled = Payment.objects.filter(wallet__owner=owner, wallet__currency=currency, state=IntentState.SETTLED)
    return int(settled.aggregate(n=Sum("amount_minor", default=0))["n"])


@transaction.atomic
def refund_failed(*, refund_id: int, answer: Answer, at: datetime) -> bool:
    """Take note that money did not arrive: also of a refund that had succeeded, it is back in the wallet, once."""
    refund = Refund.objects.select_for_update(of=("self",)).select_related("payment__wallet").get(pk=refund_id)
    if refund.state != IntentState.SETTLED:
        _record_refund(refund_id, answer, at=at)
        return refund.state != IntentState.REFUSED
    payment, wallet = refund.payment, refund.payment.wallet
    amount_micros = _micros(refund.amount_minor, wallet)
    ledger.lock([wallet.pk])
    cash = ledger.account(kind=AccountKind.CASH, currency=wallet.currency, part=payment.provider, at=at)
    legs = ledger.flow(cash, wallet, amount_micros)
    legs += ledger.flow(limit(payment, at=at), refundable(payment, at=at), amount_micros)
    ledger.post(key=f"{refund.key}:returned", kind="refund", legs=legs, effective_at=at, at=at, memo=answer.detail)
    refund.state, refund.settled_at = IntentState.REFUSED, at
    refund.save(update_fields=["state", "settled_at"])
    exhaustion.refresh(accounts=[wallet.pk], at=at)
    return True


def _micros(amount_minor: int, wallet: Account) -> int:
    return amount_minor * currencies.get(wallet.currency).micros_per_minor


def refundable(payment: Payment, *, at: datetime) -> Account:
    wallet = payment.wallet
    return ledger.account(
        kind=AccountKind.REFUNDABLE, owner=wallet.owner, currency=wallet.currency, part=str(payment.pk), at=at
    )


def limit(payment: Payment, *, at: datetime) -> Account:
    return ledger.account(kind=AccountKind.REFUND_LIMIT, currency=payment.wallet.currency, at=at)


def _transit(wallet: Account, *, at: datetime) -> Account:
    return ledger.account(
        kind=AccountKind.PAYOUT_TRANSIT, owner=wallet.owner, currency=wallet.currency, part="refund", at=at
    )
