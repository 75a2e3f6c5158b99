"""What was used: facts as they were told, and the segments, voids and postings that follow from them.

Times of use are whole UTC seconds since 1970 (`_s`), so a fraction of a second cannot even be written.
"""

from django.contrib.postgres.constraints import ExclusionConstraint
from django.contrib.postgres.fields import DateTimeRangeField, RangeOperators
from django.db import models
from django.db.models import F, Func, Q

from billing.models.accounts import Account, Journal
from billing.models.prices import PriceVersion


class Use(models.TextChoices):
    ACTIVE = "active"
    HOLD = "hold"
    STORAGE = "storage"


class Lane(models.TextChoices):
    """What excludes itself within one member: computing is active or on hold, storage runs beside it."""

    ALL = ""
    COMPUTE = "compute"
    STORAGE = "storage"


def _span(*, during: tuple[str, str] = ("start_s", "end_s")) -> Func:
    return Func(F(during[0]), F(during[1]), function="int8range")


class Meter(models.Model):
    """One payer, one payee, one commission, one member of a reference and one kind of use: the unit of rounding."""

    payer = models.ForeignKey(Account, models.PROTECT, related_name="meters_paid")
    payee = models.ForeignKey(Account, models.PROTECT, related_name="meters_earned")
    reference = models.CharField(max_length=64)
    member = models.SmallIntegerField()
    use = models.CharField(max_length=10, choices=Use)
    commission_bp = models.IntegerField()
    tax_on_commission_bp = models.IntegerField(default=0)
    shard = models.SmallIntegerField(default=0)
    labels = models.JSONField(default=dict, blank=True)
    simulated = models.BooleanField(default=False)
    # Exact numerators: taken off for voids, and put on for a minimum charge.
    void_num = models.BigIntegerField(default=0)
    minimum_num = models.BigIntegerField(default=0)
    waived = models.BooleanField(default=False, help_text="Free: the supplying side ended it within its first seconds.")
    # Set when the use is over and all of it is posted; from then on the close passes the meter by.
    settled_at = models.DateTimeField(null=True, blank=True)
    ended_by = models.CharField(max_length=20, blank=True, default="")
    posted_micros = models.BigIntegerField(default=0)
    flagged = models.BooleanField(
        default=False, help_text="A fact ended something before it began, or beyond what can be reckoned with."
    )

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["reference", "member", "use", "payer", "payee", "commission_bp", "tax_on_commission_bp"],
                name="meter_is_one_per_purpose",
            ),
            models.CheckConstraint(
                condition=Q(commission_bp__range=(0, 10_000), tax_on_commission_bp__range=(0, 10_000)),
                name="commission_is_a_part",
            ),
        ]
        indexes = [
            models.Index(fields=["payer"], name="running_meters", condition=Q(settled_at__isnull=True)),
            models.Index(fields=["payee"], name="meters_of_payee"),
            models.Index(fields=["payer", "settled_at"], name="meters_of_payer"),
            models.Index(fields=["id"], name="meters_with_voids", condition=~Q(void_num=0)),
        ]

    def __str__(self) -> str:
        return f"meter {self.pk}: {self.reference}/{self.member} {self.use}"


class MeterFact(models.Model):
    """What the caller said, append-only. The unique key is the claim: the claim and the fact are one row."""

    reference = models.CharField(max_length=64)
    seq = models.BigIntegerField()
    member = models.SmallIntegerField(null=True, blank=True)  # None: every member
    lane = models.CharField(max_length=10, choices=Lane, default=Lane.ALL, blank=True)
    begins = models.BooleanField()
    use = models.CharField(max_length=10, blank=True, default="")  # of a stop: "" is any
    at_s = models.BigIntegerField()
    meter = models.ForeignKey(Meter, models.PROTECT, null=True, blank=True, related_name="facts")
    price_version = models.ForeignKey(PriceVersion, models.PROTECT, null=True, blank=True, related_name="+")
    quantity = models.IntegerField(default=0)
    follows = models.BooleanField(default=False)  # moves with its series (spot) instead of the frozen version
    cause = models.CharField(max_length=40, blank=True, default="")
    received_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["reference", "seq", "member", "lane"], nulls_distinct=False, name="fact_is_told_once"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.reference}#{self.seq} {'start' if self.begins else 'stop'}"


class Segment(models.Model):
    """[start_s, end_s) of a meter at one price. `base_num` is the exact numerator of the meter before it."""

    meter = models.ForeignKey(Meter, models.PROTECT, related_name="segments")
    # As its meter, which never changes them: the close and what burns a wallet's money are summed without a look at the
    # meters. Their keys are the meter's, and reconcile compares.
    payer = models.ForeignKey(Account, models.PROTECT, related_name="+", db_index=False, db_constraint=False)
    payee = models.ForeignKey(Account, models.PROTECT, related_name="+", db_index=False, db_constraint=False)
    commission_bp = models.SmallIntegerField()
    tax_on_commission_bp = models.SmallIntegerField(default=0)
    shard = models.SmallIntegerField(default=0)
    fact = models.ForeignKey(MeterFact, models.PROTECT, related_name="+", db_index=False)
    price_version = models.ForeignKey(PriceVersion, models.PROTECT, related_name="+", db_index=False)
    quantity = models.IntegerField()
    rate_micros_per_hour = models.BigIntegerField()  # unit price x quantity, multiplied here and nowhere else
    start_s = models.BigIntegerField()
    end_s = models.BigIntegerField(null=True, blank=True)
    base_num = models.BigIntegerField(default=0)
    settled = models.BooleanField(default=False)  # as its meter, so that the close reads only what still runs
    # The next one begins where this one ends, so that what is left of it is in that one's base.
    followed = models.BooleanField(default=False)

    class Meta:
        constraints = [
            ExclusionConstraint(
                name="meter_has_one_price_at_a_time",
                expressions=[("meter", RangeOperators.EQUAL), (_span(), RangeOperators.OVERLAPS)],
            ),
            models.CheckConstraint(
                condition=Q(end_s__isnull=True) | Q(end_s__gte=F("start_s")), name="segment_ends_after_its_start"
            ),
            models.CheckConstraint(condition=Q(rate_micros_per_hour__gte=0), name="rate_is_not_negative"),
        ]
        indexes = [
            models.Index(fields=["end_s"], name="running_segments", condition=Q(settled=False)),
            models.Index(fields=["payer"], name="segments_that_burn", condition=Q(settled=False)),
            models.Index(
                fields=["payer"],
                name="segments_with_a_remainder",
                condition=Q(settled=False, followed=False, end_s__isnull=False),
            ),
        ]

    def __str__(self) -> str:
        return f"segment of meter {self.meter_id} from {self.start_s}"


class Void(models.Model):
    """Seconds that were not usable and are not charged: each at most once. Counted in `meter.void_num` once applied."""

    meter = models.ForeignKey(Meter, models.PROTECT, related_name="voids")
    start_s = models.BigIntegerField()
    end_s = models.BigIntegerField()
    reason = models.CharField(max_length=200)
    applied = models.BooleanField(default=False)
    at = models.DateTimeField()

    class Meta:
        constraints = [
            ExclusionConstraint(
                name="second_is_refunded_once",
                expressions=[("meter", RangeOperators.EQUAL), (_span(), RangeOperators.OVERLAPS)],
            ),
            models.CheckConstraint(condition=Q(end_s__gt=F("start_s")), name="void_is_not_empty"),
        ]
        indexes = [models.Index(fields=["end_s"], name="voids_to_apply", condition=Q(applied=False))]

    def __str__(self) -> str:
        return f"void of meter {self.meter_id} from {self.start_s}"


class BillingRun(models.Model):
    """One close of a shard: the runs of a shard tile time, so no second is left out or taken twice."""

    shard = models.SmallIntegerField()
    during = DateTimeRangeField()
    posted_at = models.DateTimeField()
    gross_micros = models.BigIntegerField(default=0)

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(during__isempty=False), name="run_covers_something"),
            ExclusionConstraint(
                name="runs_of_a_shard_do_not_overlap",
                expressions=[("shard", RangeOperators.EQUAL), ("during", RangeOperators.OVERLAPS)],
            ),
        ]

    def __str__(self) -> str:
        return f"run of shard {self.shard}"


class Adjustment(models.Model):
    """A posting for one meter outside the hourly runs: its end, a late fact, a void. Append-only."""

    meter = models.ForeignKey(Meter, models.PROTECT, related_name="adjustments")
    n = models.IntegerField()
    journal = models.ForeignKey(Journal, models.PROTECT, related_name="adjustments")
    gross_micros = models.BigIntegerField()
    start_s = models.BigIntegerField()  # the service period that it is about
    end_s = models.BigIntegerField()
    cause = models.CharField(max_length=20)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["meter", "n"], name="adjustments_of_a_meter_are_numbered")]

    def __str__(self) -> str:
        return f"adjustment {self.n} of meter {self.meter_id}"
