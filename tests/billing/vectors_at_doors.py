"""The worked figures that a door shows too, asked for there: what the API says must be what the domain says."""

from datetime import datetime
from typing import Any
from uuid import UUID

from books import LONG_AGO, give
from django.test import Client, override_settings

from apikit import clock
from billing import pricing
from tests.apikit.conftest import Caller
from tests.factories import make_organization


def tenant(micros: int = 0, *, time_zone: str = "UTC") -> Caller:
    """Return an organization with money, and its way in."""
    organization = make_organization(currency="USD", time_zone=time_zone)
    if micros:
        give(organization.pk, micros, at=LONG_AGO)
    return Caller(organization)


def owner_of(caller: Caller) -> UUID:
    found: UUID = caller.organization.pk
    return found


def _get(caller: Caller, path: str, at: datetime) -> Any:
    with clock.frozen(at):
        answer = caller.get(f"/api/v1/{path}")
    assert answer.status_code == 200, answer.content
    return answer.json()


def exhausts_at(caller: Caller, at: datetime) -> datetime | None:
    (balance,) = _get(caller, "wallet", at)["balances"]
    return None if balance["exhausts_at"] is None else datetime.fromisoformat(balance["exhausts_at"])


def charged_micros(caller: Caller, *, year: int, month: int, at: datetime) -> int:
    (month_of,) = _get(caller, f"statements?year={year}&month={month}", at)["items"]
    return pricing.parse_amount(month_of["charged"]["amount"], minor_exponent=6)


def earned_micros(caller: Caller, at: datetime) -> int:
    (earned,) = _get(caller, "earnings", at)["items"]
    return pricing.parse_amount(earned["balance"]["amount"], minor_exponent=6)


def price_shown(sku: str, at: datetime) -> str:
    with clock.frozen(at):
        (found,) = Client().get("/api/v1/market/prices", {"sku": sku}).json()["items"]
    return str(found["price"]["amount"])


def takes_payment(amount: str, currency: str) -> bool:
    """Say whether the door takes an amount that is paid in."""
    money = {"amount": {"amount": amount, "currency": currency}}
    with override_settings(PAYMENT_PROVIDERS=("stripe",), STRIPE_API_KEY=""):
        answer = tenant().post("/api/v1/wallet/top-ups", money)
    assert answer.status_code in (201, 422), answer.content
    return bool(answer.status_code == 201)
