"""What is kept about hosts beside their state: events, alarms, enrolments, logs, receipts, self-tests."""

from django.db import models
from django.db.models import Q
from django.db.models.functions import Cast, Now

from audit import ids
from catalogue.models import Zone
from tenants.models import Organization


class Enrolment(models.Model):
    """A one-time permission to add one host to an organization. Only a hash of its token is stored."""

    id = models.UUIDField(primary_key=True, default=ids.new, editable=False)
    organization = models.ForeignKey(Organization, models.PROTECT, related_name="enrolments")
    zone = models.ForeignKey(Zone, models.PROTECT, related_name="enrolments")
    name = models.CharField(max_length=64)
    access = models.CharField(max_length=20)  # Host.Access
    declared = models.JSONField(default=dict, blank=True)  # {"gpus": {slug: count}}; {} = nothing was said
    token_sha256 = models.CharField(max_length=64, unique=True)
    created_by = models.CharField(max_length=80, blank=True)
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField()
    used_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    host = models.ForeignKey("agents.Host", models.PROTECT, null=True, blank=True, related_name="enrolments")

    class Meta:
        indexes = [models.Index(fields=["organization", "-created_at", "-id"], name="enrolment_newest_first")]
        constraints = [
            models.CheckConstraint(
                condition=Q(used_at__isnull=True, host__isnull=True) | Q(used_at__isnull=False, host__isnull=False),
                name="enrolment_used_iff_it_has_a_host",
            ),
            models.CheckConstraint(
                condition=Q(used_at__isnull=True) | Q(revoked_at__isnull=True), name="enrolment_used_or_revoked"
            ),
        ]

    def __str__(self) -> str:
        return f"enrolment of {self.name}"

    @property
    def public_id(self) -> str:
        return ids.encode("enrol", self.id)


class HostEvent(models.Model):
    """Something that happened to a host or one of its devices, in its own words; never edited."""

    host = models.ForeignKey("agents.Host", models.CASCADE, related_name="events")
    device = models.ForeignKey("agents.Device", models.CASCADE, null=True, blank=True, related_name="events")
    at = models.DateTimeField()
    kind = models.CharField(max_length=40)
    detail = models.CharField(max_length=500, blank=True)
    by = models.CharField(max_length=80, blank=True)  # who asked; "" = the platform itself
    facts = models.JSONField(default=dict, blank=True)
    # Of an event that the agent reported: its key and its number there, so that one sent twice is kept once.
    key_id = models.CharField(max_length=32, blank=True)
    n = models.BigIntegerField(null=True, blank=True)

    class Meta:
        indexes = [
            models.Index(fields=["host", "-id"], name="host_event_newest_first"),
            models.Index(fields=["kind", "at"], name="host_event_by_kind"),
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["host", "key_id", "n"], condition=Q(n__isnull=False), name="agent_event_is_kept_once"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.kind} of host {self.host_id}"


class CleaningRecord(models.Model):
    """A device that a tenant has left, and what was looked at before the next one may have it; never edited."""

    host = models.ForeignKey("agents.Host", models.CASCADE, related_name="cleanings")
    device = models.ForeignKey("agents.Device", models.CASCADE, related_name="cleanings")
    reference = models.CharField(max_length=40)  # whose container was on it
    member = models.PositiveSmallIntegerField()
    epoch = models.BigIntegerField()
    ended_at = models.DateTimeField()
    at = models.DateTimeField()  # when the host's word was received
    was_clean = models.BooleanField(null=True)  # None: the host did not say
    duration_ms = models.PositiveIntegerField(null=True)
    checks = models.JSONField(default=list)  # [{check, passed, detail}]; passed null: could not be told

    class Meta:
        indexes = [models.Index(fields=["device", "-at"], name="cleaning_newest_first")]

    def __str__(self) -> str:
        return f"{self.reference} epoch {self.epoch} left device {self.device_id}"


class ScoreEntry(models.Model):
    """A mishap of a host in its ledger of points (agents.score): one line per event of the diary, never edited."""

    host = models.ForeignKey("agents.Host", models.CASCADE, related_name="score_entries")
    event = models.OneToOneField(HostEvent, models.CASCADE, related_name="score_entry")
    at = models.DateTimeField()
    points = models.IntegerField()

    class Meta:
        verbose_name_plural = "score entries"
        indexes = [models.Index(fields=["host", "-at"], name="score_entry_newest_first")]
        constraints = [models.CheckConstraint(condition=Q(points__lt=0), name="score_entry_takes_points_away")]

    def __str__(self) -> str:
        return f"{self.points} for host {self.host_id}"


class Alarm(models.Model):
    """Something that a person must look at. At most one is open per kind and subject."""

    kind = models.CharField(max_length=40)
    subject = models.CharField(max_length=80, blank=True)
    detail = models.CharField(max_length=500)
    facts = models.JSONField(default=dict, blank=True)
    opened_at = models.DateTimeField()
    closed_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["kind", "subject"], condition=Q(closed_at__isnull=True), name="alarm_is_open_once"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.subject}".strip()


class Sweep(models.Model):
    """The progress of the silence sweep: one row. Its liveness is read here, never by a ping."""

    id = models.PositiveSmallIntegerField(primary_key=True, default=1)
    swept_at = models.DateTimeField()
    # Since when we have been listening without a gap: who was not heard since then may only not have been heard by us.
    listening_since = models.DateTimeField()
    # While the breaker is open nobody is declared lost.
    breaker_since = models.DateTimeField(null=True, blank=True)
    # Of the change log of capacity: a reader whose cursor is below this must reload everything.
    forgotten_below = models.BigIntegerField(default=0)

    class Meta:
        constraints = [models.CheckConstraint(condition=Q(id=1), name="sweep_is_one_row")]

    def __str__(self) -> str:
        return f"swept at {self.swept_at:%Y-%m-%dT%H:%M:%SZ}"


# xid8 has no cast to bigint but through text.
_this_transaction = Cast(
    Cast(models.Func(function="pg_current_xact_id", output_field=models.TextField()), models.TextField()),
    models.BigIntegerField(),
)


class CapacityChange(models.Model):
    """One line of the change log: this host's capacity changed in the transaction `xid8` (agents.capacity)."""

    host = models.ForeignKey("agents.Host", models.CASCADE, related_name="capacity_changes")
    xid8 = models.BigIntegerField(db_default=_this_transaction, db_index=True)
    at = models.DateTimeField(db_default=Now())

    def __str__(self) -> str:
        return f"capacity of host {self.host_id} in transaction {self.xid8}"


class LogChunk(models.Model):
    """A piece of a workload's output. `first` and `last` count the bytes the agent counted; `position` is where the
    text stands in the one stream of (reference, member) over all epochs, in bytes of UTF-8."""

    workload = models.ForeignKey("agents.Workload", models.CASCADE, related_name="log_chunks")
    reference = models.CharField(max_length=40)
    member = models.PositiveSmallIntegerField()
    first = models.BigIntegerField()
    last = models.BigIntegerField()
    position = models.BigIntegerField()
    size = models.PositiveIntegerField()  # bytes of `text` in UTF-8
    text = models.TextField()
    at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["workload", "first"], name="log_chunk_once_per_offset"),
            models.UniqueConstraint(fields=["reference", "member", "position"], name="log_stream_has_one_order"),
        ]
        indexes = [models.Index(fields=["at"], name="log_chunk_by_age")]

    def __str__(self) -> str:
        return f"{self.reference}/{self.member} {self.position}+{self.size}"


class Receipt(models.Model):
    """What the agent signed about a workload's use, in a chain per (reference, member, epoch): evidence, no price."""

    host = models.ForeignKey("agents.Host", models.PROTECT, related_name="receipts")
    key_id = models.CharField(max_length=32)
    n = models.BigIntegerField()
    reference = models.CharField(max_length=40)
    member = models.PositiveSmallIntegerField()
    epoch = models.BigIntegerField()
    kind = models.CharField(max_length=10)
    body = models.JSONField()  # as signed, with its signature
    sha256 = models.CharField(max_length=64)  # of the canonical JSON: what the next one must name as `prev`
    faults = models.JSONField(default=list, blank=True)  # why it proves nothing; [] = it holds
    received_at = models.DateTimeField()

    class Meta:
        indexes = [models.Index(fields=["reference", "member", "epoch", "n"], name="receipt_chain")]
        constraints = [models.UniqueConstraint(fields=["host", "key_id", "n"], name="receipt_is_kept_once")]

    def __str__(self) -> str:
        return f"receipt {self.n} of {self.reference}/{self.member}"


class SelfTest(models.Model):
    """One verification of a host: what we asked, what came back, and what each check said."""

    id = models.UUIDField(primary_key=True, default=ids.new, editable=False)
    host = models.ForeignKey("agents.Host", models.CASCADE, related_name="self_tests")
    level = models.CharField(max_length=2, default="L0")  # what it has shown (agents.challenges)
    asked_level = models.CharField(max_length=2, default="L1")
    round = models.PositiveSmallIntegerField(default=1)  # of an L2, which is three tests in a row
    cause = models.CharField(max_length=100)
    seed = models.CharField(max_length=64)
    devices = models.JSONField()  # UUIDs that must answer
    asked_at = models.DateTimeField()
    answer_by = models.DateTimeField()
    answered_at = models.DateTimeField(null=True, blank=True)
    passed = models.BooleanField(null=True)  # None: not answered yet
    simulated = models.BooleanField(default=False)
    checks = models.JSONField(default=list, blank=True)  # [{"check", "passed", "detail"}]
    figures = models.JSONField(default=dict, blank=True)  # per device UUID, units in the names

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["host"], condition=Q(passed__isnull=True), name="one_self_test_at_a_time_per_host"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.level} self-test of host {self.host_id}"
