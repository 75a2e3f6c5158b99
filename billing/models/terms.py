"""What was promised for longer than an hour: reserved contracts paid ahead, and budgets."""

from django.contrib.postgres.fields import DateTimeRangeField
from django.db import models
from django.db.models import F, Q

from audit import ids
from billing.models.accounts import Account


class Contract(models.Model):
    """A reservation paid per period. Boundary k is anchor + k x `months` (or `days`) in `time_zone`."""

    id = models.UUIDField(primary_key=True, default=ids.new, editable=False)
    payer = models.ForeignKey(Account, models.PROTECT, related_name="contracts_paid")
    payee = models.ForeignKey(Account, models.PROTECT, related_name="contracts_earned")
    reference = models.CharField(max_length=64, unique=True)
    anchor = models.DateTimeField()
    time_zone = models.CharField(max_length=60, default="UTC")
    months = models.IntegerField(default=0)
    days = models.IntegerField(default=0)
    price_micros = models.BigIntegerField()  # of one period
    discount_bp = models.IntegerField(default=0)
    fee_bp = models.IntegerField(default=0)  # of what remains, at an early end
    commission_bp = models.IntegerField(default=0)
    renews = models.BooleanField(default=False)
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(months__gt=0, days=0) | Q(months=0, days__gt=0), name="contract_steps_by_months_or_days"
            ),
            models.CheckConstraint(
                condition=Q(price_micros__gte=0, fee_bp__range=(0, 10_000), commission_bp__range=(0, 10_000)),
                name="contract_terms_are_in_range",
            ),
        ]

    def __str__(self) -> str:
        return f"contract {self.reference}"


class ContractPeriod(models.Model):
    """Period k, paid ahead. `earned_micros` is cumulative: floor(price x used / length) less what was refunded."""

    contract = models.ForeignKey(Contract, models.PROTECT, related_name="periods")
    k = models.IntegerField()
    prepaid = models.OneToOneField(Account, models.PROTECT, related_name="+")
    start_s = models.BigIntegerField()
    end_s = models.BigIntegerField()
    price_micros = models.BigIntegerField()
    earned_micros = models.BigIntegerField(default=0)
    unusable_s = models.BigIntegerField(default=0)
    closed = models.BooleanField(default=False)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["contract", "k"], name="contract_period_is_paid_once"),
            models.CheckConstraint(condition=Q(end_s__gt=F("start_s")), name="contract_period_has_a_length"),
            models.CheckConstraint(
                condition=Q(earned_micros__gte=0, earned_micros__lte=F("price_micros")), name="earned_is_a_part"
            ),
        ]

    def __str__(self) -> str:
        return f"period {self.k} of {self.contract_id}"


class BudgetAction(models.TextChoices):
    NOTIFY = "notify"
    REFUSE = "refuse"  # no new start
    STOP = "stop"  # and what runs ends


class Budget(models.Model):
    """A line drawn over a month's usage of an organization, or of what bears one label ("key=value")."""

    id = models.UUIDField(primary_key=True, default=ids.new, editable=False)
    owner = models.UUIDField(db_index=True)
    currency = models.CharField(max_length=3)
    name = models.CharField(max_length=64)
    label = models.CharField(max_length=130, blank=True, default="")
    amount_micros = models.BigIntegerField()
    thresholds_bp = models.JSONField(default=list)  # e.g. [5000, 8000, 10000]
    action = models.CharField(max_length=10, choices=BudgetAction, default=BudgetAction.NOTIFY)
    time_zone = models.CharField(max_length=60, default="UTC")
    created_at = models.DateTimeField()
    version = models.IntegerField(default=1)

    class Meta:
        constraints = [models.CheckConstraint(condition=Q(amount_micros__gt=0), name="budget_is_positive")]

    @property
    def public_id(self) -> str:
        return ids.encode("budget", self.pk)

    def __str__(self) -> str:
        return self.name


class BudgetAlarm(models.Model):
    budget = models.ForeignKey(Budget, models.CASCADE, related_name="alarms")
    period = DateTimeRangeField()
    threshold_bp = models.IntegerField()
    spent_micros = models.BigIntegerField()
    at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["budget", "period", "threshold_bp"], name="budget_alarm_rings_once")
        ]

    def __str__(self) -> str:
        return f"{self.threshold_bp} bp of {self.budget_id}"


class RunningDryWarning(models.Model):
    """A wallet will run dry within `lead_s`; told once per instant of exhaustion."""

    wallet = models.ForeignKey(Account, models.PROTECT, related_name="warnings")
    lead_s = models.IntegerField()
    exhaust_at = models.DateTimeField()
    at = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["wallet", "lead_s", "exhaust_at"], name="warning_is_given_once")]

    def __str__(self) -> str:
        return f"{self.lead_s} s before {self.exhaust_at}"


class Voucher(models.Model):
    """A code that becomes a grant when it is redeemed, once. Only the hash of the code is kept."""

    code_sha256 = models.CharField(max_length=64, unique=True)
    currency = models.CharField(max_length=3)
    amount_micros = models.BigIntegerField()
    valid_until = models.DateTimeField(null=True, blank=True)
    grant_days = models.IntegerField(default=365)
    redeemed_by = models.UUIDField(null=True, blank=True)
    redeemed_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField()

    class Meta:
        constraints = [models.CheckConstraint(condition=Q(amount_micros__gt=0), name="voucher_gives_something")]

    def __str__(self) -> str:
        return f"voucher {self.pk}"


class CommissionRate(models.Model):
    """The tier of an owner of hosts in one month, as what he earned in the month before chose it."""

    payee = models.ForeignKey(Account, models.PROTECT, related_name="commission_rates")
    month = models.DateField()
    bp = models.SmallIntegerField()
    earned_micros = models.BigIntegerField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["payee", "month"], name="commission_is_one_per_month"),
            models.CheckConstraint(condition=Q(bp__range=(0, 10_000)), name="commission_rate_is_a_part"),
        ]

    def __str__(self) -> str:
        return f"{self.bp} bp of {self.payee_id} in {self.month}"
