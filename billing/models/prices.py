"""Prices: a series per thing sold, and its versions, one at a time."""

from django.contrib.postgres.constraints import ExclusionConstraint
from django.contrib.postgres.fields import DateTimeRangeField, RangeOperators
from django.db import models
from django.db.models import Q


class PriceSeries(models.Model):
    sku = models.CharField(max_length=80)  # a model or a slice of one: A100_80G, A100_80G/2g.20gb
    region = models.CharField(max_length=60)
    tier = models.CharField(max_length=20)  # verified, certified
    term = models.CharField(max_length=20)  # on_demand, spot, reserved:P1M
    use = models.CharField(max_length=10)  # active, hold, storage
    currency = models.CharField(max_length=3)
    notice_s = models.IntegerField(default=0)

    class Meta:
        verbose_name_plural = "price series"
        constraints = [
            models.UniqueConstraint(
                fields=["sku", "region", "tier", "term", "use", "currency", "notice_s"], name="price_series_is_one"
            )
        ]

    def __str__(self) -> str:
        return f"{self.sku} {self.region} {self.tier} {self.term} {self.use} {self.currency}"


class PriceVersion(models.Model):
    """The price of one unit for one hour while `during` lasts. Only an open end is ever closed (a trigger says so)."""

    series = models.ForeignKey(PriceSeries, models.PROTECT, related_name="versions")
    during = DateTimeRangeField()
    price_micros_per_hour = models.BigIntegerField()
    unit = models.CharField(max_length=20, default="gpu_hour")
    minimum_s = models.IntegerField(default=0)
    free_if_interrupted_s = models.IntegerField(default=0)
    cause = models.CharField(max_length=100)
    published_at = models.DateTimeField()

    class Meta:
        constraints = [
            ExclusionConstraint(
                name="series_has_one_price_at_a_time",
                expressions=[("series", RangeOperators.EQUAL), ("during", RangeOperators.OVERLAPS)],
            ),
            models.CheckConstraint(
                condition=Q(price_micros_per_hour__gte=0, minimum_s__gte=0, free_if_interrupted_s__gte=0),
                name="price_is_not_negative",
            ),
        ]

    def __str__(self) -> str:
        return f"price {self.pk}: {self.price_micros_per_hour} per {self.unit}"
