"""A receipt can be recomputed by whoever holds it, and a changed one is found out."""

import json
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from books import NOON, after, make_owner, make_price, run

from apikit.errors import NotFound
from billing import downtime, metering, price_list, receipt_check, receipts, spot

pytestmark = pytest.mark.django_db


def _receipt() -> dict[str, Any]:
    """Of a lease with two members, a move to another host, a market price that moved, downtime and a pause."""
    payer, payee, market = make_owner(10**9), uuid4(), make_price(3_599_999, sku="s", term="spot")
    lease = run(payer=payer, payee=payee, price=market, quantity=3, follows=True)
    run(payer=payer, payee=payee, price=make_price(1_234_567), reference=lease, member=1, seq=2, at=after(5))
    series = price_list.Series("s", "north", "verified", "spot", "active", "USD")
    spot.move(series=series, price_micros_per_hour=7_000_001, starts_at=after(400), cause="demand", at=after(100))
    metering.stop(reference=lease, seq=3, at=after(450), cause="park", members=[1])
    run(payer=payer, payee=uuid4(), price=make_price(777), reference=lease, member=1, seq=4, at=after(460), use="hold")
    downtime.void(reference=lease, member=0, start=after(10), end=after(30), reason="gpu", at=after(500))
    metering.finish(reference=lease, at=after(1000), ended_by="tenant")
    return json.loads(json.dumps(receipts.export(reference=lease, at=after(2000))))  # type: ignore[no-any-return]


def test_a_receipt_is_recomputed_from_its_events_and_its_signature_fits() -> None:
    receipt = _receipt()

    assert receipt_check.verify(receipt, public_key_hex=receipts.public_key_hex()) == []
    assert receipt["seconds"] == 980


@pytest.mark.parametrize("field", ["charged_micros", "seconds"])
def test_a_changed_sum_is_found_out(field: str) -> None:
    receipt = _receipt()
    receipt[field] += 1

    found = receipt_check.verify(receipt, public_key_hex=receipts.public_key_hex())

    assert len(found) == 2  # the signature, and what the events give


def test_a_changed_event_is_found_out_and_nonsense_does_not_raise() -> None:
    receipt = _receipt()
    receipt["facts"][0]["quantity"] = 4

    assert "its events give" in receipt_check.verify(receipt)[0]
    assert receipt_check.verify({"version": 9}) != []
    assert receipt_check.verify({"version": 1, "facts": None}) != []


def test_the_minimum_and_a_waiver_are_in_the_receipt() -> None:
    price = make_price(3_600_000, minimum_s=60, free_if_interrupted_s=3600)
    for ended_by, charged in (("tenant", 60_000), ("host_lost", 0)):
        lease = run(payer=make_owner(10**9), price=price)
        metering.finish(reference=lease, at=after(20), ended_by=ended_by)
        receipt = json.loads(json.dumps(receipts.export(reference=lease, at=after(90))))
        assert receipt["charged_micros"] == charged
        assert receipt_check.verify(receipt, public_key_hex=receipts.public_key_hex()) == []


def test_what_was_never_metered_has_no_receipt(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        receipts.export(reference="lease_none", at=NOON)
