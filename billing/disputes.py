"""A bank takes a payment back: its money leaves the wallet as far as it is there, and the rest is a debt.

The provider's notifications come in any order and more than once: each dispute is taken once and given back once. The
wallet never passes zero for it, nor uses its credit line: what runs is not stopped by a sum that is not there, but by
the wallet that is empty. A debt is paid out of the next money that comes in.
"""

from datetime import datetime

from django.db import transaction
from django.db.models import Sum

from audit import log
from billing import currencies, documents, exhaustion, ledger, payments, pricing, wallets
from billing.models import Account, Dispute, Payment
from billing.models.accounts import AccountKind
from billing.models.disputes import DisputeState
from billing.models.payments import IntentState
from outbox import messages


@transaction.atomic
def take(*, payment: Payment, ref: str, amount_minor: int, reason: str, at: datetime) -> Dispute:
    """Take back what was credited, once per dispute. Raises ValueError for more than the payment, or an unpaid one."""
    payment = Payment.objects.select_for_update(of=("self",), no_key=True).select_related("wallet").get(pk=payment.pk)
    known = Dispute.objects.filter(ref=ref).first()
    if known is not None:
        return known
    disputed = Dispute.objects.filter(payment=payment).exclude(state=DisputeState.WON)
    before = disputed.aggregate(n=Sum("amount_minor", default=0))["n"]
    if payment.state != IntentState.SETTLED or not 0 < amount_minor <= payment.amount_minor - before:
        raise ValueError("the dispute is of more than was paid")
    wallet = payment.wallet
    amount_micros = amount_minor * currencies.get(wallet.currency).micros_per_minor
    ledger.lock([wallet.pk])
    taken = min(amount_micros, wallets.spare_micros(wallet, at=at))
    unrefundable = min(amount_micros, payments.refundable(payment, at=at).limited.balance_micros)
    cash = ledger.account(kind=AccountKind.CASH, currency=wallet.currency, part=payment.provider, at=at)
    legs = ledger.flow(wallet, cash, taken) + ledger.flow(wallets.debt_of(wallet, at=at), cash, amount_micros - taken)
    legs += ledger.flow(payments.refundable(payment, at=at), payments.limit(payment, at=at), unrefundable)
    ledger.post(key=f"dispute:{ref}", kind="dispute", legs=legs, effective_at=at, at=at, memo=reason[:300])
    exhaustion.refresh(accounts=[wallet.pk], at=at)
    dispute = Dispute.objects.create(
        payment=payment, ref=ref, amount_minor=amount_minor, reason=reason[:100], opened_at=at, taken_micros=taken,
        owed_micros=amount_micros - taken, unrefundable_micros=unrefundable,
    )  # fmt: skip
    _tell(dispute, "opened", at=at)
    return dispute


@transaction.atomic
def close(*, dispute: Dispute, won: bool, at: datetime) -> Dispute:
    """Write down how it ended, once: what is won comes back, to what is owed first and then to the wallet."""
    dispute = Dispute.objects.select_for_update(of=("self",), no_key=True).get(pk=dispute.pk)
    # The provider gives money back also of one that was lost: a decision that was turned round.
    if dispute.state == DisputeState.WON or (not won and dispute.state == DisputeState.LOST):
        return dispute
    dispute.state, dispute.closed_at = DisputeState.WON if won else DisputeState.LOST, at
    dispute.save(update_fields=["state", "closed_at"])
    if won:
        _give_back(dispute, at=at)
    _tell(dispute, dispute.state, at=at)
    return dispute


def _give_back(dispute: Dispute, *, at: datetime) -> None:
    payment, wallet = dispute.payment, dispute.payment.wallet
    ledger.lock([wallet.pk])
    amount_micros = dispute.taken_micros + dispute.owed_micros
    to_debt = min(amount_micros, wallets.owed_micros(wallet))
    cash = ledger.account(kind=AccountKind.CASH, currency=wallet.currency, part=payment.provider, at=at)
    limit, refundable = payments.limit(payment, at=at), payments.refundable(payment, at=at)
    legs = ledger.flow(cash, wallets.debt_of(wallet, at=at), to_debt)
    legs += ledger.flow(cash, wallet, amount_micros - to_debt)
    legs += ledger.flow(limit, refundable, dispute.unrefundable_micros)
    ledger.post(key=f"dispute:{dispute.ref}:won", kind="dispute", legs=legs, effective_at=at, at=at)
    exhaustion.refresh(accounts=[wallet.pk], at=at)


def owing() -> list[Account]:
    """Return the wallets whose organizations owe something."""
    debts = Account.objects.filter(kind=AccountKind.DISPUTE_DEBT).values_list("owner", "currency")
    found = [Account.objects.get(kind=AccountKind.WALLET, owner=owner, currency=currency) for owner, currency in debts]
    return [wallet for wallet in found if wallets.owed_micros(wallet) > 0]


def _tell(dispute: Dispute, what: str, *, at: datetime) -> None:
    """Tell the organization by an event, and operators in the audit log."""
    payment, currency = dispute.payment, dispute.payment.wallet.currency
    said = {
        "payment": payment.public_id, "state": what, "amount": documents.minor(dispute.amount_minor, currency),
        "taken": pricing.money(dispute.taken_micros, currency), "owed": pricing.money(dispute.owed_micros, currency),
    }  # fmt: skip
    owner = payment.wallet.owner
    messages.post(
        topic="wallet.disputed", key=f"wallet.disputed:{dispute.ref}:{what}", payload=said, organization_id=owner, at=at
    )
    log.record(
        actor=f"provider:{payment.provider}", organization=owner, action=f"payment.dispute_{what}",
        target=payment.public_id, after=said, why=dispute.reason or dispute.ref, at=at,
    )  # fmt: skip
