"""Money that crosses the border: in through payments, back through refunds, out to owners of hosts.

An intent is written before the provider is called, with the key that every attempt uses. `unknown` is a state: the
call may have worked, and nothing is tried again before the provider's own record says so.
"""

from django.db import models
from django.db.models import Q

from audit import ids
from billing.models.accounts import Account


class IntentState(models.TextChoices):
    CREATED = "created"
    SETTLED = "settled"
    REFUSED = "refused"
    UNKNOWN = "unknown"


OPEN = (IntentState.CREATED, IntentState.UNKNOWN)


class Payment(models.Model):
    """A top-up through a provider. `provider_ref` is the provider's id of it: money is credited once on that."""

    id = models.UUIDField(primary_key=True, default=ids.new, editable=False)
    wallet = models.ForeignKey(Account, models.PROTECT, related_name="payments")
    provider = models.CharField(max_length=20)
    key = models.CharField(max_length=100, unique=True)
    amount_minor = models.BigIntegerField()
    state = models.CharField(max_length=10, choices=IntentState, default=IntentState.CREATED)
    provider_ref = models.CharField(max_length=200, blank=True, default="")
    detail = models.CharField(max_length=300, blank=True, default="")
    created_at = models.DateTimeField()
    settled_at = models.DateTimeField(null=True, blank=True)
    look_at = models.DateTimeField(null=True, blank=True)  # when the provider is asked what became of it; None: never

    class Meta:
        indexes = [models.Index(fields=["look_at"], name="payments_to_look_at", condition=Q(look_at__isnull=False))]
        constraints = [
            models.CheckConstraint(condition=Q(amount_minor__gt=0), name="payment_is_positive"),
            models.UniqueConstraint(
                fields=["provider", "provider_ref"],
                condition=~Q(provider_ref=""),
                name="provider_charge_is_credited_once",
            ),
        ]

    @property
    def public_id(self) -> str:
        return ids.encode("payment", self.pk)

    def __str__(self) -> str:
        return f"payment {self.pk} {self.state}"


class Refund(models.Model):
    payment = models.ForeignKey(Payment, models.PROTECT, related_name="refunds")
    n = models.IntegerField()
    key = models.CharField(max_length=100, unique=True)
    amount_minor = models.BigIntegerField()
    state = models.CharField(max_length=10, choices=IntentState, default=IntentState.CREATED)
    provider_ref = models.CharField(max_length=200, blank=True, default="")
    created_at = models.DateTimeField()
    settled_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["payment", "n"], name="refunds_of_a_payment_are_numbered"),
            models.CheckConstraint(condition=Q(amount_minor__gt=0), name="refund_is_positive"),
        ]

    def __str__(self) -> str:
        return f"refund {self.n} of {self.payment_id}"


class Payout(models.Model):
    """Earnings on their way out. One is in flight per payee, so a lost answer can never be paid twice."""

    id = models.UUIDField(primary_key=True, default=ids.new, editable=False)
    payee = models.ForeignKey(Account, models.PROTECT, related_name="payouts")
    provider = models.CharField(max_length=20)
    period = models.CharField(max_length=20)
    n = models.IntegerField()
    key = models.CharField(max_length=160, unique=True)
    amount_minor = models.BigIntegerField()
    state = models.CharField(max_length=10, choices=IntentState, default=IntentState.CREATED)
    provider_ref = models.CharField(max_length=200, blank=True, default="")
    created_at = models.DateTimeField()
    settled_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["payee", "period", "n"], name="payouts_of_a_period_are_numbered"),
            models.UniqueConstraint(
                fields=["payee"], condition=Q(state__in=["created", "unknown"]), name="one_payout_in_flight"
            ),
            models.CheckConstraint(condition=Q(amount_minor__gt=0), name="payout_is_positive"),
        ]

    @property
    def public_id(self) -> str:
        return ids.encode("payout", self.pk)

    def __str__(self) -> str:
        return f"payout {self.key} {self.state}"


class InboxEvent(models.Model):
    """A provider's notification, written in the transaction that acts on it."""

    provider = models.CharField(max_length=20)
    event = models.CharField(max_length=200)
    kind = models.CharField(max_length=100)
    body_sha256 = models.CharField(max_length=64)
    received_at = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["provider", "event"], name="event_is_acted_on_once")]

    def __str__(self) -> str:
        return f"{self.provider} {self.event}"
