"""The operators' admin: the books are looked at, and money is given only with a reason."""

import pytest
from books import NOON, give, make_price, run
from django.contrib import admin
from django.test import Client
from django.urls import reverse

from accounts.models import User
from audit.models import Entry
from billing import metering, models, wallets
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
