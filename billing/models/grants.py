"""Promotional and paid-ahead credit: one account per grant, drawn before the wallet."""

from django.db import models
from django.db.models import F, Q

from billing.models.accounts import Account


class Grant(models.Model):
    """Credit for usage inside [effective_at, expires_at). The lowest `priority` number is drawn first."""

    account = models.OneToOneField(Account, models.PROTECT, related_name="grant")
    priority = models.SmallIntegerField(default=100)
    promotional = models.BooleanField(default=True)
    amount_micros = models.BigIntegerField()
    effective_at = models.DateTimeField()
    expires_at = models.DateTimeField(null=True, blank=True)
    reason = models.CharField(max_length=200, blank=True, default="")
    created_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(amount_micros__gt=0), name="grant_gives_something"),
            models.CheckConstraint(
                condition=Q(expires_at__isnull=True) | Q(expires_at__gt=F("effective_at")), name="grant_has_a_window"
            ),
        ]

    def __str__(self) -> str:
        return f"grant {self.pk} of {self.amount_micros}"
