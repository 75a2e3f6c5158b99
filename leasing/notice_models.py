"""What a tenant is told before something ends, and what is moved: rows that stay."""

from django.db import models
from django.db.models import Q

from agents.models import Host
from audit import ids


class Notice(models.Model):
    """A lease was told that it ends, or leaves its devices, at `ends_at`. Open until that has come about or is off."""

    class Cause(models.TextChoices):
        SPOT_RECLAIM = "spot_reclaim"  # a lease of higher rank takes its devices
        OWNER_RETURNS = "owner_returns"  # the owner of a host that is shared when idle takes them
        MOVE = "move"  # it is restarted on other devices, which are held for it
        PRICE_CAP = "price_cap"  # the market will ask more than its tenant would pay
        DRAIN = "drain"  # its host is taken back
        EXPIRY = "expiry"  # its term is over
        BALANCE = "balance"  # its money is used up

    class Outcome(models.TextChoices):
        SERVED = "served"  # it came as told
        WITHDRAWN = "withdrawn"  # it is off: the devices are its own again, the term was extended, money came
        OVERTAKEN = "overtaken"  # it ended otherwise, before

    id = models.UUIDField(primary_key=True, default=ids.new, editable=False)
    lease = models.ForeignKey("leasing.Lease", models.PROTECT, related_name="notices")
    successor = models.ForeignKey("leasing.Lease", models.PROTECT, null=True, blank=True, related_name="reclaims")
    cause = models.CharField(max_length=16, choices=Cause)
    given_at = models.DateTimeField()
    ends_at = models.DateTimeField()
    promised_s = models.PositiveIntegerField()  # the notice that the lease has chosen
    lost_micros = models.BigIntegerField(default=0)  # what its tenant loses, as it was weighed against others
    detail = models.CharField(max_length=300, blank=True)
    closed_at = models.DateTimeField(null=True, blank=True)
    outcome = models.CharField(max_length=10, choices=Outcome, blank=True)

    class Meta:
        ordering = ["-given_at"]
        indexes = [models.Index(fields=["ends_at"], condition=Q(closed_at__isnull=True), name="notice_open_by_end")]
        constraints = [
            models.UniqueConstraint(
                fields=["lease", "cause"], condition=Q(closed_at__isnull=True), name="one_open_notice_of_a_cause"
            ),
            models.CheckConstraint(
                condition=Q(closed_at__isnull=True, outcome="") | (Q(closed_at__isnull=False) & ~Q(outcome="")),
                name="notice_that_is_closed_says_how",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.cause} at {self.ends_at:%Y-%m-%d %H:%M:%S}"


# By these a lease leaves its devices to somebody else: from `Lease.leaves_at` on they are bound to another.
LEAVING = frozenset({Notice.Cause.SPOT_RECLAIM, Notice.Cause.OWNER_RETURNS, Notice.Cause.MOVE})


class LeaseMove(models.Model):
    """One lease moved from a host to another, or about to be: what the day's and the fleet's limits count."""

    lease = models.ForeignKey("leasing.Lease", models.PROTECT, related_name="relocations")
    notice = models.OneToOneField(Notice, models.PROTECT, related_name="relocation")
    from_host = models.ForeignKey(Host, models.PROTECT, related_name="+")
    to_host = models.ForeignKey(Host, models.PROTECT, related_name="+")
    gpu_milli = models.PositiveIntegerField()
    price_version_id = models.BigIntegerField()  # at the new place
    price_micros_per_hour = models.BigIntegerField()  # one GPU or slice
    by = models.CharField(max_length=60)  # "placement", or the operator
    reason = models.CharField(max_length=200)
    planned_at = models.DateTimeField()
    done_at = models.DateTimeField(null=True, blank=True)  # None while it is due, or for good if it is off

    class Meta:
        ordering = ["-planned_at"]
        indexes = [models.Index(fields=["planned_at"], name="lease_move_by_time")]

    def __str__(self) -> str:
        return f"{self.lease_id}: {self.from_host_id} to {self.to_host_id}"
