"""The operators' admin: the books are looked at, and money is given only with a reason."""

import re

import pytest
from books import NOON, after, give, make_owner, make_price, run
from django.contrib import admin
from django.test import Client
from django.urls import reverse

from accounts.models import User
from apikit import clock
from audit.models import Entry
from billing import holds, metering, models, payouts, vouchers, wallets
from tests.factories import make_organization

pytestmark = pytest.mark.django_db


@pytest.fixture
def operator(db: None) -> Client:
    user = User.objects.create_superuser("root@example.org", "root@example.org")
    client = Client()
    client.force_login(user)
    return client


def test_every_table_of_the_books_can_be_looked_at_and_not_edited(operator: Client) -> None:
    owner = make_organization()
    give(owner.pk, 5_000_000)
    metering.finish(reference=run(payer=owner.pk, price=make_price(1_000), at=NOON), at=NOON, ended_by="tenant")
    tables = [model for model in admin.site._registry if model._meta.app_label == "billing"]
    assert len(tables) > 25

    for model in tables:
        name = f"admin:billing_{model._meta.model_name}"
        assert operator.get(reverse(f"{name}_changelist")).status_code == 200, model
        row = model._default_manager.first()
        if row is not None:
            assert operator.get(reverse(f"{name}_change", args=[row.pk])).status_code == 200, model
            assert operator.post(reverse(f"{name}_delete", args=[row.pk]), {"post": "yes"}).status_code == 403, model
        if model not in (models.PriceSeries, models.PriceVersion):
            assert operator.get(reverse(f"{name}_add")).status_code == 403, model


def test_a_tenant_is_credited_once_with_a_reason_in_books_and_audit(operator: Client) -> None:
    owner = make_organization()
    form = {"organization": owner.pk, "currency": "USD", "amount": "12.34", "reason": "goodwill", "key": "k1"}

    for _ in range(2):
        assert operator.post(reverse("admin:billing_account_credit"), form).status_code == 302

    assert wallets.balance(owner=owner.pk, currency="USD", at=NOON).balance_micros == 12_340_000
    assert models.Journal.objects.get(kind="topup").memo == "goodwill"
    assert Entry.objects.get(action="wallet.credited").why == "goodwill"


@pytest.mark.parametrize("amount", ["0", "-5", "1.234", "x"])
def test_a_credit_that_is_no_amount_is_refused(operator: Client, amount: str) -> None:
    form = {"organization": make_organization().pk, "currency": "USD", "amount": amount, "reason": "r", "key": "k"}

    assert operator.post(reverse("admin:billing_account_credit"), form).status_code == 200
    assert not models.Journal.objects.exists()


def test_a_price_is_published_and_never_edited(operator: Client) -> None:
    version = make_price(1_000_000)
    form = {
        "series": version.series_id, "price_micros_per_hour": 2_000_000, "minimum_s": 0, "free_if_interrupted_s": 0,
        "unit": "gpu_hour", "cause": "list", "starts_at_0": "2099-01-01", "starts_at_1": "00:00:00",
    }  # fmt: skip

    assert operator.post(reverse("admin:billing_priceversion_add"), form).status_code == 302

    assert version.series.versions.count() == 2
    past = {**form, "starts_at_0": "2020-01-01"}
    assert operator.post(reverse("admin:billing_priceversion_add"), past).status_code == 200
    assert version.series.versions.count() == 2


def test_credit_a_line_and_a_voucher_are_given_with_a_reason(operator: Client) -> None:
    owner = make_organization()
    asked = {"organization": owner.pk, "currency": "USD", "amount": "10", "reason": "launch", "key": "k"}

    for _ in range(2):
        assert operator.post(reverse("admin:billing_account_grant"), {**asked, "valid_days": 30}).status_code == 302
    assert operator.post(reverse("admin:billing_account_credit_line"), {**asked, "amount": "5"}).status_code == 302
    page = operator.post(reverse("admin:billing_account_voucher"), {**asked, "valid_days": 1}, follow=True)

    code = re.findall(r"shown this once: ([0-9a-f]{26})", page.content.decode())[0]
    vouchers.redeem(code=code, owner=owner.pk, by="test", at=clock.now())
    found = wallets.balance(owner=owner.pk, currency="USD", at=clock.now())
    assert (found.grants_micros, found.credit_micros) == (20_000_000, 5_000_000)
    acts = {"wallet.credit_given", "wallet.credit_line_set", "voucher.issued"}
    assert acts <= set(Entry.objects.filter(why="launch").values_list("action", flat=True))


def test_a_credit_line_is_not_cut_under_what_is_in_use(operator: Client) -> None:
    owner = make_organization()
    wallets.set_credit_line(owner=owner.pk, currency="USD", credit_micros=5_000_000, at=NOON)
    holds.place(owner=owner.pk, currency="USD", amount_micros=2_000_000, reference="r", expires_at=after(60), at=NOON)
    form = {"organization": owner.pk, "currency": "USD", "amount": "1", "reason": "r", "key": "k"}

    answer = operator.post(reverse("admin:billing_account_credit_line"), form)

    assert answer.status_code == 200
    assert "in use" in answer.content.decode()
    assert wallets.balance(owner=owner.pk, currency="USD", at=NOON).credit_micros == 5_000_000


@pytest.mark.parametrize(
    ("act", "state", "left"), [("mark_paid", "settled", 0), ("mark_refused", "refused", 20_000_000)]
)
def test_an_operator_writes_down_what_became_of_a_transfer(operator: Client, act: str, state: str, left: int) -> None:
    owner = make_organization()
    lease = run(payer=make_owner(10**9), payee=owner.pk, price=make_price(20_000_000), commission_bp=0, at=NOON)
    metering.finish(reference=lease, at=after(3600), ended_by="tenant")
    payout = payouts.request(owner=owner.pk, currency="USD", period="p", provider="offline", at=after(3600))

    for action in (act, "mark_paid"):  # the first outcome stands
        operator.post(reverse("admin:billing_payout_changelist"), {"action": action, "_selected_action": payout.pk})

    assert models.Payout.objects.get().state == state
    assert payouts.payable_micros(owner=owner.pk, currency="USD", at=after(3600)) == left
    assert Entry.objects.filter(action=f"payout.{state}").count() == 1
