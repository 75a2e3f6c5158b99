"""Money that is kept for what must not end with the wallet: so many days of storage, held before anything else."""

from django.db import models
from django.db.models import Q

from billing.models.accounts import Account


class Reserve(models.Model):
    """What is held for one metered reference. While its wallet is used up it is drawn on: it shrinks by the second.

    The hold behind it is named `reference:n`, since a hold is settled once. drawn_from: since when it shrinks, from
    `base_micros`; None while the wallet pays.
    """

    reference = models.CharField(max_length=48, unique=True)
    account = models.ForeignKey(Account, models.PROTECT, related_name="reserves")
    rate_micros_per_hour = models.BigIntegerField()
    full_micros = models.BigIntegerField()
    held_micros = models.BigIntegerField(default=0)
    n = models.IntegerField(default=0)
    drawn_from = models.DateTimeField(null=True, blank=True)
    base_micros = models.BigIntegerField(default=0)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(rate_micros_per_hour__gt=0, full_micros__gte=0, held_micros__gte=0),
                name="reserve_is_not_negative",
            )
        ]
        indexes = [models.Index(fields=["account"], condition=Q(drawn_from__isnull=False), name="reserves_drawn_on")]

    def __str__(self) -> str:
        return f"reserve of {self.reference}"
