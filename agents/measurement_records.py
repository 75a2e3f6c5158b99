"""What GPUs measured while a workload had them: one row a workload and minute."""

from django.contrib.postgres.fields import ArrayField
from django.db import models


class MeasuredMinute(models.Model):
    """The samples of one minute, summed: for each GPU of the workload's spec, in its order, each of the figures.

    `counts` says how many samples held the figure, `sums` and `peaks` what they said (agents.measurements.FIGURES).
    """

    pk = models.CompositePrimaryKey("workload_id", "minute")
    workload = models.ForeignKey("agents.Workload", models.CASCADE, related_name="measured_minutes")
    minute = models.DateTimeField()
    counts = ArrayField(models.SmallIntegerField())
    sums = ArrayField(models.BigIntegerField())
    peaks = ArrayField(models.IntegerField(null=True))

    class Meta:
        indexes = [models.Index(fields=["minute"], name="measured_minute_by_age")]

    def __str__(self) -> str:
        return f"workload {self.workload_id} at {self.minute:%Y-%m-%dT%H:%MZ}"
