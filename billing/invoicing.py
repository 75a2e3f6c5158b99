"""Invoices: drafted from what was charged, numbered without gaps when issued, then never changed, only voided."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from django.db import transaction
from django.db.backends.postgresql.psycopg_any import DateTimeTZRange
from django.db.models import Sum

from apikit.errors import DomainError
from billing import currencies, pricing, statements
from billing.models import CreditNote, Invoice, InvoiceCounter, InvoiceLine
from billing.models.documents import InvoiceState

ZONES_DIFFER = timedelta(days=2)  # by more than a day, from UTC-12 to UTC+14, but never by so much


class InvoiceIssued(DomainError):
    slug = "invoice-issued"
    title = "An issued invoice is not changed"


class CreditAboveLine(DomainError):
    slug = "credit-above-line"
    title = "More would be credited than was invoiced"


@dataclass(frozen=True)
class Item:
    text: str
    amount_micros: int
    reference: str = ""
    seconds: int = 0
    quantity: int = 1
    price_micros_per_hour: int | None = None


@transaction.atomic
def draft(
    *,
    owner: UUID,
    currency: str,
    start: datetime,
    end: datetime,
    items: Sequence[Item],
    tax_rate_bp: int = 0,
    time_zone: str = "UTC",
    series: str = "G",
) -> Invoice:
    """Make the draft of a period, taking over what earlier periods left below the minor unit.

    Due + carry out = lines + tax + carry in. Raises InvoiceIssued if the period meets one that is not void.
    """
    period = DateTimeTZRange(start, end)
    known = Invoice.objects.filter(owner=owner, currency=currency)
    if known.filter(period__overlap=period).exclude(state=InvoiceState.VOID).exists():
        raise InvoiceIssued("This period has an invoice, or a part of it.")
    fine = currencies.get(currency).micros_per_minor
    before = known.filter(state=InvoiceState.FINAL, period__fully_lt=period).order_by("-period").first()
    carry_in = before.carry_out_micros if before is not None else 0
    base_micros = sum(item.amount_micros for item in items)
    net_minor, carry_out = pricing.to_minor(base_micros + carry_in, micros_per_minor=fine)
    tax = pricing.tax_on_micros_minor(base_micros, rate_bp=tax_rate_bp, micros_per_minor=fine)
    invoice = Invoice.objects.create(
        owner=owner,
        currency=currency,
        period=period,
        time_zone=time_zone,
        series=series,
        tax_rate_bp=tax_rate_bp,
        carry_in_micros=carry_in,
        carry_out_micros=carry_out,
        tax_minor=tax,
        due_minor=net_minor + tax,
        replaces=known.filter(period=period, state=InvoiceState.VOID).order_by("-voided_at").first(),
    )
    InvoiceLine.objects.bulk_create(
        InvoiceLine(invoice=invoice, position=position, **vars(item)) for position, item in enumerate(items, start=1)
    )
    return invoice


@transaction.atomic
def draft_month(
    *, owner: UUID, currency: str, year: int, month: int, time_zone: str, at: datetime, tax_rate_bp: int = 0
) -> Invoice:
    """Make the draft of a month in the organization's zone from the statement of that month.

    It begins where the document before it ends, and ends where the one after it begins, if that is another second of
    the same turn of the month: the zone may have been another then.
    """
    bounds = statements.month_bounds(year=year, month=month, time_zone=time_zone)
    start, end = _between_neighbours(*bounds, owner=owner, currency=currency)
    if at < end:
        raise ValueError(f"the month is not over before {end}")
    statement = statements.between(owner=owner, currency=currency, start=start, end=end, at=at)
    items = [
        Item(
            text=f"{line.use}: {line.what}, member {line.member}",
            amount_micros=line.micros,
            reference=part.reference,
            seconds=max(0, line.seconds),
            quantity=line.quantity,
            price_micros_per_hour=line.price_micros_per_hour,
        )
        for part in statement.parts
        for line in part.lines
    ]
    return draft(
        owner=owner,
        currency=currency,
        start=start,
        end=end,
        items=items,
        tax_rate_bp=tax_rate_bp,
        time_zone=time_zone,
    )


def _between_neighbours(start: datetime, end: datetime, *, owner: UUID, currency: str) -> tuple[datetime, datetime]:
    """Return a month's bounds moved to where the documents before and after it are cut."""
    counts = Invoice.objects.filter(owner=owner, currency=currency).exclude(state=InvoiceState.VOID)
    before = counts.filter(period__endswith__range=(start - ZONES_DIFFER, start + ZONES_DIFFER))
    after = counts.filter(period__startswith__range=(end - ZONES_DIFFER, end + ZONES_DIFFER))
    ends = [invoice.period.upper for invoice in before.order_by("-period")[:1]]
    starts = [invoice.period.lower for invoice in after.order_by("period")[:1]]
    return (ends or [start])[0], (starts or [end])[0]


@transaction.atomic
def finalize(*, invoice_id: UUID, at: datetime) -> Invoice:
    """Issue a draft under the next number of its series; one that is issued is returned as it is."""
    invoice = Invoice.objects.select_for_update(of=("self",)).get(pk=invoice_id)
    if invoice.state != InvoiceState.DRAFT:
        return invoice
    InvoiceCounter.objects.bulk_create([InvoiceCounter(series=invoice.series)], ignore_conflicts=True)
    # The lock lasts until the number is committed or both are rolled back: that is what leaves no gap.
    counter = InvoiceCounter.objects.select_for_update().get(series=invoice.series)
    counter.last += 1
    counter.save(update_fields=["last"])
    invoice.state, invoice.number, invoice.issued_at = InvoiceState.FINAL, counter.last, at
    invoice.save(update_fields=["state", "number", "issued_at"])
    return invoice


@transaction.atomic
def void(*, invoice_id: UUID, at: datetime) -> Invoice:
    """Declare an issued invoice void; its number stays its own, and the period can be invoiced anew."""
    invoice = Invoice.objects.select_for_update(of=("self",)).get(pk=invoice_id)
    if invoice.state == InvoiceState.DRAFT or invoice.credit_notes.exists():
        raise InvoiceIssued("Only an issued invoice without credit notes can become void.")
    if invoice.state == InvoiceState.FINAL:
        invoice.state, invoice.voided_at = InvoiceState.VOID, at
        invoice.save(update_fields=["state", "voided_at"])
    return invoice


def max_credit_minor(*, invoice: Invoice) -> int:
    """Return what may still be credited of an invoice, without tax, whether it was paid or not."""
    return _net_minor(invoice) - _credited(invoice, "net_minor")


@transaction.atomic
def credit(*, invoice_id: UUID, net_minor: int, reason: str, at: datetime) -> CreditNote:
    """Credit part of an issued invoice; its tax is the tax on everything credited so far, less what was credited.

    Raises CreditAboveLine above what is left, ValueError for nothing.
    """
    invoice = Invoice.objects.select_for_update(of=("self",)).get(pk=invoice_id)
    if net_minor < 1 or invoice.state != InvoiceState.FINAL:
        raise ValueError("only a positive part of an issued invoice can be credited")
    if net_minor > max_credit_minor(invoice=invoice):
        raise CreditAboveLine(f"{max_credit_minor(invoice=invoice)} minor units are left to credit.")
    net, tax = _credited(invoice, "net_minor"), _credited(invoice, "tax_minor")
    return CreditNote.objects.create(
        invoice=invoice,
        n=invoice.credit_notes.count() + 1,
        net_minor=net_minor,
        tax_minor=pricing.tax_minor(net + net_minor, rate_bp=invoice.tax_rate_bp) - tax,
        reason=reason,
        at=at,
    )


def _net_minor(invoice: Invoice) -> int:
    return invoice.due_minor - invoice.tax_minor


def _credited(invoice: Invoice, field: str) -> int:
    return int(invoice.credit_notes.aggregate(n=Sum(field, default=0))["n"])
