"""The append-only log of what was done: each entry carries the hash of the one before it in its chain."""

from django.db import models

from audit import ids


class Entry(models.Model):
    """One act: who, what, to what, before, after, why. Triggers refuse UPDATE, DELETE and TRUNCATE."""

    id = models.UUIDField(primary_key=True, default=ids.new, editable=False)
    # Opaque here. None: the platform's own chain. A chain for each organization, so that one tenant's acts wait for
    # nobody else's transaction.
    organization_id = models.UUIDField(null=True, blank=True)
    position = models.PositiveBigIntegerField()  # 1, 2, 3 ... in its chain, without a gap
    at = models.DateTimeField()
    actor = models.CharField(max_length=200)  # "user_...", "key_...", "operator:...", "system:..."
    action = models.CharField(max_length=64)  # "api_key.created"
    target = models.CharField(max_length=200)  # public id of what was acted on
    before = models.JSONField(null=True, blank=True)
    after = models.JSONField(null=True, blank=True)
    why = models.CharField(max_length=500, blank=True)
    request_id = models.CharField(max_length=64, blank=True)
    previous_sha256 = models.BinaryField(max_length=32)
    sha256 = models.BinaryField(max_length=32)

    class Meta:
        verbose_name_plural = "entries"
        constraints = [
            models.UniqueConstraint(
                fields=["organization_id", "position"], nulls_distinct=False, name="audit_entry_has_one_place"
            ),
        ]

    @property
    def public_id(self) -> str:
        return ids.encode("audit", self.pk)

    def __str__(self) -> str:
        return f"{self.action} {self.target}"
