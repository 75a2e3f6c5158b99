"""One table: what the last check of the books found. The rest of this app only shows what others keep."""

from django.db import models


class InvariantCheck(models.Model):
    """An invariant of the books (billing.reconcile), and what its last check found."""

    name = models.CharField(primary_key=True, max_length=200)
    checked_at = models.DateTimeField()
    findings = models.PositiveIntegerField()  # rows that break it
    examples = models.JSONField(default=list, blank=True)  # the first few, as [{"row", "detail"}]

    class Meta:
        ordering = ["-findings", "name"]

    def __str__(self) -> str:
        return self.name
