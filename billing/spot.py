"""The spot price moves: published ahead, and every running meter that follows it changes price at that second.

One transaction and a fixed number of statements, whatever the number of meters.
"""

from datetime import datetime

from django.db import connection, transaction

from billing import exhaustion, ledger, price_list
from billing.models import AccountBalance, PriceVersion, Segment

LEAD_S = 300  # how long ahead a move is published, unless the caller says otherwise

CUT = """
WITH cut AS (
    UPDATE billing_segment s SET end_s = %(from_s)s, followed = true
    FROM billing_priceversion v, billing_meterfact f
    WHERE v.id = s.price_version_id AND f.id = s.fact_id AND f.follows AND v.series_id = %(series)s
        AND s.end_s IS NULL AND NOT s.settled AND s.start_s < %(from_s)s
    RETURNING s.*
)
INSERT INTO billing_segment
    (meter_id, payer_id, payee_id, commission_bp, tax_on_commission_bp, shard, fact_id, price_version_id, quantity,
    rate_micros_per_hour, start_s, end_s, base_num, settled, followed)
SELECT meter_id, payer_id, payee_id, commission_bp, tax_on_commission_bp, shard, fact_id, %(version)s, quantity,
    quantity * %(price)s, %(from_s)s, NULL, base_num + rate_micros_per_hour * (%(from_s)s - start_s), false, false
FROM cut ORDER BY meter_id
"""


@transaction.atomic
def move(
    *, series: price_list.Series, price_micros_per_hour: int, starts_at: datetime, cause: str, at: datetime
) -> PriceVersion:
    """Publish a price and re-price what runs on it from `starts_at`. Raises what price_list.publish raises."""
    version = price_list.publish(
        series=series, price_micros_per_hour=price_micros_per_hour, starts_at=starts_at, cause=cause, at=at
    )
    running = Segment.objects.filter(
        price_version__series=version.series, fact__follows=True, end_s=None, settled=False
    ).exclude(price_version=version)
    payers = sorted(set(running.values_list("payer", flat=True)))
    ledger.lock(payers)
    with connection.cursor() as cursor:
        cursor.execute(
            CUT,
            {
                "from_s": int(version.during.lower.timestamp()),
                "series": version.series_id,
                "version": version.pk,
                "price": price_micros_per_hour,
            },
        )
    exhaustion.look_again(accounts=payers, at_s=int(version.during.lower.timestamp()))
    # Somebody else's instant may be a little ahead of ours: what is stored for it is of the old price.
    ahead = AccountBalance.objects.filter(pk__in=payers, as_of__gt=version.during.lower)
    exhaustion.refresh(accounts=list(ahead.values_list("pk", flat=True)), at=at)
    return version


def running_on(*, series: price_list.Series) -> list[str]:
    """Return the references whose price moves with a series: their caps are the caller's to look at."""
    running = Segment.objects.filter(
        fact__follows=True,
        end_s=None,
        settled=False,
        **{f"price_version__series__{k}": v for k, v in vars(series).items()},
    )
    return sorted(set(running.values_list("meter__reference", flat=True)))
