"""An operator takes the charge of a lease back: all of it, whatever it was for, and once."""

from typing import Any

import pytest

from billing import downtime, ledger, metering, price_list, reconcile, wallets
from billing.models import Meter
from leasing import refunding
from leasing.models import Lease
from scheduler import recovery
from tests.factories import NOON, after, end_and_clean, hear, make_active_lease, make_host, make_tenant, price

pytestmark = pytest.mark.django_db
MONEY = 10**12


def _sell(term: str, use: str = "active", **terms: Any) -> None:
    series = price_list.Series("A100_80G", "sim", "verified", term, use, "XTS")
    price_list.publish(series=series, price_micros_per_hour=3_600_000, starts_at=NOON, cause="test", at=NOON, **terms)


def _refund(lease: Lease, *, at_s: float = 5000) -> int:
    return refunding.refund(lease_id=lease.pk, reason="our fault", by="user:1", at=after(at_s))


def _assert_nothing_is_charged(lease: Lease) -> None:
    assert metering.cost(reference=lease.public_id, at=after(9000)).charged_micros == 0
    owner = lease.organization_id
    assert wallets.balance(owner=owner, currency="XTS", at=after(9000)).balance_micros == MONEY
    assert [ledger.balance_micros(meter.payee) for meter in Meter.objects.all()] == [0] * Meter.objects.count()
    assert reconcile.findings() == []


def test_the_commitment_of_a_reserved_lease_goes_back_too() -> None:
    make_host()
    price()
    _sell("reserved:P1W", minimum_s=7 * 86_400)
    lease = make_active_lease(make_tenant(micros=MONEY), term={"kind": "reserved", "period": "P1W"})
    ended = end_and_clean(lease, at=after(102))
    assert ended.charged_micros == 7 * 86_400 * 1000

    assert _refund(lease) == ended.charged_micros
    assert _refund(lease) == 0
    _assert_nothing_is_charged(lease)


def test_the_fee_for_holding_goes_back_too() -> None:
    make_host()
    price()
    _sell("on_demand", use="hold")
    lease = make_active_lease(make_tenant(micros=MONEY))
    hear(lease, at=after(100))
    recovery.park_now(lease=lease, keep="hold", at=after(102))
    ended = end_and_clean(lease, at=after(1102))

    assert _refund(lease) == ended.charged_micros == 1_100_000
    _assert_nothing_is_charged(lease)


def test_what_was_taken_back_before_does_not_keep_the_rest_from_going_back() -> None:
    make_host()
    price()
    lease = make_active_lease(make_tenant(micros=MONEY))
    downtime.void(reference=lease.public_id, member=0, start=after(50), end=after(60), reason="gpu", at=after(100))
    ended = end_and_clean(lease, at=after(202))

    assert _refund(lease) == ended.charged_micros == 190_000
    _assert_nothing_is_charged(lease)
