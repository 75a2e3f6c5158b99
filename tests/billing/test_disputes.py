"""Payments that a bank takes back, and refunds that fail after they had succeeded: by Stripe's notifications, as
recorded ("The Dispute object", "The Refund object" and the event types of its API reference)."""

import hashlib
import hmac
import itertools
import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from books import make_price, run
from django.test import Client, override_settings
from fake_stripe import FakeStripe, running

from apikit import clock
from audit.models import Entry
from billing import exhaustion, ledger, payment_providers, payments, pricing, reconcile, settling, wallets
from billing.models import Account, Dispute, Payment, Refund
from billing.models.accounts import AccountKind
from tests.apikit.conftest import Caller
from tests.factories import make_organization

pytestmark = pytest.mark.django_db
SECRET = "whsec_test"
NUMBERS = itertools.count()


@pytest.fixture
def fake() -> Iterator[FakeStripe]:
    with running() as server:
        yield server


@pytest.fixture
def caller(db: None, fake: FakeStripe) -> Iterator[Caller]:
    with override_settings(
        STRIPE_API_KEY="sk_test", STRIPE_URL=fake.url, PAYMENT_PROVIDERS=("stripe",), STRIPE_WEBHOOK_SECRETS=(SECRET,)
    ):
        yield Caller(make_organization(currency="USD"))


def _notify(caller: Caller, kind: str, said: dict[str, Any], *, event: str = "") -> Any:
    """Send an event of Stripe's shape, signed."""
    body = json.dumps(
        {
            "id": event or f"evt_{next(NUMBERS)}", "object": "event", "api_version": "2025-09-30.clover",
            "created": 1_764_590_000, "livemode": False, "pending_webhooks": 1, "type": kind, "data": {"object": said},
            "request": {"id": None, "idempotency_key": None},
        }
    ).encode()  # fmt: skip
    stamp = int(clock.now().timestamp())
    signature = hmac.new(SECRET.encode(), f"{stamp}.".encode() + body, hashlib.sha256).hexdigest()
    return Client().post(
        "/payments/stripe/events", body, content_type="application/json",
        headers={"Stripe-Signature": f"t={stamp},v1={signature}"},
    )  # fmt: skip


def _dispute(payment: Payment, amount: int = 1_000, **change: Any) -> dict[str, Any]:
    return {
        "id": "dp_1", "object": "dispute", "amount": amount, "balance_transactions": [], "charge": "ch_1",
        "currency": "usd", "enhanced_eligibility_types": [], "evidence_details": {"due_by": 1_765_000_000},
        "is_charge_refundable": False, "livemode": False, "metadata": {}, "payment_intent": payment.provider_ref,
        "reason": "fraudulent", "status": "needs_response", **change,
    }  # fmt: skip


def _refund(refund: Refund, **change: Any) -> dict[str, Any]:
    return {
        "id": "re_1", "object": "refund", "amount": refund.amount_minor, "charge": "ch_1", "currency": "usd",
        "failure_balance_transaction": "txn_2", "failure_reason": "lost_or_stolen_card",
        "metadata": {"key": refund.key}, "payment_intent": refund.payment.provider_ref, "status": "failed", **change,
    }  # fmt: skip


def _pay(caller: Caller, fake: FakeStripe, amount: str = "10.00", key: str = "idem-key-0") -> Payment:
    asked = {"amount": {"amount": amount, "currency": "USD"}}
    answer = caller.post("/api/v1/wallet/top-ups", asked, Idempotency_Key=key)
    assert answer.status_code == 201, answer.json()
    payment = Payment.objects.exclude(state="settled").get()
    fake.pay(payment.provider_ref)
    settling.settle_due(providers=payment_providers.configured(), at=payment.created_at + timedelta(minutes=3))
    return Payment.objects.select_related("wallet").get(pk=payment.pk)


def _money(caller: Caller) -> int:
    return wallets.balance(owner=caller.organization.pk, currency="USD", at=clock.now()).balance_micros


def _well() -> None:
    assert reconcile.findings() == []


def test_a_disputed_payment_is_taken_back_once_whatever_its_notifications(caller: Caller, fake: FakeStripe) -> None:
    payment = _pay(caller, fake)

    first = _notify(caller, "charge.dispute.created", _dispute(payment), event="evt_same")
    again = _notify(caller, "charge.dispute.created", _dispute(payment), event="evt_same")
    other = _notify(caller, "charge.dispute.funds_withdrawn", _dispute(payment))

    assert [answer.status_code for answer in (first, again, other)] == [200, 200, 200]
    assert [answer.json()["acted"] for answer in (first, again, other)] == [True, False, True]
    assert _money(caller) == 0
    assert payments.refundable_minor(payment, at=clock.now()) == 0
    assert Entry.objects.get(action="payment.dispute_opened").target == payment.public_id
    _well()


def test_what_was_spent_already_is_a_debt_that_the_next_money_pays(caller: Caller, fake: FakeStripe) -> None:
    payment = _pay(caller, fake)
    wallets.set_credit_line(owner=caller.organization.pk, currency="USD", credit_micros=5_000_000, at=clock.now())
    at = clock.now()
    run(payer=caller.organization.pk, price=make_price(7_200_000), at=at - timedelta(hours=1))

    _notify(caller, "charge.dispute.created", _dispute(payment))

    dispute = Dispute.objects.get()
    left = dispute.taken_micros  # what had not run yet: 10 less 7.2 and some seconds
    assert 2_700_000 < left <= 2_800_000
    assert dispute.owed_micros == 10_000_000 - left
    assert _money(caller) == 10_000_000 - left  # it is there for what has run
    assert wallets.owed_micros(payment.wallet) == dispute.owed_micros
    (shown,) = caller.get("/api/v1/wallet").json()["balances"]
    assert shown["owed"] == pricing.money(dispute.owed_micros, "USD")
    _pay(caller, fake, "5.00", "idem-key-1")
    owed = wallets.owed_micros(payment.wallet)
    assert 2_200_000 < owed < 2_700_000  # three minutes more have run since, and they are kept
    _pay(caller, fake, "9.00", "idem-key-2")
    assert wallets.owed_micros(payment.wallet) == 0
    _well()


def test_a_lease_of_a_wallet_that_was_emptied_is_due_to_stop(caller: Caller, fake: FakeStripe) -> None:
    payment = _pay(caller, fake)
    lease = run(payer=caller.organization.pk, price=make_price(3_600), at=clock.now())
    assert exhaustion.due_references(at=clock.now() + timedelta(seconds=30)) == []

    _notify(caller, "charge.dispute.created", _dispute(payment))

    assert exhaustion.due_references(at=clock.now() + timedelta(seconds=30)) == [lease]


def test_one_that_is_won_comes_back_once_to_the_debt_first(caller: Caller, fake: FakeStripe) -> None:
    payment = _pay(caller, fake)
    payments.begin_refund(payment_id=payment.pk, amount_minor=400, at=clock.now())

    _notify(caller, "charge.dispute.created", _dispute(payment))
    assert (_money(caller), wallets.owed_micros(payment.wallet)) == (0, 4_000_000)
    for kind in ("charge.dispute.funds_reinstated", "charge.dispute.closed", "charge.dispute.funds_reinstated"):
        assert _notify(caller, kind, _dispute(payment, status="won")).status_code == 200

    assert (_money(caller), wallets.owed_micros(payment.wallet)) == (6_000_000, 0)
    assert payments.refundable_minor(payment, at=clock.now()) == 600
    assert Dispute.objects.get().state == "won"
    assert Entry.objects.filter(action="payment.dispute_won").count() == 1  # told once, however often it came
    _well()


def test_news_in_the_wrong_order_leave_the_same_books(caller: Caller, fake: FakeStripe) -> None:
    payment = _pay(caller, fake)

    for kind, status in (("closed", "won"), ("funds_reinstated", "won"), ("created", "needs_response")):
        assert _notify(caller, f"charge.dispute.{kind}", _dispute(payment, status=status)).status_code == 200

    assert _money(caller) == 10_000_000
    _well()


def test_one_that_is_lost_stays_taken_and_an_inquiry_takes_nothing(caller: Caller, fake: FakeStripe) -> None:
    payment = _pay(caller, fake)

    asked = _notify(caller, "charge.dispute.created", _dispute(payment, status="warning_needs_response"))
    assert (asked.json()["acted"], _money(caller)) == (False, 10_000_000)
    _notify(caller, "charge.dispute.funds_withdrawn", _dispute(payment, 250))
    _notify(caller, "charge.dispute.closed", _dispute(payment, 250, status="lost"))

    assert (_money(caller), Dispute.objects.get().state) == (7_500_000, "lost")
    _well()


@pytest.mark.parametrize(
    "change", [{"amount": 1_001}, {"amount": 0}, {"amount": -5}, {"amount": True}, {"amount": "9"}, {"currency": "eur"}]
)
def test_a_dispute_that_does_not_fit_its_payment_moves_nothing(
    caller: Caller, fake: FakeStripe, change: dict[str, Any]
) -> None:
    payment = _pay(caller, fake)

    answer = _notify(caller, "charge.dispute.created", _dispute(payment) | change)

    assert answer.status_code == 422
    assert (_money(caller), Dispute.objects.count()) == (10_000_000, 0)


def test_a_second_dispute_takes_no_more_than_was_paid(caller: Caller, fake: FakeStripe) -> None:
    payment = _pay(caller, fake)
    _notify(caller, "charge.dispute.created", _dispute(payment, 600))

    over = _notify(caller, "charge.dispute.created", _dispute(payment, 401, id="dp_2"))
    rest = _notify(caller, "charge.dispute.created", _dispute(payment, 400, id="dp_3"))

    assert (over.status_code, rest.status_code, _money(caller)) == (422, 200, 0)
    _well()


def test_one_of_a_payment_that_is_not_ours_is_nothing_to_us(caller: Caller, fake: FakeStripe) -> None:
    payment = _pay(caller, fake)

    for change in ({"payment_intent": "pi_other"}, {"payment_intent": None}):
        assert _notify(caller, "charge.dispute.created", _dispute(payment) | change).json() == {"acted": False}

    assert _money(caller) == 10_000_000


def test_the_loop_pays_a_debt_when_what_was_held_is_free_again(caller: Caller, fake: FakeStripe) -> None:
    payment = _pay(caller, fake)
    refund = payments.begin_refund(payment_id=payment.pk, amount_minor=1_000, at=clock.now())
    _notify(caller, "charge.dispute.created", _dispute(payment))
    assert wallets.owed_micros(payment.wallet) == 10_000_000
    fake.faults = ["declined"]  # the refund: its money is back in the wallet

    for _ in range(2):
        settling.settle_due(providers=payment_providers.configured(), at=clock.now())

    assert Refund.objects.get(pk=refund.pk).state == "refused"
    assert (_money(caller), wallets.owed_micros(payment.wallet)) == (0, 0)
    _well()


def test_a_debt_that_cannot_be_paid_keeps_no_other_from_it(
    caller: Caller, fake: FakeStripe, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[int] = []

    def pay_debt(*, wallet: Account, at: Any) -> int:
        tried.append(wallet.pk)
        raise RuntimeError("it cannot be paid")

    for owner in (make_organization(currency="USD"), make_organization(currency="USD")):
        wallet = wallets.account_of(owner=owner.pk, currency="USD", at=clock.now())
        cash = ledger.account(kind=AccountKind.CASH, currency="USD", part="stripe", at=clock.now())
        legs = ledger.flow(wallets.debt_of(wallet, at=clock.now()), cash, 1_000_000)
        ledger.post(key=f"owes {owner.pk}", kind="dispute", legs=legs, effective_at=clock.now(), at=clock.now())
    monkeypatch.setattr(wallets, "pay_debt", pay_debt)

    settling.settle_due(providers={}, at=clock.now())

    assert len(set(tried)) == 2


@pytest.mark.parametrize("kind", ["refund.failed", "refund.updated", "charge.refund.updated"])
def test_a_refund_that_fails_after_it_succeeded_is_back_in_the_wallet_exactly_once(
    caller: Caller, fake: FakeStripe, kind: str
) -> None:
    payment = _pay(caller, fake)
    payments.begin_refund(payment_id=payment.pk, amount_minor=400, at=clock.now())
    settling.settle_due(providers=payment_providers.configured(), at=clock.now())
    refund = Refund.objects.get()
    assert (refund.state, _money(caller)) == ("settled", 6_000_000)

    acted = [_notify(caller, kind, _refund(refund)).json()["acted"] for _ in range(3)]
    settling.settle_due(providers=payment_providers.configured(), at=clock.now())

    assert acted == [True, False, False]
    assert (Refund.objects.get().state, _money(caller)) == ("refused", 10_000_000)
    assert payments.refundable_minor(payment, at=clock.now()) == 1_000  # it may be sent again
    assert [made["amount"] for made in fake.made("refund")] == [400]
    _well()


def test_one_that_fails_before_we_knew_that_it_succeeded_is_back_once_too(caller: Caller, fake: FakeStripe) -> None:
    payment = _pay(caller, fake)
    refund = payments.begin_refund(payment_id=payment.pk, amount_minor=400, at=clock.now())
    other = _notify(caller, "refund.failed", _refund(refund, amount=401))
    unsaid = _notify(caller, "refund.updated", _refund(refund, status="pending"))

    acted = [_notify(caller, "refund.failed", _refund(refund)).json()["acted"] for _ in range(2)]

    assert (other.json()["acted"], unsaid.json()["acted"], acted) == (False, False, [True, False])
    assert (Refund.objects.get().state, _money(caller)) == ("refused", 10_000_000)
    _well()


@pytest.mark.books_are_wrong
def test_reconcile_names_a_dispute_whose_money_did_not_go(caller: Caller, fake: FakeStripe) -> None:
    payment = _pay(caller, fake)
    _notify(caller, "charge.dispute.created", _dispute(payment))
    Dispute.objects.update(owed_micros=1)

    (finding,) = reconcile.findings()

    assert (finding.row, "came back" in finding.detail) == (str(Dispute.objects.get().pk), True)
    assert Account.objects.filter(kind="dispute_debt").count() == 1
