"""Payments that their payer's bank took back: what was taken out of the wallet for it, and what is owed."""

from django.db import models
from django.db.models import Q

from billing.models.payments import Payment


class DisputeState(models.TextChoices):
    OPEN = "open"  # the money is gone, the bank has not decided
    WON = "won"  # the money is back
    LOST = "lost"


class Dispute(models.Model):
    """`ref` is the provider's id of it: its money is taken back once on that, and comes back once.

    taken + owed is what the provider took; `unrefundable` is what of the payment could not be refunded from then on.
    """

    payment = models.ForeignKey(Payment, models.PROTECT, related_name="disputes")
    ref = models.CharField(max_length=200, unique=True)
    amount_minor = models.BigIntegerField()
    reason = models.CharField(max_length=100, blank=True, default="")
    state = models.CharField(max_length=10, choices=DisputeState, default=DisputeState.OPEN)
    taken_micros = models.BigIntegerField()
    owed_micros = models.BigIntegerField()
    unrefundable_micros = models.BigIntegerField()
    opened_at = models.DateTimeField()
    closed_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(amount_minor__gt=0, taken_micros__gte=0, owed_micros__gte=0, unrefundable_micros__gte=0),
                name="dispute_is_positive",
            ),
        ]

    def __str__(self) -> str:
        return f"dispute {self.ref} {self.state}"
