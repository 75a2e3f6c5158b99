"""Tables of the API's manners: answers kept for a retry, counters of rate limits. An organization is an opaque id."""

from django.db import models


class IdempotentAnswer(models.Model):
    """The answer to a POST, written in the transaction of its effect: both are there, or neither."""

    pk = models.CompositePrimaryKey("organization_id", "key")
    organization_id = models.UUIDField()
    key = models.CharField(max_length=255)
    fingerprint = models.BinaryField(max_length=32)  # SHA-256 of method, path, query and body
    expires_at = models.DateTimeField(db_index=True)
    status = models.PositiveSmallIntegerField(null=True)  # None only inside the transaction that answers
    headers = models.JSONField(default=dict)
    body = models.BinaryField(default=b"")
    sealed = models.BooleanField(default=False)  # the body is under AES-GCM (apikit.sealing): it shows a secret

    def __str__(self) -> str:
        return f"answer to {self.key[:16]}"


class RateCounter(models.Model):
    """How often `subject` did what `policy` limits in the window that began at `window`. The table is UNLOGGED."""

    pk = models.CompositePrimaryKey("policy", "subject", "window")
    policy = models.CharField(max_length=32)
    subject = models.CharField(max_length=200)
    window = models.DateTimeField(db_index=True)
    n = models.PositiveIntegerField()

    def __str__(self) -> str:
        return f"{self.policy} {self.subject}: {self.n}"
