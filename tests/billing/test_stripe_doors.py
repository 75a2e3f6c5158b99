"""Stripe from a tenant's request to his wallet and back: through the doors and the loop, against the local fake."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from books import NOON, after, make_owner, make_price, run
from django.db import connection
from django.test import Client, override_settings
from django.urls import reverse
from fake_stripe import FakeStripe, running
from provider import PaperProvider

from accounts.models import User
from audit.models import Entry
from billing import metering, payment_providers, payments, payouts, settling, wallets
from billing.models import Payment, Payout, Refund
from tests.apikit.conftest import Caller
from tests.factories import make_organization

pytestmark = pytest.mark.django_db
TEN = {"amount": {"amount": "10.00", "currency": "USD"}}


@pytest.fixture
def fake() -> Iterator[FakeStripe]:
    with running() as server:
        yield server


@pytest.fixture
def caller(db: None, fake: FakeStripe) -> Iterator[Caller]:
    organization = make_organization(currency="USD")
    with override_settings(
        STRIPE_API_KEY="sk_test", STRIPE_URL=fake.url, PAYMENT_PROVIDERS=("stripe",),
        STRIPE_ACCOUNTS={str(organization.pk): "acct_1"}, PAYOUT_PROVIDER="stripe",
    ):  # fmt: skip
        yield Caller(organization)


def _settle(at: Any) -> int:
    return settling.settle_due(providers=payment_providers.configured(), at=at)


def _money(caller: Caller) -> int:
    return wallets.balance(owner=caller.organization.pk, currency="USD", at=NOON).balance_micros


def test_a_top_up_opens_one_payment_and_gives_its_secret_to_whom_began_it(caller: Caller, fake: FakeStripe) -> None:
    begun = [caller.post("/api/v1/wallet/top-ups", TEN, Idempotency_Key="idem-key-0") for _ in range(2)]

    assert [answer.status_code for answer in begun] == [201, 201]
    assert {answer.json()["client_secret"] for answer in begun} == {"pi_1_secret_x"}
    (intent,) = fake.made("payment_intent")
    assert (intent["amount"], intent["metadata"]["payment"]) == (1_000, begun[0].json()["id"])
    assert caller.get(f"/api/v1/wallet/top-ups/{begun[0].json()['id']}").json()["client_secret"] is None
    assert _money(caller) == 0


def test_long_keys_that_differ_in_their_end_alone_begin_two_payments(caller: Caller, fake: FakeStripe) -> None:
    begun = [caller.post("/api/v1/wallet/top-ups", TEN, Idempotency_Key="k" * 200 + end) for end in "ab"]

    assert len({answer.json()["id"] for answer in begun}) == 2
    assert len(fake.made("payment_intent")) == 2


@pytest.mark.parametrize("fault", ["drop", 500])
def test_a_provider_that_does_not_answer_is_503_and_the_same_request_goes_on(
    caller: Caller, fake: FakeStripe, fault: object
) -> None:
    fake.faults = [fault]
    silent = caller.post("/api/v1/wallet/top-ups", TEN, Idempotency_Key="idem-key-0")

    again = caller.post("/api/v1/wallet/top-ups", TEN, Idempotency_Key="idem-key-0")

    assert (silent.status_code, again.status_code) == (503, 201)
    assert silent.json()["type"].endswith("payment-provider-away")
    assert len(fake.made("payment_intent")) == Payment.objects.count() == 1
    assert again.json()["client_secret"]


def test_what_the_provider_does_not_take_is_refused_and_nothing_is_credited(caller: Caller, fake: FakeStripe) -> None:
    fake.faults = ["declined"]

    refused = caller.post("/api/v1/wallet/top-ups", TEN, Idempotency_Key="idem-key-1")
    no_such = caller.post(
        "/api/v1/wallet/top-ups", {"amount": {"amount": "500", "currency": "ISK"}}, Idempotency_Key="idem-key-2"
    )

    assert (refused.status_code, no_such.status_code) == (422, 422)
    assert not fake.made("payment_intent")
    assert _money(caller) == 0


def test_a_payment_whose_notification_never_came_is_found_by_the_loop_and_credited_once(
    caller: Caller, fake: FakeStripe
) -> None:
    caller.post("/api/v1/wallet/top-ups", TEN, Idempotency_Key="idem-key-0")
    payment = Payment.objects.get()
    at = payment.created_at

    assert _settle(at + timedelta(minutes=1)) == 0  # the notification has its time first
    assert _settle(at + timedelta(minutes=3)) == 1
    assert _money(caller) == 0
    fake.pay(payment.provider_ref)
    for minutes in (3, 6, 9):
        _settle(at + timedelta(minutes=minutes))

    assert _money(caller) == 10_000_000
    assert Payment.objects.get().state == "settled"
    assert _settle(at + timedelta(days=30)) == 0


def test_one_that_nobody_confirms_is_cancelled_in_the_end_and_asked_about_no_more(
    caller: Caller, fake: FakeStripe
) -> None:
    caller.post("/api/v1/wallet/top-ups", TEN, Idempotency_Key="idem-key-0")
    at = Payment.objects.get().created_at

    _settle(at + settling.GIVE_UP)

    assert fake.made("payment_intent")[0]["status"] == "canceled"
    assert Payment.objects.get().state == "refused"
    assert _settle(at + settling.GIVE_UP * 2) == 0


def test_one_payment_that_cannot_be_looked_at_does_not_keep_the_loop_from_the_next(
    caller: Caller, fake: FakeStripe, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(2):
        caller.post("/api/v1/wallet/top-ups", TEN, Idempotency_Key=f"idem-key-{number}")
    bad, good = Payment.objects.order_by("look_at", "pk")
    fake.pay(good.provider_ref)
    look = payments.look

    def fails_for_one(*, payment_id: int, **more: Any) -> Any:
        if payment_id == bad.pk:
            raise KeyError("an answer of a shape that nobody expected")
        return look(payment_id=payment_id, **more)

    monkeypatch.setattr(payments, "look", fails_for_one)

    _settle(good.created_at + timedelta(minutes=3))

    assert _money(caller) == 10_000_000
    assert Payment.objects.get(pk=bad.pk).look_at > good.created_at + timedelta(minutes=3)  # its turn comes again


def test_one_that_is_paid_as_it_is_given_up_is_credited(caller: Caller, fake: FakeStripe) -> None:
    caller.post("/api/v1/wallet/top-ups", TEN, Idempotency_Key="idem-key-0")
    payment = Payment.objects.get()
    fake.pay(payment.provider_ref)

    _settle(payment.created_at + settling.GIVE_UP)

    assert _money(caller) == 10_000_000


def test_a_refund_goes_back_through_the_provider_by_the_loop(caller: Caller, fake: FakeStripe) -> None:
    caller.post("/api/v1/wallet/top-ups", TEN, Idempotency_Key="idem-key-0")
    payment = Payment.objects.get()
    fake.pay(payment.provider_ref)
    at = payment.created_at + timedelta(minutes=3)
    _settle(at)
    payments.begin_refund(payment_id=payment.pk, amount_minor=400, at=at)
    fake.faults = ["drop"]

    states = []
    for _ in range(3):
        _settle(at)
        states.append(Refund.objects.get().state)

    assert states == ["unknown", "settled", "settled"]
    assert [made["amount"] for made in fake.made("refund")] == [400]
    assert _money(caller) == 6_000_000


def test_two_who_come_to_a_refund_at_once_send_it_once(caller: Caller, fake: FakeStripe) -> None:
    caller.post("/api/v1/wallet/top-ups", TEN, Idempotency_Key="idem-key-0")
    payment = Payment.objects.get()
    fake.pay(payment.provider_ref)
    at = payment.created_at + timedelta(minutes=3)
    _settle(at)
    refund = payments.begin_refund(payment_id=payment.pk, amount_minor=400, at=at)
    inner: list[bool] = []
    provider = PaperProvider(key_memory_h=0)  # it has forgotten the key, and would send again

    def the_other_is_faster(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if sql.startswith('UPDATE "billing_refund"') and not inner:
            inner.append(True)  # this one has read it as created, and has not said so yet
            payments.attempt_refund(refund_id=refund.pk, provider=provider, at=at)
        return execute(sql, params, many, context)

    with connection.execute_wrapper(the_other_is_faster):
        payments.attempt_refund(refund_id=refund.pk, provider=provider, at=at)

    assert (inner, provider.count()) == ([True], 1)
    assert Refund.objects.get().state == "settled"
    assert _money(caller) == 6_000_000


def test_a_payout_is_sent_once_by_the_loop(caller: Caller, fake: FakeStripe) -> None:
    owner = caller.organization.pk
    lease = run(payer=make_owner(10**9), payee=owner, price=make_price(7_000_000), commission_bp=0)
    metering.finish(reference=lease, at=after(3600), ended_by="tenant")
    payouts.request(owner=owner, currency="USD", period="p", provider="stripe", at=after(3600))
    by_hand = payouts.request(
        owner=_earner(), currency="USD", period="p", provider="offline", at=after(3600)
    )  # fmt: skip
    fake.faults = ["drop"]

    for _ in range(3):
        _settle(after(3600))

    assert [made["amount"] for made in fake.made("transfer")] == [700]
    assert Payout.objects.get(provider="stripe").state == "settled"
    assert Payout.objects.get(pk=by_hand.pk).state == "created"


def _earner() -> Any:
    owner = make_owner()
    lease = run(payer=make_owner(10**9), payee=owner, price=make_price(7_000_000), commission_bp=0)
    metering.finish(reference=lease, at=after(3600), ended_by="tenant")
    return owner


def test_without_its_key_there_is_no_provider_and_the_door_says_so(caller: Caller, fake: FakeStripe) -> None:
    with override_settings(STRIPE_API_KEY="", PAYMENT_PROVIDERS=()):
        answer = caller.post("/api/v1/wallet/top-ups", TEN, Idempotency_Key="idem-key-0")

        assert payment_providers.configured() == {}
        assert (answer.status_code, answer.json()["type"].rpartition("/")[2]) == (409, "no-payment-provider")
    assert fake.calls == []
    assert not Payment.objects.exists()


def test_an_operator_sends_part_of_a_payment_back_once_a_form(caller: Caller, fake: FakeStripe) -> None:
    caller.post("/api/v1/wallet/top-ups", TEN, Idempotency_Key="idem-key-0")
    payment = Payment.objects.get()
    fake.pay(payment.provider_ref)
    at = payment.created_at + timedelta(minutes=3)
    _settle(at)
    admin = Client()
    admin.force_login(User.objects.create_superuser("root@example.org", "root@example.org"))
    form = {"payment": payment.public_id, "currency": "USD", "amount": "4.00", "reason": "asked for", "key": "f1"}

    answers = [
        admin.post(reverse("admin:billing_account_refund"), {**form, **change}).status_code
        for change in ({}, {}, {"key": "f2", "amount": "6.01"}, {"key": "f3", "currency": "CNY"}, {"payment": "x"})
    ]
    _settle(at)

    assert answers == [302, 302, 200, 200, 200]
    assert [made["amount"] for made in fake.made("refund")] == [400]
    assert _money(caller) == 6_000_000
    assert Entry.objects.get(action="payment.refunded").why == "asked for"


def test_one_that_we_died_over_before_it_was_opened_is_over_after_a_week(caller: Caller, fake: FakeStripe) -> None:
    payments.begin(
        owner=caller.organization.pk, currency="USD", amount_minor=1_000, provider="stripe", key="k", at=NOON
    )  # fmt: skip

    assert _settle(NOON + timedelta(hours=2)) == 1
    assert Payment.objects.get().state == "created"
    _settle(NOON + settling.GIVE_UP)

    assert Payment.objects.get().state == "refused"
    assert fake.calls == []
