"""Invoices: numbered documents over what was charged. They create no entry in the ledger."""

from django.contrib.postgres.constraints import ExclusionConstraint
from django.contrib.postgres.fields import DateTimeRangeField, RangeOperators
from django.db import models
from django.db.models import Q

from audit import ids


class InvoiceState(models.TextChoices):
    DRAFT = "draft"
    FINAL = "final"
    VOID = "void"


class InvoiceCounter(models.Model):
    """The last number that was given in a series; its lock makes numbers without gaps."""

    series = models.CharField(max_length=20, primary_key=True)
    last = models.BigIntegerField(default=0)

    def __str__(self) -> str:
        return f"{self.series}-{self.last}"


class Invoice(models.Model):
    """Due + carry out = lines + tax + carry in. A final one only ever becomes void (a trigger says so)."""

    id = models.UUIDField(primary_key=True, default=ids.new, editable=False)
    owner = models.UUIDField()
    currency = models.CharField(max_length=3)
    period = DateTimeRangeField()
    time_zone = models.CharField(max_length=60, default="UTC")
    state = models.CharField(max_length=10, choices=InvoiceState, default=InvoiceState.DRAFT)
    series = models.CharField(max_length=20)
    number = models.BigIntegerField(null=True, blank=True)
    tax_rate_bp = models.IntegerField(default=0)
    carry_in_micros = models.BigIntegerField(default=0)
    carry_out_micros = models.BigIntegerField(default=0)
    tax_minor = models.BigIntegerField(default=0)
    due_minor = models.BigIntegerField(default=0)
    replaces = models.ForeignKey("self", models.PROTECT, null=True, blank=True, related_name="replaced_by")
    issued_at = models.DateTimeField(null=True, blank=True)
    voided_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["series", "number"], name="invoice_number_is_given_once"),
            ExclusionConstraint(
                name="no_second_is_invoiced_twice",
                expressions=[
                    ("owner", RangeOperators.EQUAL),
                    ("currency", RangeOperators.EQUAL),
                    ("period", RangeOperators.OVERLAPS),
                ],
                condition=~Q(state="void"),
            ),
            models.CheckConstraint(
                condition=Q(state="draft", number=None) | (~Q(state="draft") & Q(number__isnull=False)),
                name="invoice_has_a_number_iff_issued",
            ),
        ]

    @property
    def public_id(self) -> str:
        return ids.encode("invoice", self.pk)

    @property
    def full_number(self) -> str:
        return "" if self.number is None else f"{self.series}-{self.number:06d}"

    def __str__(self) -> str:
        return self.full_number or "draft"


class InvoiceLine(models.Model):
    invoice = models.ForeignKey(Invoice, models.PROTECT, related_name="lines")
    position = models.IntegerField()
    reference = models.CharField(max_length=64, blank=True, default="")
    text = models.CharField(max_length=200)
    seconds = models.BigIntegerField(default=0)
    quantity = models.IntegerField(default=1)
    price_micros_per_hour = models.BigIntegerField(null=True, blank=True)
    amount_micros = models.BigIntegerField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["invoice", "position"], name="invoice_lines_are_numbered")]

    def __str__(self) -> str:
        return f"line {self.position} of {self.invoice_id}"


class CreditNote(models.Model):
    """Takes back part of a final invoice, never more than was on it and not credited before."""

    invoice = models.ForeignKey(Invoice, models.PROTECT, related_name="credit_notes")
    n = models.IntegerField()
    net_minor = models.BigIntegerField()
    tax_minor = models.BigIntegerField()
    reason = models.CharField(max_length=200)
    at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["invoice", "n"], name="credit_notes_of_an_invoice_are_numbered"),
            models.CheckConstraint(condition=Q(net_minor__gt=0), name="credit_note_is_positive"),
        ]

    @property
    def gross_minor(self) -> int:
        return self.net_minor + self.tax_minor

    def __str__(self) -> str:
        return f"credit note {self.n} of {self.invoice_id}"
