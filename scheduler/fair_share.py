"""What each organization has used lately, for the order of the queue: billing's segments, in steps of ten minutes.

A step is counted once its seconds are two minutes past, so that what a silent host did not do has been taken off by
then. What is younger is in the hour that every running lease counts ahead.
"""

from collections import defaultdict
from collections.abc import Collection
from datetime import UTC, datetime
from uuid import UUID

from django.conf import settings
from django.db import connection, transaction
from django.db.models import Min, Sum

from billing.models import Segment
from leasing.models import Lease
from leasing.states import HOLDS_DEVICES
from scheduler.models import Cursor, RecentUse
from scheduler.queue_order import Share, decayed
from tenants.models import Organization

STEP_S = 600
LATE_S = 120
REMEMBERED_S = 5 * 86_400  # a thirty-second is left of what is older: a first run leaves it out
STEPS_AT_ONCE = 200
CURSOR = "recent_use"
MINUTES_OF_AN_HOUR = 60

# Micro-units per payer and currency in [since, until): rate x seconds / 3600. Meters that are settled end before it.
_USED = """
SELECT payer.owner, payer.currency,
       sum(segment.rate_micros_per_hour::numeric
           * (least(coalesce(segment.end_s, %(until)s), %(until)s) - greatest(segment.start_s, %(since)s)))
FROM billing_meter AS meter
JOIN billing_account AS payer ON payer.id = meter.payer_id
JOIN billing_segment AS segment ON segment.meter_id = meter.id
WHERE (meter.settled_at IS NULL OR meter.settled_at >= to_timestamp(%(since)s)) AND meter.use IN ('active', 'hold')
  AND segment.start_s < %(until)s AND (segment.end_s IS NULL OR segment.end_s > %(since)s)
GROUP BY payer.owner, payer.currency
"""


def update(*, at: datetime) -> int:
    """Count the steps that are over and were not counted; return how many. One that came twice counts once."""
    for done in range(STEPS_AT_ONCE):
        if not _step(at=at):
            return done
    return STEPS_AT_ONCE


@transaction.atomic
def _step(*, at: datetime) -> bool:
    last_s = (int(at.timestamp()) - LATE_S) // STEP_S * STEP_S
    first_s = last_s - REMEMBERED_S
    cursor = Cursor.objects.select_for_update().filter(name=CURSOR).first()
    if cursor is None:
        earliest = Segment.objects.aggregate(earliest=Min("start_s"))["earliest"]
        begin_s = last_s if earliest is None else min(max(first_s, earliest // STEP_S * STEP_S), last_s)
        cursor = Cursor.objects.create(name=CURSOR, until=datetime.fromtimestamp(begin_s, UTC))
    since_s = max(int(cursor.until.timestamp()), first_s)
    if since_s + STEP_S > last_s:
        return False
    until = datetime.fromtimestamp(since_s + STEP_S, UTC)
    for (organization_id, currency), micros in _used(since_s, since_s + STEP_S).items():
        row, _ = RecentUse.objects.get_or_create(
            organization_id=organization_id, currency=currency, defaults={"as_of": until}
        )
        row.used_micros, row.as_of = _now(row, until) + micros, until
        row.save(update_fields=["used_micros", "as_of"])
    cursor.until = until
    cursor.save(update_fields=["until"])
    return True


def _used(since_s: int, until_s: int) -> dict[tuple[UUID, str], int]:
    with connection.cursor() as sql:
        sql.execute(_USED, {"since": since_s, "until": until_s})
        known = {(owner, currency): int(numerator) // 3600 for owner, currency, numerator in sql.fetchall()}
    there = set(Organization.objects.filter(pk__in={owner for owner, _ in known}).values_list("pk", flat=True))
    return {who: micros for who, micros in known.items() if who[0] in there}


def _now(row: RecentUse, at: datetime) -> int:
    return decayed(row.used_micros, max(0, int((at - row.as_of).total_seconds())))


@transaction.atomic
def count_again(*, at: datetime) -> None:
    """Drop what was counted and count the segments of the last days anew."""
    RecentUse.objects.all().delete()
    Cursor.objects.filter(name=CURSOR).delete()
    while update(at=at):
        pass


def shares(who: Collection[tuple[UUID, str]], *, at: datetime) -> dict[tuple[UUID, str], Share]:
    """Return what the order of the queue needs to know of these organizations, by organization and currency.

    What holds devices now counts with one more hour: it was used and not counted yet, or it soon will be.
    """
    ids = {organization_id for organization_id, _ in who}
    used: dict[tuple[UUID, str], int] = defaultdict(int)
    for row in RecentUse.objects.filter(organization__in=ids):
        used[row.organization_id, row.currency] += _now(row, at)
    running = Lease.objects.filter(state__in=HOLDS_DEVICES, organization__in=ids).exclude(price_micros_per_hour=None)
    sums = running.order_by().values_list("organization", "currency").annotate(micros=Sum("price_micros_per_hour"))
    for organization_id, currency, micros in sums:
        used[organization_id, currency] += micros
    weights = dict(Organization.objects.filter(pk__in=ids).values_list("pk", "queue_weight"))
    return {(org, currency): Share(used[org, currency], weights[org]) for org, currency in who}


def hour_micros(lease: Lease) -> int:
    """Return what an hour of a waiting lease may cost: its first hold is for so many minutes."""
    return lease.held_micros * MINUTES_OF_AN_HOUR // int(settings.REQUEST_HOLD_MINUTES)
