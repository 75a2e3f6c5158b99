"""The worked figures that a door shows too, asked for there: what the API says must be what the domain says."""

from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from itertools import pairwise
from typing import Any
from uuid import UUID

from books import LONG_AGO, NOON, after, give, make_price, run
from django.conf import settings
from django.db import connection
from django.test import Client, override_settings

from apikit import clock
from billing import metering, price_list, pricing, watching
from catalogue.models import Region
from tests.apikit.conftest import Caller
from tests.factories import make_gpu_model, make_image, make_organization


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


def _micros(money: dict[str, str]) -> int:
    return pricing.parse_amount(money["amount"], minor_exponent=6)


def starts_at_once(*, balance_micros: int, hold_micros: int, count: int) -> dict[str, Any]:
    """Let so many requests of one tenant arrive at once, each of which holds so much; there is no machine to be had."""
    caller = tenant(balance_micros)
    region = Region.objects.create(slug="far", name="Far", currency="USD")
    make_gpu_model()
    make_image()
    per_hour, left = divmod(hold_micros * 60, settings.REQUEST_HOLD_MINUTES)
    assert left == 0, "this hold is no price for the first minutes"
    series = price_list.Series("A100_80G", region.slug, "verified", "on_demand", "active", "USD")
    price_list.publish(
        series=series, price_micros_per_hour=per_hour, starts_at=LONG_AGO, cause="test", at=LONG_AGO
    )  # fmt: skip

    def ask(number: int) -> Any:
        try:
            return caller.post(
                "/api/v1/leases", {"request": "A100_80G", "image": "pytorch_latest"}, Idempotency_Key=f"b05-{number}"
            )
        finally:
            connection.close()

    with clock.frozen(NOON):
        with ThreadPoolExecutor(count) as pool:
            answers = list(pool.map(ask, range(count)))
        (balance,) = _get(caller, "wallet", NOON)["balances"]
        leases = _get(caller, "leases", NOON)["items"]
    assert {answer.status_code for answer in answers} <= {201, 402}, [answer.content for answer in answers]
    accepted = sum(answer.status_code == 201 for answer in answers)
    assert len(leases) == accepted
    refused = [answer.json()["type"] for answer in answers if answer.status_code == 402]
    assert all(slug.endswith("insufficient-funds") for slug in refused)
    return {
        "accepted": accepted,
        "refused": len(refused),
        "held_u": _micros(balance["held"]),
        "available_u": _micros(balance["available"]),
    }


def alarms_rung(*, budget_micros: int, threshold_bp: int, accrued_micros: list[int]) -> list[int]:
    """Return how many alarms are new, hour after hour, as what has been used grows to these sums."""
    caller = tenant(10**15)
    with clock.frozen(NOON):
        made = caller.post(
            "/api/v1/budgets",
            {
                "name": "b", "thresholds_bp": [threshold_bp],
                "amount": {"amount": pricing.show(budget_micros, digits=6), "currency": "USD"},
            },
        )  # fmt: skip
    assert made.status_code == 201, made.content
    path, rung, before = f"budgets/{made.json()['id']}", [0], 0
    for hour, accrued in enumerate(accrued_micros):
        start, end = after(3600 * hour), after(3600 * (hour + 1))
        if accrued > before:
            lease = run(payer=owner_of(caller), price=make_price(accrued - before), at=start)
            metering.stop(reference=lease, seq=2, at=end, cause="tenant")
        before = accrued
        for _ in range(2):  # whatever the retries
            watching.watch(at=end)
        shown = _get(caller, path, end)
        assert shown["spent_micros"] == accrued
        rung.append(len(shown["alarms"]))
    return [now - earlier for earlier, now in pairwise(rung)]


def takes_payment(amount: str, currency: str) -> bool:
    """Say whether the door takes an amount that is paid in."""
    money = {"amount": {"amount": amount, "currency": currency}}
    with override_settings(PAYMENT_PROVIDERS=("stripe",), STRIPE_API_KEY=""):
        answer = tenant().post("/api/v1/wallet/top-ups", money)
    assert answer.status_code in (201, 422), answer.content
    return bool(answer.status_code == 201)
