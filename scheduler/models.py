"""One table: how the loops fare. What they do is due by other tables' rows."""

from django.db import models


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
