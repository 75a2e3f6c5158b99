"""Invoices on paper: printable HTML (a PDF where the `pdf` extra is installed), and CSV with a byte order mark, so that
spreadsheets read it as UTF-8."""

import csv
import io
from datetime import datetime
from importlib import import_module
from zoneinfo import ZoneInfo

from django.utils.html import format_html, format_html_join

from apikit.errors import DomainError
from billing import currencies, pricing
from billing.models import Invoice, InvoiceLine

HEADER = ("position", "reference", "text", "seconds", "quantity", "price_per_hour", "amount")


def as_csv(invoice: Invoice) -> str:
    """Return one row per line, amounts exact to the micro-unit; text that a spreadsheet would run is quoted."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(HEADER)
    for line in invoice.lines.order_by("position"):
        writer.writerow([line.position, *(_plain(text) for text in (line.reference, line.text)), line.seconds,
                         line.quantity, _price(line), pricing.show(line.amount_micros, digits=6)])  # fmt: skip
    return "\ufeff" + out.getvalue()


def as_html(invoice: Invoice) -> str:
    """Return a page to print: complete in itself, no script, nothing loaded."""
    rows = format_html_join(
        "",
        "<tr><td>{}<td>{}<td>{}<td>{}<td>{}<td>{}",
        (
            (line.text, line.reference, line.seconds, line.quantity, _price(line), pricing.show(line.amount_micros))
            for line in invoice.lines.order_by("position")
        ),
    )
    return format_html(
        "<!doctype html><meta charset=utf-8><title>Invoice {number}</title>"
        "<h1>Invoice {number}{state}</h1><p>{start} to {end} ({zone}), {currency}</p>"
        "<table><tr><th>Use<th>Reference<th>Seconds<th>Units<th>Price per unit and hour<th>Amount{rows}</table>"
        "<p>Carried in {carry_in}, tax ({rate}) {tax}, carried out {carry_out}</p><p><strong>Due {due}</strong></p>",
        number=invoice.full_number,
        state=" (void)" if invoice.state == "void" else "",
        start=_day(invoice.period.lower, invoice.time_zone),
        end=_day(invoice.period.upper, invoice.time_zone),
        zone=invoice.time_zone,
        currency=invoice.currency,
        rows=rows,
        carry_in=pricing.show(invoice.carry_in_micros),
        carry_out=pricing.show(invoice.carry_out_micros),
        rate=f"{pricing.show(invoice.tax_rate_bp * 10_000)} %",
        tax=minor(invoice.tax_minor, invoice.currency),
        due=minor(invoice.due_minor, invoice.currency),
    )


class NoPdf(DomainError):
    slug = "no-pdf"
    title = "This installation makes no PDF; the HTML is to be printed"
    status = 406


def as_pdf(invoice: Invoice) -> bytes:
    """Return the same page as a PDF. Raises NoPdf without the `pdf` extra, or the libraries that it needs."""
    try:
        weasyprint = import_module("weasyprint")
    except (ImportError, OSError) as error:
        raise NoPdf("The server was installed without its `pdf` extra.") from error
    return bytes(weasyprint.HTML(string=as_html(invoice)).write_pdf())


def minor(amount_minor: int, currency: str) -> str:
    """Return minor units with the digits that the currency has."""
    found = currencies.get(currency)
    shown = pricing.show(amount_minor * found.micros_per_minor, digits=found.minor_exponent)
    return shown.rstrip(".") if found.minor_exponent == 0 else shown


def _day(moment: datetime, time_zone: str) -> str:
    return f"{moment.astimezone(ZoneInfo(time_zone)):%Y-%m-%d}"


def _price(line: InvoiceLine) -> str:
    return "" if line.price_micros_per_hour is None else pricing.show(line.price_micros_per_hour)


def _plain(text: str) -> str:
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text
