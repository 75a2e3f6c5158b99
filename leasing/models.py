"""The contract: leases, their members and events, quotes, images, and the device calendar."""

from datetime import UTC
from typing import Any

from django.contrib.postgres.constraints import ExclusionConstraint
from django.contrib.postgres.fields import DateTimeRangeField, IntegerRangeField, RangeOperators
from django.db import models
from django.db.models import Q

from agents.models import Device, Host
from audit import ids
from leasing.states import EndReason, OnInterrupt, State
from tenants.models import Organization


def _choices(enum: Any) -> list[tuple[str, str]]:
    return [(item.value, item.value.replace("_", " ")) for item in enum]


class Image(models.Model):
    """A template that one-click deployment starts. `organization` None: the platform's own catalogue."""

    id = models.UUIDField(primary_key=True, default=ids.new, editable=False)
    organization = models.ForeignKey(Organization, models.PROTECT, null=True, blank=True, related_name="images")
    slug = models.CharField(max_length=64)
    name = models.CharField(max_length=100)
    reference = models.CharField(max_length=300)
    description = models.TextField(blank=True)
    min_cuda = models.CharField(max_length=16, blank=True)
    architectures = models.JSONField(default=list, blank=True)  # compute capabilities it has code for; [] = any
    vendor = models.CharField(max_length=20, default="nvidia")  # "" = runs without an accelerator library
    ports = models.JSONField(default=list, blank=True)
    command = models.JSONField(null=True, blank=True)
    env = models.JSONField(default=dict, blank=True)
    size_mib = models.PositiveIntegerField(null=True, blank=True)
    # What it serves to people: {"ssh": {"port": 22}, "jupyter": {"port": 8888, "command": [...]}}.
    services = models.JSONField(default=dict, blank=True)
    health = models.JSONField(null=True, blank=True)  # protocol.HealthCheck; a lease may name another
    enabled = models.BooleanField(default=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["slug"]
        constraints = [
            models.UniqueConstraint(
                fields=["organization", "slug"], name="image_slug_is_unique_for_its_owner", nulls_distinct=False
            )
        ]

    def __str__(self) -> str:
        return self.slug

    @property
    def public_id(self) -> str:
        return ids.encode("image", self.id)


class Lease(models.Model):
    """A resource request, a term, an image to run, and the price that was promised for it."""

    class TermKind(models.TextChoices):
        ON_DEMAND = "on_demand"
        SPOT = "spot"
        RESERVED = "reserved"

    id = models.UUIDField(primary_key=True, default=ids.new, editable=False)
    organization = models.ForeignKey(Organization, models.PROTECT, related_name="leases")
    state = models.CharField(max_length=12, choices=_choices(State), default=State.PENDING)
    state_since = models.DateTimeField()
    version = models.PositiveIntegerField(default=1)

    request = models.CharField(max_length=300)  # canonical text of the grammar
    request_options = models.JSONField()  # the same, structured
    gpu_count = models.PositiveIntegerField()  # of the chosen option, or the largest while none is chosen
    option_index = models.PositiveSmallIntegerField(null=True, blank=True)
    constraints = models.JSONField(default=dict, blank=True)

    image = models.CharField(max_length=300)  # as asked for
    image_reference = models.CharField(max_length=300)  # what the host is told to start
    image_needs = models.JSONField(
        default=dict, blank=True
    )  # min_cuda, architectures, vendor, size_mib at request time
    command = models.JSONField(null=True, blank=True)
    env = models.JSONField(default=dict, blank=True)
    ports = models.JSONField(default=list, blank=True)
    ssh_keys = models.JSONField(default=list, blank=True)
    secrets = models.JSONField(default=list, blank=True)  # names in the organization's vault, never values
    registry_secret = models.CharField(max_length=64, blank=True)  # the name of the login for the image's registry
    jupyter = models.BooleanField(default=False)
    health = models.JSONField(null=True, blank=True)  # protocol.HealthCheck
    read_only = models.BooleanField(default=False)  # the container's root file system
    service_ports = models.JSONField(default=dict, blank=True)  # {"ssh": 22, "jupyter": 8888}: what a port is for
    # Volumes that it mounts: {volume, name, path, place, size_gib}, as when it was asked for.
    volumes = models.JSONField(default=list, blank=True)
    name = models.CharField(max_length=64, blank=True)
    labels = models.JSONField(default=dict, blank=True)

    term_kind = models.CharField(max_length=10, choices=TermKind, default=TermKind.ON_DEMAND)
    period = models.CharField(max_length=8, blank=True)  # P1W, P1M, P1Y
    renew = models.BooleanField(default=False)
    start_at = models.DateTimeField(null=True, blank=True)
    end_at = models.DateTimeField(null=True, blank=True)
    duration_s = models.PositiveIntegerField(null=True, blank=True)  # from its first active second, if no end_at
    on_interrupt = models.CharField(max_length=20, choices=_choices(OnInterrupt), default=OnInterrupt.RESTART_ELSEWHERE)
    on_exit = models.CharField(max_length=8, default="end")
    notice_s = models.PositiveIntegerField(default=120)
    min_runtime_s = models.PositiveIntegerField(default=0)  # not reclaimed before it ran so long; as promised
    may_move = models.BooleanField(default=False)  # its tenant lets us restart it elsewhere for a large request
    leaves_at = models.DateTimeField(null=True, blank=True)  # by its notice: its devices are another's from then on

    currency = models.CharField(max_length=3)
    simulated = models.BooleanField(default=False)
    priced_at = models.DateTimeField()  # the price list as of this second is what was promised
    price_micros_per_hour = models.BigIntegerField(null=True, blank=True)  # all its GPUs, once an option is chosen
    sku = models.CharField(max_length=60, blank=True)
    held_micros = models.BigIntegerField(default=0)
    charged_micros = models.BigIntegerField(null=True, blank=True)  # final, once ended

    epoch = models.BigIntegerField(default=0)  # the fence: +1 with each assignment
    # After a restore (scheduler.restoring): epochs that may have been used in the time that is lost, and until when
    # hosts may run what they were told then.
    epochs_lost = models.BigIntegerField(default=0, db_default=0)
    fenced_until = models.DateTimeField(null=True, blank=True)
    meter_seq = models.BigIntegerField(default=0)
    failed_starts = models.PositiveSmallIntegerField(default=0)
    avoid_hosts = models.JSONField(default=list, blank=True)  # where it failed to start, ids
    parked_keep = models.CharField(max_length=5, blank=True)  # hold | queue, while it is parked

    requested_at = models.DateTimeField()
    first_active_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    ending_reason = models.CharField(max_length=20, choices=_choices(EndReason), blank=True)
    ending_detail = models.CharField(max_length=300, blank=True)
    exit_code = models.IntegerField(null=True, blank=True)

    why_waiting = models.JSONField(null=True, blank=True)
    queue_place = models.PositiveIntegerField(null=True, blank=True)
    eta = models.JSONField(null=True, blank=True)
    created_by = models.CharField(max_length=60, blank=True)

    # Whatever is unfinished is looked at again; a claim is a lease on the row, not on the work (RELIABILITY.md).
    check_at = models.DateTimeField()
    claim_token = models.UUIDField(null=True, blank=True)
    claim_until = models.DateTimeField(null=True, blank=True)
    attempts = models.PositiveIntegerField(default=0)

    class Meta:
        indexes = [
            models.Index(fields=["check_at"], condition=~Q(state=State.ENDED), name="lease_due"),
            models.Index(fields=["state", "requested_at"], condition=~Q(state=State.ENDED), name="lease_live_by_state"),
            models.Index(fields=["organization", "-id"], name="lease_of_organization"),
            # The quota is added up with each request: from what is live alone, however much is over.
            models.Index(
                fields=["organization"],
                include=["gpu_count"],
                condition=~Q(state=State.ENDED),
                name="lease_live_of_organization",
            ),
            models.Index(fields=["end_at"], condition=~Q(state=State.ENDED), name="lease_expiring"),
            models.Index(
                fields=["sku", "-ended_at"],
                condition=Q(state=State.ENDED, first_active_at__isnull=False),
                name="lease_past_by_kind",
            ),
            models.Index(fields=["leaves_at"], condition=Q(leaves_at__isnull=False), name="lease_leaving"),
        ]
        constraints = [
            models.CheckConstraint(
                condition=Q(state=State.ENDED, ended_at__isnull=False)
                | (~Q(state=State.ENDED) & Q(ended_at__isnull=True)),
                name="lease_ended_at_iff_ended",
            ),
            models.CheckConstraint(
                condition=~Q(state__in=[State.ENDING, State.ENDED]) | ~Q(ending_reason=""),
                name="lease_that_ends_says_why",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.public_id} ({self.request})"

    @property
    def public_id(self) -> str:
        return ids.encode("lease", self.id)

    @property
    def is_bare(self) -> bool:
        """Whether it is whole machines over SSH instead of containers."""
        return bool(self.constraints.get("bare"))

    @property
    def price_term(self) -> str:
        """The term by which it is priced: spot with its notice, reserved with its period."""
        if self.term_kind == self.TermKind.SPOT:
            return f"spot:{self.notice_s}"
        return f"reserved:{self.period}" if self.term_kind == self.TermKind.RESERVED else str(self.term_kind)


class LeaseMember(models.Model):
    """One host's part of a lease in one epoch. A gang is whole or absent."""

    lease = models.ForeignKey(Lease, models.PROTECT, related_name="members")
    epoch = models.BigIntegerField()
    rank = models.PositiveSmallIntegerField()
    host = models.ForeignKey(Host, models.PROTECT, related_name="lease_members")
    gpu_count = models.PositiveSmallIntegerField()
    price_version_id = models.BigIntegerField()  # of this host's tier, as promised
    price_micros_per_hour = models.BigIntegerField()  # one GPU or slice

    class Meta:
        ordering = ["lease", "epoch", "rank"]
        constraints = [
            models.UniqueConstraint(fields=["lease", "epoch", "rank"], name="one_member_per_rank"),
            models.UniqueConstraint(fields=["lease", "epoch", "host"], name="members_of_a_gang_on_different_hosts"),
        ]

    def __str__(self) -> str:
        return f"member {self.rank} of {self.lease_id}"


class LeaseEvent(models.Model):
    """One move of a lease: append-only, numbered per lease."""

    lease = models.ForeignKey(Lease, models.PROTECT, related_name="events")
    seq = models.PositiveIntegerField()
    at = models.DateTimeField()
    from_state = models.CharField(max_length=12, blank=True)
    to_state = models.CharField(max_length=12)
    reason = models.CharField(max_length=40)
    detail = models.CharField(max_length=500, blank=True)
    facts = models.JSONField(default=dict, blank=True)

    class Meta:
        ordering = ["lease", "seq"]
        constraints = [models.UniqueConstraint(fields=["lease", "seq"], name="lease_events_are_numbered")]

    def __str__(self) -> str:
        return f"{self.from_state} -> {self.to_state} ({self.reason})"


class Quote(models.Model):
    """An offer made binding: named devices are held and the price is frozen until `expires_at`. Redeemed once."""

    class State(models.TextChoices):
        OPEN = "open"
        REDEEMED = "redeemed"
        CANCELLED = "cancelled"
        EXPIRED = "expired"

    id = models.UUIDField(primary_key=True, default=ids.new, editable=False)
    organization = models.ForeignKey(Organization, models.PROTECT, related_name="quotes")
    state = models.CharField(max_length=10, choices=State, default=State.OPEN)
    version = models.PositiveIntegerField(default=1)
    request = models.CharField(max_length=300)
    terms = models.JSONField()  # what request_lease takes: image, term, constraints
    placement = models.JSONField()  # members: host, devices, units
    option_index = models.PositiveSmallIntegerField()
    gpu_count = models.PositiveIntegerField()
    currency = models.CharField(max_length=3)
    simulated = models.BooleanField(default=False)
    sku = models.CharField(max_length=60)
    price_micros_per_hour = models.BigIntegerField()  # all its GPUs
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField()
    lease = models.OneToOneField(Lease, models.PROTECT, null=True, blank=True, related_name="quote")

    class Meta:
        indexes = [models.Index(fields=["expires_at"], condition=Q(state="open"), name="quote_open_by_expiry")]
        constraints = [
            models.CheckConstraint(
                condition=Q(state="redeemed", lease__isnull=False) | (~Q(state="redeemed") & Q(lease__isnull=True)),
                name="quote_redeemed_iff_it_has_a_lease",
            )
        ]

    def __str__(self) -> str:
        return f"{self.public_id} ({self.request})"

    @property
    def public_id(self) -> str:
        return ids.encode("quote", self.id)


class Allocation(models.Model):
    """Units of a device bound to a lease, or held for a quote, for a range of time: a line of the device's calendar.

    Never deleted: releasing it ends its range. The three exclusion constraints are invariant 1 of DOMAIN.md, and
    nothing but them is trusted for it.
    """

    class Mode(models.TextChoices):
        WHOLE = "whole"
        MIG = "mig"
        SHARED = "shared"

    device = models.ForeignKey(Device, models.PROTECT, related_name="allocations")
    lease = models.ForeignKey(Lease, models.PROTECT, null=True, blank=True, related_name="allocations")
    quote = models.ForeignKey(Quote, models.PROTECT, null=True, blank=True, related_name="allocations")
    organization_id = models.UUIDField()
    rank = models.PositiveSmallIntegerField(default=0)
    epoch = models.BigIntegerField(default=0)
    mode = models.CharField(max_length=6, choices=Mode, default=Mode.WHOLE)
    units = IntegerRangeField()  # of eight: [0, 8) is the whole GPU
    during = DateTimeRangeField()  # [start, end); an open end while nobody knows it
    released_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        indexes = [
            models.Index(fields=["lease"], condition=Q(released_at__isnull=True), name="allocation_live_of_lease"),
            models.Index(fields=["device"], condition=Q(released_at__isnull=True), name="allocation_live_of_device"),
        ]
        constraints = [
            ExclusionConstraint(
                name="unit_of_device_has_one_lease_at_a_time",
                expressions=[
                    ("device", RangeOperators.EQUAL),
                    ("units", RangeOperators.OVERLAPS),
                    ("during", RangeOperators.OVERLAPS),
                ],
            ),
            ExclusionConstraint(
                name="device_has_one_mode_at_a_time",
                expressions=[
                    ("device", RangeOperators.EQUAL),
                    ("mode", RangeOperators.NOT_EQUAL),
                    ("during", RangeOperators.OVERLAPS),
                ],
            ),
            ExclusionConstraint(
                name="shared_device_has_one_organization_at_a_time",
                expressions=[
                    ("device", RangeOperators.EQUAL),
                    ("organization_id", RangeOperators.NOT_EQUAL),
                    ("during", RangeOperators.OVERLAPS),
                ],
                condition=Q(mode="shared"),
            ),
            models.CheckConstraint(
                condition=Q(lease__isnull=False) | Q(quote__isnull=False), name="allocation_is_for_somebody"
            ),
            models.CheckConstraint(
                condition=Q(units__startswith__gte=0, units__endswith__lte=8), name="allocation_within_eight_units"
            ),
        ]

    def __str__(self) -> str:
        start = self.during.lower.astimezone(UTC) if self.during and self.during.lower else None
        return f"{self.device_id} from {start}"


from leasing import notice_models, volume_models  # noqa: E402, F401 - models of this app, in modules of their own
