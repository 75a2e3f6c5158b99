"""The rows of what is kept on a host's disk beyond its containers."""

from django.db import models
from django.db.models import Q

from audit import ids


class HostVolume(models.Model):
    """A volume on one host's disk. `reference` is whoever wants it (opaque here), `place` what the engine calls it.

    It is there from the first container that mounts it. Nothing is removed that was not ordered to be: `wanted` False
    is the order, repeated until the host says that it is done (`gone_at`).
    """

    id = models.UUIDField(primary_key=True, default=ids.new, editable=False)
    host = models.ForeignKey("agents.Host", models.CASCADE, related_name="volumes")
    reference = models.CharField(max_length=40)
    place = models.CharField(max_length=120)
    size_mib = models.PositiveBigIntegerField()
    wanted = models.BooleanField(default=True)
    wanted_at = models.DateTimeField()
    unwanted_at = models.DateTimeField(null=True, blank=True)
    gone_at = models.DateTimeField(null=True, blank=True)
    used_mib = models.PositiveBigIntegerField(null=True, blank=True)
    used_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        indexes = [models.Index(fields=["host"], condition=Q(gone_at__isnull=True), name="volume_there_on_host")]
        constraints = [
            models.UniqueConstraint(
                fields=["host", "reference"], condition=Q(gone_at__isnull=True), name="volume_once_on_a_host"
            ),
            models.UniqueConstraint(
                fields=["host", "place"], condition=Q(gone_at__isnull=True), name="volume_has_a_place_of_its_own"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.reference} on {self.host_id}"
