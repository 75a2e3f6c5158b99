"""What is kept of a tenant's commands: who asked for which, and what came of it, for KEPT of agents.executions."""

from django.db import models
from django.db.models import Q

from audit import ids


class Execution(models.Model):
    """One command in one member of a lease at one epoch. Open while `answered_at` is empty and `answer_by` ahead."""

    id = models.UUIDField(primary_key=True, default=ids.new, editable=False)
    host = models.ForeignKey("agents.Host", models.CASCADE, related_name="executions")
    reference = models.CharField(max_length=80)
    member = models.PositiveSmallIntegerField()
    epoch = models.PositiveIntegerField()
    argv = models.JSONField()
    timeout_s = models.PositiveIntegerField()
    asked_by = models.CharField(max_length=80)
    asked_at = models.DateTimeField()
    answer_by = models.DateTimeField()
    answered_at = models.DateTimeField(null=True, blank=True)
    exit_code = models.IntegerField(null=True, blank=True)
    output = models.TextField(blank=True)
    truncated = models.BooleanField(default=False)
    failure = models.CharField(max_length=300, blank=True)

    class Meta:
        indexes = [
            models.Index(fields=["host"], condition=Q(answered_at__isnull=True), name="execution_open_on_host"),
            models.Index(fields=["reference"], name="execution_of_reference"),
        ]

    def __str__(self) -> str:
        return f"{self.public_id} in {self.reference}/{self.member}"

    @property
    def public_id(self) -> str:
        return ids.encode("exec", self.pk)
