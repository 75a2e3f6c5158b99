"""Named volumes: what an organization keeps on a host's disk beyond its leases."""

from django.db import models
from django.db.models import Q

from agents.models import Host
from audit import ids
from tenants.models import Organization


class Volume(models.Model):
    """Storage with a name. It lives on one host from its first use on, and is charged by GiB and hour until deleted.

    `lease`: who has it now; one column, so that never two have it. `made_at`: when a container that mounts it was seen
    ready for the first time; before that its host may still be another one. `place`: what the host's engine calls it.
    """

    class State(models.TextChoices):
        UNBOUND = "unbound"  # no host yet: nothing is stored, nothing is charged
        READY = "ready"
        UNREACHABLE = "unreachable"  # its host is not heard: not charged
        EXPIRING = "expiring"  # the money is out: destroyed at `destroy_at`, unless some comes in
        DELETING = "deleting"  # not charged any more; its host has not confirmed yet
        DELETED = "deleted"
        LOST = "lost"  # its host left the pool for good

    LIVE = (State.UNBOUND, State.READY, State.UNREACHABLE, State.EXPIRING)

    id = models.UUIDField(primary_key=True, default=ids.new, editable=False)
    organization = models.ForeignKey(Organization, models.PROTECT, related_name="volumes")
    name = models.CharField(max_length=63)
    size_gib = models.PositiveIntegerField()
    region = models.CharField(max_length=60, blank=True)  # where it may live; "": wherever its first lease is
    currency = models.CharField(max_length=3)
    simulated = models.BooleanField(default=False)
    state = models.CharField(max_length=12, choices=State, default=State.UNBOUND)
    state_since = models.DateTimeField()
    version = models.PositiveIntegerField(default=1)
    host = models.ForeignKey(Host, models.PROTECT, null=True, blank=True, related_name="tenant_volumes")
    place = models.CharField(max_length=120)
    lease = models.ForeignKey("leasing.Lease", models.PROTECT, null=True, blank=True, related_name="held_volumes")
    made_for_lease = models.BooleanField(default=False)  # by a lease that named it: gone with it if it never ran
    kept_from = models.CharField(max_length=40, blank=True)  # the lease whose scratch it was
    made_at = models.DateTimeField(null=True, blank=True)
    price_version_id = models.BigIntegerField(null=True, blank=True)  # one GiB; as of its creation, for good
    price_micros_per_hour = models.BigIntegerField(default=0)  # one GiB; before it is bound, the highest it may be
    meter_seq = models.BigIntegerField(default=0)
    metered = models.BooleanField(default=False)
    destroy_at = models.DateTimeField(null=True, blank=True)
    told_full = models.BooleanField(default=False)
    created_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, blank=True)
    ended_reason = models.CharField(max_length=20, blank=True)
    created_by = models.CharField(max_length=60, blank=True)

    class Meta:
        indexes = [
            models.Index(fields=["organization", "-id"], name="volume_of_organization"),
            models.Index(fields=["state"], condition=~Q(state__in=["deleted", "lost"]), name="volume_live"),
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["organization", "name"],
                condition=Q(state__in=["unbound", "ready", "unreachable", "expiring"]),
                name="volume_name_is_unique_for_its_owner",
            ),
            models.CheckConstraint(
                condition=Q(lease__isnull=True) | Q(state__in=["unbound", "ready", "unreachable", "expiring"]),
                name="volume_of_a_lease_is_live",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.public_id} ({self.name})"

    @property
    def public_id(self) -> str:
        return ids.encode("volume", self.id)
