"""What is kept about whole machines: how the platform gets in, and who was given one when (bare metal)."""

from django.db import models
from django.db.models import Q

from audit import ids


class MachineAccess(models.Model):
    """The platform's own way into a host over SSH: an account with our key, and the one host key that is trusted."""

    host = models.OneToOneField("agents.Host", models.CASCADE, related_name="machine_access")
    address = models.CharField(max_length=255)
    port = models.PositiveIntegerField(default=22)
    user = models.CharField(max_length=32)
    key_kind = models.CharField(max_length=40)  # of the pinned host key
    key_body = models.CharField(max_length=1000)
    pinned_at = models.DateTimeField()
    pinned_by = models.CharField(max_length=80, blank=True)
    # The machine showed another key than the pinned one: nothing is sent to it until an operator accepts this one.
    shown_kind = models.CharField(max_length=40, blank=True)
    shown_body = models.CharField(max_length=1000, blank=True)
    shown_at = models.DateTimeField(null=True, blank=True)
    offered = models.BooleanField(default=True)  # the owner's wish: the host may be let as a whole machine
    # Why no machine is let over this access just now; looked at again at `check_at`.
    trouble = models.CharField(max_length=300, blank=True)
    check_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        verbose_name_plural = "machine accesses"

    def __str__(self) -> str:
        return f"{self.user} at {self.address}:{self.port}"


class Handover(models.Model):
    """One machine in the hands of one workload's tenant: given for a term, taken back, proven clean."""

    class State(models.TextChoices):
        GIVING = "giving"  # its account and keys are being made
        GIVEN = "given"
        TAKING = "taking"  # keys off, sessions ended, home wiped
        REBOOTING = "rebooting"
        TESTING = "testing"  # clean: it must pass a self-test before anybody else has it
        BACK = "back"
        STUCK = "stuck"  # it could not be taken back: the host is quarantined, and a person looks

    workload = models.OneToOneField("agents.Workload", models.PROTECT, related_name="handover")
    state = models.CharField(max_length=10, choices=State, default=State.GIVING)
    state_since = models.DateTimeField()
    user = models.CharField(max_length=32)
    uid = models.PositiveIntegerField(null=True, blank=True)
    began_at = models.DateTimeField(null=True, blank=True)  # before this nothing of it can be on the machine
    given_at = models.DateTimeField(null=True, blank=True)
    given_until = models.DateTimeField(null=True, blank=True)  # the end that its keys bear; None: no end
    # Would the machine let the tenant in (agents.machine_looks)? When it last said so, and how often since it has not.
    let_in_at = models.DateTimeField(null=True, blank=True)
    refusals = models.PositiveSmallIntegerField(default=0)
    shut_since = models.DateTimeField(
        null=True, blank=True
    )  # it is taken for shut: the last second in which it was not
    look_at = models.DateTimeField(null=True, blank=True)
    cleared_at = models.DateTimeField(null=True, blank=True)
    baseline = models.JSONField(default=dict, blank=True)  # digests of what a tenant must not have changed
    steps = models.JSONField(default=list, blank=True)  # [{"at", "step", "state", "found"}], the last ones
    drift = models.JSONField(default=list, blank=True)  # what was other than in the baseline when it came back
    boot_id = models.CharField(max_length=64, blank=True)  # of the host before it was rebooted
    last_error = models.CharField(max_length=300, blank=True)
    check_at = models.DateTimeField()
    claim_token = models.UUIDField(null=True, blank=True)
    claim_until = models.DateTimeField(null=True, blank=True)
    attempts = models.PositiveIntegerField(default=0)  # failed ones in a row

    class Meta:
        indexes = [models.Index(fields=["check_at"], condition=~Q(state="back"), name="handover_due")]

    def __str__(self) -> str:
        return f"{self.user} ({self.state})"


class Maintenance(models.Model):
    """A window in which an owner's machine is away, announced ahead (agents.maintenance)."""

    id = models.UUIDField(primary_key=True, default=ids.new, editable=False)
    host = models.ForeignKey("agents.Host", models.CASCADE, related_name="maintenances")
    starts_at = models.DateTimeField()
    ends_at = models.DateTimeField()
    message = models.CharField(max_length=300)
    lead_s = models.PositiveIntegerField()  # so long before it begins nothing new is taken, and tenants are told
    announced_at = models.DateTimeField()
    announced_by = models.CharField(max_length=80, blank=True)
    withdrawn_at = models.DateTimeField(null=True, blank=True)
    drained_at = models.DateTimeField(null=True, blank=True)
    drain_reason = models.CharField(max_length=300, blank=True)
    over_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        verbose_name_plural = "maintenances"
        indexes = [
            models.Index(fields=["starts_at"], condition=Q(over_at=None, withdrawn_at=None), name="maintenance_ahead")
        ]
        constraints = [
            models.CheckConstraint(condition=Q(ends_at__gt=models.F("starts_at")), name="maintenance_has_a_length")
        ]

    def __str__(self) -> str:
        return f"{self.host_id} from {self.starts_at:%Y-%m-%dT%H:%M:%SZ}"

    @property
    def public_id(self) -> str:
        return ids.encode("maint", self.id)
