"""For whom: organizations, their members with roles, and their API keys."""

from datetime import datetime

from django.contrib.postgres.fields import ArrayField
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from accounts.models import User
from audit import ids


class Organization(models.Model):
    """Who pays: a tenant, an owner of hosts, or both."""

    id = models.UUIDField(primary_key=True, default=ids.new, editable=False)
    name = models.CharField(max_length=64)
    slug = models.SlugField(max_length=64, unique=True)
    time_zone = models.CharField(max_length=64, default="UTC")  # of its statements: a month begins at its midnight
    currency = models.CharField(max_length=3, default="CNY")  # XTS where the hardware is simulated
    gpu_quota = models.PositiveIntegerField(default=64)  # GPUs held at one time
    # Its part where there is less than all want, beside the weights of the others (scheduler.queue_order).
    queue_weight = models.PositiveSmallIntegerField(
        default=100, validators=[MinValueValidator(1), MaxValueValidator(10_000)]
    )
    banned_at = models.DateTimeField(null=True, blank=True, editable=False)  # by an operator; its keys are refused
    banned_reason = models.CharField(max_length=300, blank=True, default="", db_default="", editable=False)
    version = models.PositiveBigIntegerField(default=1)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(currency__regex="^[A-Z]{3}$"), name="organization_currency_is_iso_4217"),
            models.CheckConstraint(
                condition=Q(queue_weight__range=(1, 10_000)), name="organization_has_a_weight_in_the_queue"
            ),
        ]

    @property
    def public_id(self) -> str:
        return ids.encode("org", self.pk)

    def __str__(self) -> str:
        return self.name


class Role(models.TextChoices):
    OWNER = "owner"
    ADMIN = "admin"
    DEVELOPER = "developer"
    BILLING = "billing"
    VIEWER = "viewer"


class Membership(models.Model):
    """A person's role in an organization."""

    id = models.UUIDField(primary_key=True, default=ids.new, editable=False)
    organization = models.ForeignKey(Organization, models.PROTECT, related_name="memberships")
    user = models.ForeignKey(User, models.PROTECT, related_name="memberships")
    role = models.CharField(max_length=16, choices=Role)
    version = models.PositiveBigIntegerField(default=1)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["organization", "user"], name="membership_once_per_organization"),
            models.CheckConstraint(condition=Q(role__in=Role.values), name="membership_role_is_known"),
        ]
        indexes = [models.Index(fields=["organization", "id"], name="membership_of_organization")]

    @property
    def public_id(self) -> str:
        return ids.encode("member", self.pk)

    def __str__(self) -> str:
        return f"{self.user} as {self.role} of {self.organization}"


class ApiKey(models.Model):
    """A credential of one organization. Only a hash of it is stored; `public` is its visible part."""

    id = models.UUIDField(primary_key=True, default=ids.new, editable=False)
    organization = models.ForeignKey(Organization, models.PROTECT, related_name="api_keys")
    name = models.CharField(max_length=64)
    public = models.CharField(max_length=8, unique=True)
    secret_sha256 = models.BinaryField(max_length=32)  # of the whole text; 190 random bits need no slow hash
    scopes = ArrayField(models.CharField(max_length=32))
    # Whose rights bound it, today and not at its making; None = made by the platform, bounded by its scopes alone.
    created_by = models.ForeignKey(User, models.PROTECT, null=True, blank=True, related_name="api_keys")
    created_at = models.DateTimeField(db_default=Now())
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True)  # to the minute
    replaced_by = models.OneToOneField("self", models.PROTECT, null=True, blank=True, related_name="replaces")
    version = models.PositiveBigIntegerField(default=1)

    class Meta:
        verbose_name = "API key"
        constraints = [
            models.CheckConstraint(condition=~Q(scopes=[]), name="api_key_has_a_scope"),
        ]
        indexes = [models.Index(fields=["organization", "id"], name="api_key_of_organization")]

    @property
    def public_id(self) -> str:
        return ids.encode("key", self.pk)

    def is_live(self, *, at: datetime) -> bool:
        """Say whether it is good at `at`: `keys.live` for one that is at hand."""
        return self.revoked_at is None and (self.expires_at is None or self.expires_at > at)

    def __str__(self) -> str:
        return f"gy_live_{self.public} ({self.name})"


class Secret(models.Model):
    """A value that containers of an organization may get by its name. It is stored sealed, and no door shows it."""

    id = models.UUIDField(primary_key=True, default=ids.new, editable=False)
    organization = models.ForeignKey(Organization, models.PROTECT, related_name="secrets")
    name = models.CharField(max_length=64)
    sealed = models.BinaryField()  # apikit.sealing, for the place organization|secret|name
    version = models.PositiveBigIntegerField(default=1)
    created_at = models.DateTimeField(db_default=Now())
    replaced_at = models.DateTimeField(null=True, blank=True)  # since when it has its present value, if not its first

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["organization", "name"], name="secret_name_is_unique_for_its_owner"),
        ]
        indexes = [models.Index(fields=["organization", "id"], name="secret_of_organization")]

    @property
    def public_id(self) -> str:
        return ids.encode("secret", self.pk)

    def __str__(self) -> str:
        return self.name


from tenants import group_models  # noqa: E402, F401 -- Django looks for models here; it needs ours
