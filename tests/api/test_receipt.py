"""GET /leases/{id}/receipt: signed, and anybody can recompute it."""

from datetime import timedelta

import pytest

from apikit import clock
from billing import receipt_check, receipts
from tests.apikit.conftest import Caller
from tests.factories import (
    NOON,
    after,
    end_and_clean,
    hear,
    make_active_lease,
    make_host,
    make_lease,
    make_tenant,
    price,
)

pytestmark = pytest.mark.django_db


def test_the_receipt_of_a_lease_can_be_verified_without_us() -> None:
    make_host(gpus=2)
    price()
    tenant = make_tenant()
    with clock.frozen(NOON + timedelta(seconds=100)):
        caller = Caller(tenant)
        lease = make_active_lease(tenant, "A100_80G x2")
        hear(lease, at=after(100))
        running = caller.get(f"/api/v1/leases/{lease.public_id}/receipt").json()
    end_and_clean(lease, at=after(200))
    with clock.frozen(after(300)):
        ended = caller.get(f"/api/v1/leases/{lease.public_id}/receipt").json()
        cost = caller.get(f"/api/v1/leases/{lease.public_id}").json()["cost"]

    assert receipt_check.verify(running, public_key_hex=receipts.public_key_hex()) == []
    assert receipt_check.verify(ended, public_key_hex=receipts.public_key_hex()) == []
    assert running["seconds"] == 98
    assert (ended["seconds"], f"{ended['charged_micros'] / 1_000_000:.6f}") == (198, cost["charged"]["amount"])
    assert receipt_check.verify({**ended, "charged_micros": 1}, public_key_hex=receipts.public_key_hex()) != []


def test_a_lease_that_never_ran_has_none() -> None:
    make_host()
    price()
    tenant = make_tenant()
    lease = make_lease(tenant)

    with clock.frozen(after(1)):
        answer = Caller(tenant).get(f"/api/v1/leases/{lease.public_id}/receipt")

    assert (answer.status_code, answer.json()["type"].rpartition("/")[2]) == (409, "invalid-transition")
