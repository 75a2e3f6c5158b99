"""The doors to money: who may, what they say, and that nobody sees another's."""

import hashlib
import hmac
import json
from typing import Any

import pytest
from books import NOON, give, make_price, run
from django.test import Client, override_settings

from apikit import clock
from billing import budgets, invoicing, metering, payments, vouchers
from billing.models import Budget, Payment
from billing.models.terms import BudgetAction
from tests.apikit.conftest import Caller
from tests.factories import make_organization

pytestmark = pytest.mark.django_db


@pytest.fixture
def caller(db: None) -> Caller:
    return Caller(make_organization(currency="USD"))


def test_a_wallet_shows_what_is_in_it_and_what_runs(caller: Caller) -> None:
    give(caller.organization.pk, 5_000_000)
    run(payer=caller.organization.pk, price=make_price(3_600_000), at=clock.now())

    (found,) = caller.get("/api/v1/wallet").json()["balances"]

    assert found["balance"] == {"amount": "5.000000", "currency": "USD"}
    assert found["burn"] == {"amount": "3.600000", "currency": "USD", "per": "hour"}
    assert found["exhausts_at"].endswith("Z")


def test_entries_and_statement_are_the_organizations_own(caller: Caller) -> None:
    stranger = Caller(make_organization(currency="USD"))
    give(caller.organization.pk, 5_000_000, at=NOON)
    lease = run(payer=caller.organization.pk, price=make_price(3_600_000), at=NOON)
    metering.finish(reference=lease, at=NOON.replace(minute=1), ended_by="tenant")

    entries = caller.get("/api/v1/ledger-entries").json()["items"]
    (month,) = caller.get(f"/api/v1/statements?year={NOON.year}&month={NOON.month}").json()["items"]

    assert [entry["amount"]["amount"] for entry in entries] == ["-0.060000", "5.000000"]
    assert month["charged"]["amount"] == "0.060000"
    assert month["references"][0]["lines"][0]["seconds"] == 60
    assert stranger.get("/api/v1/ledger-entries").json()["items"] == []


def test_a_top_up_without_a_provider_is_refused_and_writes_nothing(caller: Caller) -> None:
    answer = caller.post("/api/v1/wallet/top-ups", {"amount": {"amount": "10.00", "currency": "USD"}})

    assert (answer.status_code, answer.json()["type"].rpartition("/")[2]) == (409, "no-payment-provider")
    assert not Payment.objects.exists()


@override_settings(PAYMENT_PROVIDERS=("stripe",))
@pytest.mark.parametrize("amount", ["0.999", "0", "NaN", "-1", "1e3", "99999999999999"])
def test_an_amount_that_is_none_is_refused(caller: Caller, amount: str) -> None:
    answer = caller.post("/api/v1/wallet/top-ups", {"amount": {"amount": amount, "currency": "USD"}})

    assert answer.status_code == 422
    assert not Payment.objects.exists()


@override_settings(PAYMENT_PROVIDERS=("stripe",), STRIPE_WEBHOOK_SECRETS=("whsec_test",))
def test_a_signed_notification_credits_a_top_up_once(caller: Caller) -> None:
    begun = caller.post("/api/v1/wallet/top-ups", {"amount": {"amount": "25.00", "currency": "USD"}}).json()
    intent = {"id": "pi_1", "object": "payment_intent", "amount_received": 2500, "currency": "usd"}
    event = {
        "id": "evt_1",
        "object": "event",
        "type": "payment_intent.succeeded",
        "data": {"object": {**intent, "metadata": {"payment": begun["id"]}}},
    }

    answers = [_notify(event, secret="whsec_test") for _ in range(2)]
    forged = _notify(event, secret="whsec_other")

    assert [answer.json() for answer in answers] == [{"acted": True}, {"acted": False}]
    assert forged.status_code == 401
    assert caller.get(f"/api/v1/wallet/top-ups/{begun['id']}").json()["state"] == "settled"
    assert caller.get("/api/v1/wallet").json()["balances"][0]["balance"]["amount"] == "25.000000"


def _notify(event: dict[str, Any], *, secret: str) -> Any:
    body, stamp = json.dumps(event).encode(), int(clock.now().timestamp())
    signature = hmac.new(secret.encode(), f"{stamp}.".encode() + body, hashlib.sha256).hexdigest()
    headers = {"Stripe-Signature": f"t={stamp},v1={signature}"}
    return Client().post("/payments/stripe/events", body, content_type="application/json", headers=headers)


def test_a_voucher_is_redeemed_by_one_organization(caller: Caller) -> None:
    code = vouchers.issue(currency="USD", amount_micros=7_000_000, at=NOON)
    stranger = Caller(make_organization(currency="USD"))

    mine = caller.post("/api/v1/wallet/vouchers", {"code": code.upper()})
    again = caller.post("/api/v1/wallet/vouchers", {"code": code})
    theirs = stranger.post("/api/v1/wallet/vouchers", {"code": code})

    assert [mine.status_code, again.status_code, theirs.status_code] == [201, 201, 422]
    assert again.json()["credits"]["amount"] == "7.000000"


def test_an_invoice_is_json_html_and_csv_and_only_its_owners(caller: Caller) -> None:
    draft = invoicing.draft(
        owner=caller.organization.pk, currency="USD", start=NOON, end=NOON.replace(day=20),
        items=[invoicing.Item("=HYPERLINK(1)<script>", 12_345_678, reference="lease_x")], tax_rate_bp=2000,
    )  # fmt: skip
    path = f"/api/v1/invoices/{draft.public_id}"
    assert caller.get(path).status_code == 404
    invoicing.finalize(invoice_id=draft.pk, at=NOON)

    html, table = caller.get(f"{path}.html").content.decode(), caller.get(f"{path}.csv").content.decode()

    assert caller.get(path).json()["due"] == "14.81"
    assert "&lt;script&gt;" in html
    assert "<script>" not in html
    assert table.startswith("\ufeffposition")
    assert "'=HYPERLINK" in table
    assert Caller(make_organization()).get(path).status_code == 404


def test_a_budget_is_drawn_watched_and_taken_away(caller: Caller) -> None:
    body = {"name": "team", "amount": {"amount": "0.05", "currency": "USD"}, "action": "refuse"}
    made = caller.post("/api/v1/budgets", body).json()
    run(payer=caller.organization.pk, price=make_price(3_600_000), at=NOON)
    minute = NOON.replace(minute=1)

    alarms = budgets.watch(at=minute)

    assert [alarm.threshold_bp for alarm in alarms] == [5_000, 8_000, 10_000]
    assert budgets.watch(at=minute) == []
    with pytest.raises(budgets.BudgetExceeded):
        budgets.refuse_if_exceeded(owner=caller.organization.pk, currency="USD", labels={}, at=minute)
    Budget.objects.update(action=BudgetAction.STOP)
    assert len(budgets.to_stop(at=minute)) == 1
    assert caller.send("DELETE", f"/api/v1/budgets/{made['id']}").status_code == 204
    assert caller.get(f"/api/v1/budgets/{made['id']}").status_code == 404


def test_prices_are_public_and_history_names_its_cause() -> None:
    price = make_price(2_490_000, sku="A100_80G")

    listed = Client().get("/api/v1/market/prices?sku=A100_80G").json()["items"]
    history = Client().get("/api/v1/market/history?sku=A100_80G&region=north").json()["items"]

    assert listed[0]["price"] == {"amount": "2.490000", "currency": "USD", "per": "gpu_hour"}
    assert history[0]["cause"] == price.cause
    assert Client().get("/api/v1/market/history?sku=A100_80G").status_code == 422
    assert Client().get("/api/v1/market/prices?sort=x").status_code == 422


def test_a_key_without_the_scope_sees_no_money() -> None:
    poor = Caller(make_organization(), scopes=("leases:read",))

    for path in ("wallet", "ledger-entries", "statements", "invoices", "budgets", "earnings", "payouts"):
        assert poor.get(f"/api/v1/{path}").status_code == 403


def test_the_earnings_of_an_owner_are_shown(caller: Caller) -> None:
    lease = run(payer=make_organization().pk, payee=caller.organization.pk, price=make_price(3_600_000), at=NOON)
    metering.finish(reference=lease, at=NOON.replace(minute=1), ended_by="tenant")

    assert caller.get("/api/v1/earnings").json()["items"][0]["balance"]["amount"] == "0.054000"
    assert payments.paid_minor(owner=caller.organization.pk, currency="USD") == 0
