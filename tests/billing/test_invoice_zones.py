"""Months of invoices when an organization changes its time zone: no second twice, none left out."""

from datetime import UTC, datetime
from itertools import pairwise
from uuid import UUID

import pytest
from books import make_owner, make_price, run
from django.db import IntegrityError, transaction
from django.db.backends.postgresql.psycopg_any import DateTimeTZRange

from billing import invoicing
from billing.models import Invoice

pytestmark = pytest.mark.django_db
EAST, WEST = "Pacific/Kiritimati", "Pacific/Pago_Pago"  # UTC+14 and UTC-11
PRICE = 3_600_000
NOW = datetime(2026, 9, 1, tzinfo=UTC)


@pytest.fixture
def owner() -> UUID:
    found = make_owner(10**12)
    run(payer=found, price=make_price(PRICE), at=datetime(2026, 1, 1, tzinfo=UTC))
    return found


def _month(owner: UUID, month: int, zone: str) -> Invoice:
    return invoicing.draft_month(owner=owner, currency="USD", year=2026, month=month, time_zone=zone, at=NOW)


@pytest.mark.parametrize("zones", [(EAST, WEST), (WEST, EAST), (EAST, WEST, EAST)])
@pytest.mark.parametrize("order", [1, -1])
def test_months_meet_whatever_zone_each_was_cut_in(owner: UUID, zones: tuple[str, ...], order: int) -> None:
    months = list(enumerate(zones, start=3))[::order]

    made = sorted((_month(owner, month, zone) for month, zone in months), key=lambda invoice: invoice.period.lower)

    assert all(before.period.upper == after.period.lower for before, after in pairwise(made))
    seconds = int((made[-1].period.upper - made[0].period.lower).total_seconds())
    assert sum(line.seconds for invoice in made for line in invoice.lines.all()) == seconds
    assert sum(line.amount_micros for invoice in made for line in invoice.lines.all()) == seconds * PRICE // 3600


def test_a_month_that_was_voided_is_cut_anew_where_its_neighbours_are(owner: UUID) -> None:
    before, middle, after = (_month(owner, month, EAST) for month in (3, 4, 5))
    invoicing.finalize(invoice_id=middle.pk, at=NOW)
    invoicing.void(invoice_id=middle.pk, at=NOW)

    again = _month(owner, 4, WEST)

    assert (again.period.lower, again.period.upper) == (before.period.upper, after.period.lower)
    assert again.replaces_id == middle.pk


def test_a_month_is_invoiced_once_in_whatever_zone(owner: UUID) -> None:
    _month(owner, 3, EAST)

    with pytest.raises(invoicing.InvoiceIssued):
        _month(owner, 3, WEST)


def test_no_two_documents_that_count_are_about_one_second(owner: UUID) -> None:
    first = _month(owner, 3, EAST)
    late = DateTimeTZRange(first.period.lower, NOW)

    with pytest.raises(invoicing.InvoiceIssued):
        invoicing.draft(owner=owner, currency="USD", start=late.lower, end=late.upper, items=[])
    with pytest.raises(IntegrityError), transaction.atomic():
        Invoice.objects.create(owner=owner, currency="USD", period=late, series="G")
