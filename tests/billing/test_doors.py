"""The doors to money: who may, what they say, and that nobody sees another's."""

import hashlib
import hmac
import importlib.util
import json
from datetime import timedelta
from typing import Any

import pytest
from books import NOON, give, make_owner, make_price, run
from django.test import Client, override_settings

from apikit import clock
from billing import budgets, invoicing, metering, payments, payouts, receipt_check, receipts, vouchers
from billing.models import Account, Budget, Journal, Payment, Payout, Transfer
from billing.models.payments import IntentState
from billing.models.terms import BudgetAction
from billing.providers import Answer
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


def test_entries_of_a_range_and_ranges_that_are_none(caller: Caller) -> None:
    for second in range(3):
        give(caller.organization.pk, 1_000_000 * (second + 1), at=NOON.replace(second=second))
    first, third = (NOON.replace(second=second).isoformat().replace("+00:00", "Z") for second in (0, 2))

    found = caller.get(f"/api/v1/ledger-entries?since={first}&until={third}").json()["items"]
    refused = [
        caller.get(f"/api/v1/ledger-entries?since={since}&until={until}").json()
        for since, until in ((first, first), (third, first), (first, "yesterday"))
    ]
    months = [caller.get(f"/api/v1/statements?year={NOON.year}&month={month}").status_code for month in (0, 13, -1)]

    assert [entry["amount"]["amount"] for entry in found] == ["2.000000", "1.000000"]
    assert [(answer["status"], answer["errors"][0]["parameter"]) for answer in refused] == [(422, "until")] * 3
    assert months == [422, 422, 422]


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


@override_settings(PAYMENT_PROVIDERS=("stripe",), STRIPE_WEBHOOK_SECRETS=("",))
def test_what_is_signed_with_no_secret_is_not_believed(caller: Caller) -> None:
    """That is what STRIPE_WEBHOOK_SECRETS= would read as: anybody can sign with nothing."""
    assert _notify({"id": "evt_1", "type": "payment_intent.succeeded"}, secret="").status_code == 401


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


def test_a_budget_is_moved_with_its_version_and_keeps_its_currency(caller: Caller) -> None:
    body = {"name": "team", "amount": {"amount": "5", "currency": "USD"}}
    made = caller.post("/api/v1/budgets", body).json()
    path = f"/api/v1/budgets/{made['id']}"
    etag = caller.get(path).headers["ETag"]

    changed = caller.send(
        "PATCH", path, {"amount": {"amount": "7.5", "currency": "USD"}, "action": "stop"}, If_Match=etag
    )

    assert (changed.json()["amount"]["amount"], changed.json()["action"]) == ("7.500000", "stop")
    assert caller.send("PATCH", path, {"name": "x"}, If_Match=etag).status_code == 412
    assert caller.send("PATCH", path, {"name": "x"}).status_code == 428
    other = {"amount": {"amount": "1", "currency": "EUR"}}
    assert caller.send("PATCH", path, other, If_Match="*").status_code == 422
    assert Budget.objects.get().amount_micros == 7_500_000


def _has_earned(caller: Caller, micros: int, *, days_ago: int = 8) -> None:
    start = clock.now() - timedelta(days=days_ago)
    lease = run(
        payer=make_owner(10**12), payee=caller.organization.pk, price=make_price(micros), commission_bp=0, at=start
    )
    metering.finish(reference=lease, at=start + timedelta(hours=1), ended_by="tenant")


def test_an_owner_asks_for_a_payout_once_and_an_unknown_one_blocks_the_next(caller: Caller) -> None:
    _has_earned(caller, 30_000_000)
    _has_earned(caller, 50_000_000, days_ago=1)  # within the holding time: not payable yet
    body = {"amount": {"amount": "12.34", "currency": "USD"}}

    made = caller.post("/api/v1/payouts", body)

    assert (made.status_code, made.json()["state"], made.json()["amount"]) == (201, "created", "12.34")
    assert caller.post("/api/v1/payouts", body).json()["type"].endswith("/payout-in-flight")
    Payout.objects.update(state="unknown")
    assert caller.post("/api/v1/payouts", body).status_code == 409
    assert caller.get("/api/v1/earnings").json()["items"][0]["in_transit"]["amount"] == "12.340000"
    payout = Payout.objects.get()
    payouts.record(payout_id=payout.pk, answer=Answer(IntentState.REFUSED), at=clock.now())
    too_much = {"amount": {"amount": "30.01", "currency": "USD"}}
    too_little = {"amount": {"amount": "9.99", "currency": "USD"}}
    assert caller.post("/api/v1/payouts", too_much).json()["type"].endswith("/nothing-to-pay-out")
    assert caller.post("/api/v1/payouts", too_little).json()["type"].endswith("/nothing-to-pay-out")
    assert caller.post("/api/v1/payouts", {"amount": {"amount": "30", "currency": "USD"}}).status_code == 201
    assert Payout.objects.count() == 2


def test_the_key_of_receipts_is_public_and_verifies_one(caller: Caller) -> None:
    lease = run(payer=caller.organization.pk, price=make_price(3_600_000), at=NOON)
    metering.finish(reference=lease, at=NOON.replace(minute=1), ended_by="tenant")

    (key,) = Client().get("/api/v1/market/receipt-keys").json()["items"]

    receipt = receipts.export(reference=lease, at=NOON.replace(minute=1))
    assert key["algorithm"] == "ed25519"
    assert receipt_check.verify(receipt, public_key_hex=key["public_key_hex"]) == []
    assert receipt_check.verify(receipt, public_key_hex="00" * 32) != []


AMOUNT_FAULTS = {
    "negative": "-1", "nan": "NaN", "infinity": "Infinity", "too fine": "1.2345678", "finer than a cent": "1.234",
    "exponent": "1e3", "overflow": "9" * 20, "beyond 64 bits": "9223372036855", "zero": "0", "empty": "",
    "number": 12.5, "nothing": None, "spaces": " 1", "arabic digits": "\u0661",
}  # fmt: skip
MONEY_DOORS = {
    "wallet/top-ups": lambda money: {"amount": money},
    "payouts": lambda money: {"amount": money},
    "budgets": lambda money: {"name": "b", "amount": money},
}


def _state() -> tuple[int, ...]:
    tables: tuple[Any, ...] = (Journal, Transfer, Payment, Payout, Budget, Account)
    return tuple(table._default_manager.count() for table in tables)


@override_settings(PAYMENT_PROVIDERS=("stripe",))
@pytest.mark.parametrize("door", MONEY_DOORS)
@pytest.mark.parametrize("amount", AMOUNT_FAULTS.values(), ids=AMOUNT_FAULTS)
def test_what_is_no_amount_is_refused_and_writes_nothing(caller: Caller, door: str, amount: Any) -> None:
    if door == "budgets" and amount == "1.234":
        return  # a line may lie between two cents
    before = _state()

    answer = caller.post(f"/api/v1/{door}", MONEY_DOORS[door]({"amount": amount, "currency": "USD"}))

    assert answer.status_code == 422, answer.content
    assert _state() == before


@override_settings(PAYMENT_PROVIDERS=("stripe",))
@pytest.mark.parametrize("door", MONEY_DOORS)
@pytest.mark.parametrize("currency", ["ZZZ", "usd", "", "USDX", None, 5])
def test_what_is_no_currency_is_refused_and_writes_nothing(caller: Caller, door: str, currency: Any) -> None:
    before = _state()

    answer = caller.post(f"/api/v1/{door}", MONEY_DOORS[door]({"amount": "20", "currency": currency}))

    assert answer.status_code == 422, answer.content
    assert _state() == before


@override_settings(PAYMENT_PROVIDERS=("stripe",))
@pytest.mark.parametrize("door", MONEY_DOORS)
def test_a_replay_gives_the_first_answer_and_another_body_is_refused(caller: Caller, door: str) -> None:
    _has_earned(caller, 90_000_000)
    body = MONEY_DOORS[door]({"amount": "20", "currency": "USD"})
    first = caller.post(f"/api/v1/{door}", body, Idempotency_Key="k-1")
    after_first = _state()

    again = caller.post(f"/api/v1/{door}", body, Idempotency_Key="k-1")
    other = caller.post(
        f"/api/v1/{door}", MONEY_DOORS[door]({"amount": "21", "currency": "USD"}), Idempotency_Key="k-1"
    )

    assert (first.status_code, again.status_code) == (201, 201), first.content
    assert again.json()["id"] == first.json()["id"]
    assert other.status_code in {409, 422}
    assert _state() == after_first


@pytest.mark.parametrize(
    "query", ["month=0", "month=13", "year=1999", "year=99999", "month=x", "month=1&month=2", "m=1"]
)
def test_a_statement_of_no_month_is_refused(caller: Caller, query: str) -> None:
    assert caller.get(f"/api/v1/statements?{query}").status_code == 422


@pytest.mark.parametrize(
    ("lines", "zone"),
    [
        ([], "UTC"),
        ([invoicing.Item("{rate} %s {0} <b>", 0)], "Asia/Shanghai"),
        ([invoicing.Item("credit", -5)], "America/New_York"),
        ([invoicing.Item("large", 9_000_000_000_000_000)], "Pacific/Kiritimati"),
    ],
)
def test_every_invoice_can_be_printed(caller: Caller, lines: list[invoicing.Item], zone: str) -> None:
    draft = invoicing.draft(
        owner=caller.organization.pk, currency="USD", start=NOON, end=NOON.replace(hour=13), items=lines, time_zone=zone
    )
    issued = invoicing.finalize(invoice_id=draft.pk, at=NOON)

    for form in ("", ".html", ".csv"):
        assert caller.get(f"/api/v1/invoices/{issued.public_id}{form}").status_code == 200, form
    pdf = caller.get(f"/api/v1/invoices/{issued.public_id}.pdf")
    if importlib.util.find_spec("weasyprint"):
        assert (pdf.status_code, pdf.content[:5]) == (200, b"%PDF-")
    else:
        assert (pdf.status_code, pdf.json()["type"].rpartition("/")[2]) == (406, "no-pdf")
    invoicing.void(invoice_id=issued.pk, at=NOON)
    assert "(void)" in caller.get(f"/api/v1/invoices/{issued.public_id}.html").content.decode()
