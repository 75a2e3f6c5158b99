"""What leaves the system: messages written with the change that they tell, webhook endpoints, and deliveries."""

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from audit import ids
from tenants.models import Organization


class Message(models.Model):
    """A fact to be told outside, written in the transaction that made it true. Delivered at least once."""

    id = models.UUIDField(primary_key=True, default=ids.new, editable=False)
    organization = models.ForeignKey(Organization, models.PROTECT, null=True, blank=True, related_name="+")
    topic = models.CharField(max_length=64)  # "lease.active"
    key = models.CharField(max_length=200, unique=True)  # says it once: a second post with this key changes nothing
    payload = models.JSONField()
    created_at = models.DateTimeField(db_default=Now())
    available_at = models.DateTimeField()
    relayed_at = models.DateTimeField(null=True, blank=True)  # its deliveries exist

    class Meta:
        indexes = [
            models.Index(fields=["available_at"], condition=Q(relayed_at__isnull=True), name="message_due"),
        ]

    @property
    def public_id(self) -> str:
        return ids.encode("msg", self.pk)

    def __str__(self) -> str:
        return f"{self.topic} {self.key}"


class Endpoint(models.Model):
    """A tenant's webhook: where its events are sent, signed."""

    id = models.UUIDField(primary_key=True, default=ids.new, editable=False)
    organization = models.ForeignKey(Organization, models.PROTECT, related_name="webhook_endpoints")
    url = models.CharField(max_length=500)
    events = ArrayField(models.CharField(max_length=64))
    secret = models.BinaryField()  # sealed (apikit.sealing)
    old_secret = models.BinaryField(null=True, blank=True)  # signs too until old_secret_until, while rotating
    old_secret_until = models.DateTimeField(null=True, blank=True)
    disabled_at = models.DateTimeField(null=True, blank=True)
    disabled_reason = models.CharField(max_length=100, blank=True)
    deleted_at = models.DateTimeField(null=True, blank=True)
    version = models.PositiveBigIntegerField(default=1)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        verbose_name = "webhook endpoint"
        indexes = [models.Index(fields=["organization", "id"], name="endpoint_of_organization")]

    @property
    def public_id(self) -> str:
        return ids.encode("webhook", self.pk)

    def __str__(self) -> str:
        return self.url


class DeliveryState(models.TextChoices):
    PENDING = "pending"
    DELIVERED = "delivered"
    FAILED = "failed"  # out of tries, or its endpoint is disabled; may be replayed


class Delivery(models.Model):
    """One message on its way to one endpoint."""

    id = models.UUIDField(primary_key=True, default=ids.new, editable=False)
    endpoint = models.ForeignKey(Endpoint, models.PROTECT, related_name="deliveries")
    message_id = models.UUIDField()  # stays the same over retries and replays: receivers dedupe on it
    topic = models.CharField(max_length=64)
    body = models.TextField()
    state = models.CharField(max_length=16, choices=DeliveryState, default=DeliveryState.PENDING)
    attempts = models.PositiveSmallIntegerField(default=0)
    due_at = models.DateTimeField()
    claim_token = models.UUIDField(null=True, blank=True)
    claim_until = models.DateTimeField(null=True, blank=True)
    last_status = models.PositiveSmallIntegerField(null=True, blank=True)  # HTTP status of the last answer
    last_error = models.CharField(max_length=300, blank=True)
    delivered_at = models.DateTimeField(null=True, blank=True)
    version = models.PositiveBigIntegerField(default=1)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        verbose_name_plural = "deliveries"
        constraints = [
            models.UniqueConstraint(fields=["endpoint", "message_id"], name="delivery_once_per_endpoint_and_message"),
            models.CheckConstraint(
                condition=Q(state=DeliveryState.DELIVERED, delivered_at__isnull=False)
                | (~Q(state=DeliveryState.DELIVERED) & Q(delivered_at__isnull=True)),
                name="delivery_delivered_at_iff_delivered",
            ),
        ]
        indexes = [
            models.Index(fields=["due_at"], condition=Q(state=DeliveryState.PENDING), name="delivery_due"),
            models.Index(fields=["endpoint", "id"], name="delivery_of_endpoint"),
        ]

    @property
    def public_id(self) -> str:
        return ids.encode("delivery", self.pk)

    def __str__(self) -> str:
        return f"{self.topic} to {self.endpoint}"
