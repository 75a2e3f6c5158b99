"""Releases of the agent that operators have added, and which host was asked to take which."""

from django.db import models
from django.db.models import Q

from audit import ids


class AgentRelease(models.Model):
    """A signed release with its wheel. percent: of the hosts that are asked to take it; 0: none yet.

    document: as agents.release_text has it. stopped_at: it failed on too many, or an operator has stopped it; nobody
    new is asked, and nobody can fetch it.
    """

    id = models.UUIDField(primary_key=True, default=ids.new, editable=False)
    version = models.CharField(max_length=32, unique=True)
    sha256 = models.CharField(max_length=64, unique=True)
    document = models.JSONField()
    wheel = models.BinaryField()
    percent = models.PositiveSmallIntegerField(default=0)
    added_at = models.DateTimeField()
    added_by = models.CharField(max_length=80)
    stopped_at = models.DateTimeField(null=True, blank=True)
    stopped_why = models.CharField(max_length=300, blank=True)

    def __str__(self) -> str:
        return f"agent {self.version}"


class AgentUpgrade(models.Model):
    """One host was asked to take one release. Open while `ended_at` is empty."""

    class Outcome(models.TextChoices):
        DONE = "done"
        FAILED = "failed"

    host = models.ForeignKey("agents.Host", models.CASCADE, related_name="upgrades")
    release = models.ForeignKey(AgentRelease, models.CASCADE, related_name="upgrades")
    asked_at = models.DateTimeField()
    answer_by = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, blank=True)
    outcome = models.CharField(max_length=10, choices=Outcome, blank=True)
    detail = models.CharField(max_length=300, blank=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["host", "release"], name="upgrade_once_per_release")]
        indexes = [models.Index(fields=["host"], condition=Q(ended_at__isnull=True), name="upgrade_open_on_host")]

    def __str__(self) -> str:
        return f"{self.host} to {self.release}"
