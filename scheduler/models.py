"""How the loops fare, the last step of each spot price, and what organizations have used lately. What else loops do is
due by other tables' rows.
"""

from django.db import models

from billing.models import PriceSeries, PriceVersion
from leasing.models import Lease
from tenants.models import Organization


class LoopProgress(models.Model):
    """A loop of `config/schedule.py`, and its last run by a worker or by `manage.py loops`: its health."""

    name = models.CharField(primary_key=True, max_length=100)  # the Celery task's
    started_at = models.DateTimeField()  # of the last run that ended
    ended_at = models.DateTimeField()
    succeeded_at = models.DateTimeField(null=True)
    failed_at = models.DateTimeField(null=True)
    last_error = models.CharField(max_length=500, blank=True)
    runs = models.PositiveBigIntegerField(default=0)
    failures = models.PositiveBigIntegerField(default=0)

    class Meta:
        verbose_name_plural = "loop progress"

    def __str__(self) -> str:
        return self.name


class SpotStep(models.Model):
    """The last step of a spot price by the rule: once per slot of ten minutes. Its history is that of the price."""

    series = models.OneToOneField(PriceSeries, models.PROTECT, primary_key=True, related_name="spot_step")
    slot = models.PositiveBigIntegerField()
    at = models.DateTimeField()
    rule = models.CharField(max_length=20, blank=True)
    used_bp = models.PositiveIntegerField(null=True)  # of the GPUs of its kind; None while there are none
    version = models.ForeignKey(PriceVersion, models.PROTECT, null=True, related_name="+")  # None: it stayed

    def __str__(self) -> str:
        return f"step of {self.series} in slot {self.slot}"


class RecentUse(models.Model):
    """What one organization has used in one currency, decayed until `as_of`: its place in the queue follows from it.

    Kept by `scheduler.fair_share` from billing's segments, and can be made anew from them at any time.
    """

    organization = models.ForeignKey(Organization, models.CASCADE, related_name="recent_use")
    currency = models.CharField(max_length=3)
    used_micros = models.BigIntegerField(default=0)
    as_of = models.DateTimeField()

    class Meta:
        verbose_name_plural = "recent use"
        constraints = [
            models.UniqueConstraint(fields=["organization", "currency"], name="recent_use_once_per_currency"),
        ]

    def __str__(self) -> str:
        return f"{self.used_micros} micro-{self.currency} of {self.organization_id}"


class Cursor(models.Model):
    """How far a loop has come that reads a history in steps."""

    name = models.CharField(primary_key=True, max_length=40)
    until = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.name} until {self.until:%Y-%m-%dT%H:%M:%SZ}"


class Promise(models.Model):
    """The seats that a waiting lease will have from a known second on, if nothing fails: what its certain ETA means."""

    lease = models.OneToOneField(Lease, models.CASCADE, primary_key=True, related_name="promise")
    starts_at = models.DateTimeField()
    ends_at = models.DateTimeField(null=True)  # with stop grace and cleaning; None: an open end
    placement = models.JSONField()  # members with hosts, devices and units, as the engine named them

    def __str__(self) -> str:
        return f"{self.lease_id} from {self.starts_at:%Y-%m-%dT%H:%M:%SZ}"
