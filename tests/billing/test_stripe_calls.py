"""What we say to Stripe, and what we make of its answers: against a fake of it on this machine."""

from collections.abc import Iterator
from uuid import UUID

import pytest
from books import NOON, after, make_owner, make_price, run
from fake_stripe import FakeStripe, running

from billing import metering, payments, payouts, wallets
from billing.models import Payment, Payout, Refund
from billing.stripe_calls import Stripe

pytestmark = pytest.mark.django_db


@pytest.fixture
def fake() -> Iterator[FakeStripe]:
    with running() as server:
        yield server


def _stripe(fake: FakeStripe, owner: UUID | None = None) -> Stripe:
    return Stripe(api_key="sk_test", accounts={str(owner): "acct_1"}, url=fake.url)


def _payment(owner: UUID) -> Payment:
    return payments.begin(owner=owner, currency="USD", amount_minor=2_500, provider="stripe", key="k1", at=NOON)


def _money(owner: UUID) -> int:
    return wallets.balance(owner=owner, currency="USD", at=NOON).balance_micros


def test_a_charge_carries_our_key_and_credits_once(fake: FakeStripe) -> None:
    owner = make_owner()
    payment = _payment(owner)

    for _ in range(3):
        payments.attempt(payment_id=payment.pk, provider=_stripe(fake), at=NOON)

    assert _money(owner) == 25_000_000
    (call,) = fake.calls
    assert call[:2] == ("POST", "/v1/payment_intents")
    assert call[2] == {"amount": "2500", "currency": "usd", "confirm": "true", "metadata[key]": "k1"}
    assert call[3] == "k1"


@pytest.mark.parametrize("fault", ["drop", 500])
def test_a_lost_answer_is_unknown_and_the_record_or_the_same_key_settles_it(fake: FakeStripe, fault: object) -> None:
    owner = make_owner()
    payment, fake.faults = _payment(owner), [fault]

    assert payments.attempt(payment_id=payment.pk, provider=_stripe(fake), at=NOON).state == "unknown"
    assert _money(owner) == 0
    assert payments.attempt(payment_id=payment.pk, provider=_stripe(fake), at=NOON).state == "settled"

    assert _money(owner) == 25_000_000
    assert len(fake.made("payment_intent")) == 1


def test_a_declined_card_is_refused_and_one_that_is_processing_stays_unknown(fake: FakeStripe) -> None:
    owner = make_owner()
    payment, fake.faults = _payment(owner), ["pending"]
    assert payments.attempt(payment_id=payment.pk, provider=_stripe(fake), at=NOON).state == "unknown"
    other = payments.begin(owner=owner, currency="USD", amount_minor=1, provider="stripe", key="k2", at=NOON)
    fake.faults = ["declined"]

    refused = payments.attempt(payment_id=other.pk, provider=_stripe(fake), at=NOON)

    assert (refused.state, refused.detail) == ("refused", "card_declined")
    assert _money(owner) == 0


def test_a_refund_with_a_lost_answer_is_looked_up_and_never_sent_again(fake: FakeStripe) -> None:
    owner = make_owner()
    payment = payments.attempt(payment_id=_payment(owner).pk, provider=_stripe(fake), at=NOON)
    refund = payments.begin_refund(payment_id=payment.pk, amount_minor=1_000, at=NOON)
    fake.faults = ["drop"]

    states = [
        payments.attempt_refund(refund_id=refund.pk, provider=_stripe(fake), at=NOON).state for _ in range(3)
    ]  # fmt: skip

    assert states == ["unknown", "settled", "settled"]
    assert [made["amount"] for made in fake.made("refund")] == [1_000]
    sent = [form for method, path, form, _ in fake.calls if (method, path) == ("POST", "/v1/refunds")]
    assert sent == [
        {"payment_intent": payment.provider_ref, "amount": "1000", "metadata[key]": Refund.objects.get().key}
    ]
    assert _money(owner) == 15_000_000


@pytest.mark.parametrize("others", ["of others", "of the same payment"])
def test_a_refund_is_found_however_many_came_after_it(fake: FakeStripe, others: str) -> None:
    owner = make_owner()
    payment = payments.attempt(payment_id=_payment(owner).pk, provider=_stripe(fake), at=NOON)
    refund = payments.begin_refund(payment_id=payment.pk, amount_minor=1_000, at=NOON)
    fake.faults = ["drop"]
    payments.attempt_refund(refund_id=refund.pk, provider=_stripe(fake), at=NOON)
    of = payment.provider_ref if others == "of the same payment" else "pi_other"
    for n in range(230):
        fake.objects.append({"id": f"re_x{n}", "object": "refund", "amount": 1, "status": "succeeded",
                             "payment_intent": of, "metadata": {"key": f"other:{n}"}})  # fmt: skip

    assert payments.attempt_refund(refund_id=refund.pk, provider=_stripe(fake), at=NOON).state == "settled"
    asked = [form for method, path, form, _ in fake.calls if (method, path) == ("GET", "/v1/refunds")]
    assert len(asked) == (1 if others == "of others" else 3)


def test_a_payout_goes_to_the_owners_account_once_and_one_without_an_account_is_refused(fake: FakeStripe) -> None:
    owner, stranger = make_owner(), make_owner()
    for payee in (owner, stranger):
        lease = run(payer=make_owner(10**9), payee=payee, price=make_price(7_000_000), commission_bp=0)
        metering.finish(reference=lease, at=after(3600), ended_by="tenant")
    ask = {"currency": "USD", "period": "p", "provider": "stripe", "at": after(3600)}
    paid, refused = payouts.request(owner=owner, **ask), payouts.request(owner=stranger, **ask)
    fake.faults = ["drop"]

    states = [
        payouts.send(payout_id=paid.pk, provider=_stripe(fake, owner), at=after(3600)).state for _ in range(3)
    ]  # fmt: skip

    assert states == ["unknown", "settled", "settled"]
    (transfer,) = fake.made("transfer")
    assert (transfer["amount"], transfer["destination"]) == (700, "acct_1")
    assert payouts.send(payout_id=refused.pk, provider=_stripe(fake, owner), at=after(3600)).state == "refused"
    assert Payout.objects.filter(state="settled").count() == 1


def test_a_server_that_is_away_leaves_everything_unknown() -> None:
    owner = make_owner()
    payment = _payment(owner)
    nobody = Stripe(api_key="sk_test", url="http://127.0.0.1:1")

    assert payments.attempt(payment_id=payment.pk, provider=nobody, at=NOON).state == "unknown"
    assert _money(owner) == 0
