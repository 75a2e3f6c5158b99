"""When a wallet runs dry: computed to the second in the transaction of every change, in one indexed column.

`refresh` is called, with the wallet's row locked, by whatever starts, stops, moves, tops up or holds. A close moves
the stored figures by what it posts and never brings the instant nearer.
"""

from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta
from uuid import UUID

from django.db import DataError, connection, transaction

from billing import grant_windows, ledger, pricing, shards
from billing.models import AccountBalance, Meter, RunningDryWarning
from billing.models.accounts import AccountKind

# Beyond this an instant is no warning to anybody, and PostgreSQL's clock ends some day.
HORIZON_S = 100 * 366 * 86_400
WARN_AHEAD_S = (86_400, 3_600, 600)

# What is exact and not posted = numerator now - 3600 x charge at the last close, per meter. Of a meter that runs across
# the close, its own row says both (`live`); of one that ran before and not across it, a remainder is left (`rest`).
# Exact in NUMERIC, and stored at most as large as fits: whatever passes that has run dry long before.
# The ends of the last closes are an array by shard, not a join: no plan may look them up anew for each segment.
SUMS = """
WITH closed AS (
    SELECT array_agg(coalesce((SELECT extract(epoch FROM max(upper(r.during)))::bigint
        FROM billing_billingrun r WHERE r.shard = n), 0) ORDER BY n) AS ends
    FROM generate_series(0, (SELECT max(shard) FROM billing_billingrun)) n
), wallet AS NOT MATERIALIZED (
    SELECT account_id AS payer_id, coalesce((SELECT ends FROM closed)[shard + 1], 0) AS to_s
    FROM billing_accountbalance WHERE account_id = ANY(%(payers)s::bigint[])
), live AS (
    SELECT s.payer_id, s.start_s, s.end_s, s.rate_micros_per_hour::numeric AS rate, w.to_s,
        s.base_num - coalesce(m.void_num, 0)
            + s.rate_micros_per_hour::numeric * greatest(0, least(s.end_s, w.to_s) - s.start_s) AS n0
    FROM billing_segment s JOIN wallet w ON w.payer_id = s.payer_id
    LEFT JOIN billing_meter m ON m.id = s.meter_id AND m.void_num <> 0
    WHERE NOT s.settled AND (s.end_s IS NULL OR s.end_s > least(%(at_s)s, w.to_s))
        AND s.payer_id = ANY(%(payers)s::bigint[])
), ended AS (
    SELECT DISTINCT ON (s.meter_id) s.payer_id, s.meter_id, w.to_s,
        (s.base_num - m.void_num + s.rate_micros_per_hour::numeric * (s.end_s - s.start_s)) %% 3600 AS num
    FROM billing_segment s JOIN wallet w ON w.payer_id = s.payer_id JOIN billing_meter m ON m.id = s.meter_id
    WHERE NOT s.settled AND NOT s.followed AND s.end_s <= w.to_s
        AND s.payer_id = ANY(%(payers)s::bigint[])
    ORDER BY s.meter_id, s.start_s DESC, s.end_s DESC, s.id DESC
), rest AS (
    SELECT payer_id, num FROM ended e WHERE NOT EXISTS (
        SELECT FROM billing_segment s WHERE s.meter_id = e.meter_id AND s.start_s <= e.to_s
            AND (s.end_s IS NULL OR s.end_s > e.to_s))
)
SELECT payer_id, least(sum(burn), 9223372036854775807)::bigint AS burn, min(next_s) AS next_s,
    least(sum(num), 9223372036854775807)::bigint AS accrued_num
FROM (
    SELECT payer_id,
        CASE WHEN start_s <= %(at_s)s AND (end_s IS NULL OR end_s > %(at_s)s) THEN rate ELSE 0 END AS burn,
        CASE WHEN start_s > %(at_s)s THEN start_s WHEN end_s > %(at_s)s THEN end_s END AS next_s,
        rate * (greatest(0, least(end_s, %(at_s)s) - start_s) - greatest(0, least(end_s, to_s) - start_s))
            + CASE WHEN start_s <= to_s AND (end_s IS NULL OR end_s > to_s) THEN n0 %% 3600 ELSE 0 END AS num
    FROM live
    UNION ALL
    SELECT payer_id, 0, NULL, num FROM rest
) pieces GROUP BY payer_id
"""
STORE = """
WITH payer AS (/*PAYERS*/), due AS (
    SELECT b.account_id, coalesce(p.burn, 0) AS burn, coalesce(p.accrued_num, 0) AS accrued_num, p.next_s,
        div((b.balance_micros - b.held_micros - b.floor_micros)::numeric * 3600 - p.accrued_num, nullif(p.burn, 0)) AS n
    FROM billing_accountbalance b JOIN billing_account a ON a.id = b.account_id LEFT JOIN payer p ON p.payer_id = a.id
    WHERE a.kind = 'wallet' AND (%(payers)s::bigint[] IS NULL OR a.id = ANY(%(payers)s::bigint[]))
)
UPDATE billing_accountbalance b
SET burn_micros_per_hour = due.burn, accrued_num = due.accrued_num, as_of = to_timestamp(%(at_s)s),
    exhaust_at = CASE WHEN due.n <= %(horizon_s)s THEN to_timestamp(%(at_s)s + greatest(0, due.n)) END,
    refresh_at = to_timestamp(due.next_s)
FROM due WHERE due.account_id = b.account_id
RETURNING b.account_id, due.next_s
"""
REFRESH = STORE.replace("/*PAYERS*/", SUMS)
# All wallets of a shard: the end of its last close is one number then, and PostgreSQL sums with all its workers, which
# it does only where nothing else is read or written in the same statement. `rest` is added to it: those are few.
SUM_ALL = """
CREATE TEMP TABLE billing_burn ON COMMIT DROP AS
SELECT payer_id,
    sum(CASE WHEN start_s <= %(at_s)s AND (end_s IS NULL OR end_s > %(at_s)s) THEN rate ELSE 0 END) AS burn,
    min(CASE WHEN start_s > %(at_s)s THEN start_s WHEN end_s > %(at_s)s THEN end_s END) AS next_s,
    sum(rate * (greatest(0, least(end_s, %(at_s)s) - start_s) - greatest(0, least(end_s, %(to_s)s) - start_s))
        + CASE WHEN start_s <= %(to_s)s AND (end_s IS NULL OR end_s > %(to_s)s)
            THEN (base + rate * (%(to_s)s - start_s)) %% 3600 ELSE 0 END) AS accrued_num
FROM (
    SELECT s.payer_id, s.start_s, s.end_s, s.rate_micros_per_hour AS rate, s.base_num - coalesce(m.void_num, 0) AS base
    FROM billing_segment s LEFT JOIN billing_meter m ON m.id = s.meter_id AND m.void_num <> 0
    WHERE NOT s.settled AND s.shard = %(shard)s AND (s.end_s IS NULL OR s.end_s > least(%(at_s)s, %(to_s)s))
) live GROUP BY payer_id
"""
REST_ALL = """
INSERT INTO billing_burn (payer_id, burn, next_s, accrued_num)
SELECT payer_id, 0, NULL, sum(num) FROM (
    SELECT DISTINCT ON (s.meter_id) s.payer_id, s.meter_id,
        (s.base_num - m.void_num + s.rate_micros_per_hour * (s.end_s - s.start_s)) %% 3600 AS num
    FROM billing_segment s JOIN billing_meter m ON m.id = s.meter_id
    WHERE NOT s.settled AND NOT s.followed AND s.end_s <= %(to_s)s AND s.shard = %(shard)s
    ORDER BY s.meter_id, s.start_s DESC, s.end_s DESC, s.id DESC
) e WHERE NOT EXISTS (SELECT FROM billing_segment s WHERE s.meter_id = e.meter_id AND s.start_s <= %(to_s)s
    AND (s.end_s IS NULL OR s.end_s > %(to_s)s))
GROUP BY payer_id
"""
SUMMED = """
SELECT payer_id, sum(burn)::bigint AS burn, min(next_s) AS next_s, sum(accrued_num)::bigint AS accrued_num
FROM billing_burn GROUP BY payer_id
"""
STORE_ALL = STORE.replace("/*PAYERS*/", SUMMED).replace("WHERE a.kind", "WHERE b.shard = %(shard)s AND a.kind")
# Wallets whose burn changes at known seconds, and that have no credit: piece by piece until one does not suffice.
# Payers are BIGINT, as the column is: an array of a smaller type is searched one by one for each row, not hashed.
AHEAD = """
WITH step AS (
    SELECT payer_id, start_s AS from_s, rate_micros_per_hour AS delta FROM billing_segment
    WHERE NOT settled AND start_s > %(at_s)s AND payer_id = ANY(%(payers)s::bigint[])
    UNION ALL
    SELECT payer_id, end_s, -rate_micros_per_hour FROM billing_segment
    WHERE NOT settled AND end_s > %(at_s)s AND payer_id = ANY(%(payers)s::bigint[])
    UNION ALL
    SELECT account_id, %(at_s)s, burn_micros_per_hour FROM billing_accountbalance
    WHERE account_id = ANY(%(payers)s::bigint[])
), piece AS (
    SELECT payer_id, from_s, lead(from_s) OVER w AS to_s, sum(sum(delta)) OVER w AS burn
    FROM step GROUP BY payer_id, from_s WINDOW w AS (PARTITION BY payer_id ORDER BY from_s)
), funded AS (
    SELECT p.payer_id, p.from_s, p.to_s, p.burn,
        (b.balance_micros - b.held_micros - b.floor_micros)::numeric * 3600 - b.accrued_num
        - coalesce(sum(p.burn * (p.to_s - p.from_s))
            OVER (PARTITION BY p.payer_id ORDER BY p.from_s ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS num
    FROM piece p JOIN billing_accountbalance b ON b.account_id = p.payer_id
), dry AS (
    SELECT payer_id, min(from_s + greatest(0, div(num, burn))) AS dry_s FROM funded
    WHERE burn > 0 AND (num < 0 OR to_s IS NULL OR from_s + div(num, burn) < to_s) GROUP BY payer_id
)
UPDATE billing_accountbalance b
SET exhaust_at = CASE WHEN d.dry_s <= %(at_s)s::bigint + %(horizon_s)s THEN to_timestamp(d.dry_s) END
FROM billing_accountbalance a LEFT JOIN dry d ON d.payer_id = a.account_id
WHERE a.account_id = b.account_id AND b.account_id = ANY(%(payers)s::bigint[])
"""
LOCK_ALL = """
SELECT FROM billing_accountbalance b JOIN billing_account a ON a.id = b.account_id
WHERE a.kind = 'wallet' ORDER BY b.account_id FOR NO KEY UPDATE OF b
"""
# The same changes of one wallet, for those that have credit besides.
STEPS = """
SELECT step_s, sum(delta)::bigint FROM (
    SELECT start_s AS step_s, rate_micros_per_hour AS delta FROM billing_segment
        WHERE payer_id = %(payer)s AND NOT settled AND start_s > %(at_s)s
    UNION ALL
    SELECT end_s, -rate_micros_per_hour FROM billing_segment
        WHERE payer_id = %(payer)s AND NOT settled AND end_s > %(at_s)s
) AS steps GROUP BY step_s ORDER BY step_s
"""


def refresh(*, accounts: Collection[int], at: datetime) -> None:
    """Compute burn, accrual and the instant of exhaustion of these wallets as of `at`. The caller holds their rows."""
    if accounts:
        _refresh(sorted(accounts), at_s=int(at.timestamp()))


def look_again(*, accounts: Collection[int], at_s: int) -> None:
    """Let wallets be computed again at a second at which their burn changes; until then what is stored holds.

    `exhaust_at` may name a second after that change meanwhile, and is corrected before it is due.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE billing_accountbalance SET refresh_at = least(refresh_at, to_timestamp(%s))"
            " WHERE account_id = ANY(%s::bigint[])",
            [at_s, list(accounts)],
        )


@transaction.atomic
def refresh_all(*, at: datetime) -> int:
    """Compute every wallet's instant from nothing; return how many there are."""
    with connection.cursor() as cursor:
        cursor.execute(LOCK_ALL)
    credits = grant_windows.credits_of(None)
    return sum(_refresh_shard(shard, credits, at_s=int(at.timestamp())) for shard in range(shards.count()))


def _refresh_shard(shard: int, credits: Mapping[int, list[pricing.Credit]], *, at_s: int) -> int:
    facts = {
        "at_s": at_s, "to_s": shards.closed_to_s(shard), "shard": shard, "payers": None, "horizon_s": HORIZON_S
    }  # fmt: skip
    with connection.cursor() as cursor:
        cursor.execute("DROP TABLE IF EXISTS pg_temp.billing_burn")
        try:
            with transaction.atomic():
                for sums in (SUM_ALL, REST_ALL, STORE_ALL):
                    cursor.execute(sums, facts)
                ahead = dict(cursor.fetchall())
        except DataError:  # a meter beyond reckoning: the slower sums are exact for it, too
            wallets = AccountBalance.objects.filter(shard=shard, account__kind=AccountKind.WALLET)
            cursor.execute(REFRESH, {**facts, "payers": list(wallets.values_list("pk", flat=True))})
            ahead = dict(cursor.fetchall())
    _look_ahead(ahead, credits, at_s=at_s)
    return len(ahead)


def due(*, at: datetime) -> list[UUID]:
    """Return the payers whose money is out at `at` while something runs, those waiting longest first.

    It answers the same until they have been stopped or have paid: the caller's loop is level-triggered.
    """
    refresh_passed(at=at)
    rows = AccountBalance.objects.filter(exhaust_at__lte=at, account__kind=AccountKind.WALLET)
    return [owner for owner in rows.order_by("exhaust_at").values_list("account__owner", flat=True) if owner]


def due_references(*, at: datetime) -> list[str]:
    """Return the references that burn the money of wallets that are exhausted at `at`: what has to stop now."""
    refresh_passed(at=at)
    dry = AccountBalance.objects.filter(exhaust_at__lte=at, account__kind=AccountKind.WALLET).values("account")
    running = Meter.objects.filter(
        payer__in=dry, settled_at=None, segments__end_s=None, segments__rate_micros_per_hour__gt=0
    )
    return list(running.order_by("reference").values_list("reference", flat=True).distinct())


def ahead(*, until: datetime) -> list[tuple[str, datetime]]:
    """Return each reference that burns the money of a wallet that is used up by `until`, with the instant."""
    dry = AccountBalance.objects.filter(exhaust_at__lte=until, account__kind=AccountKind.WALLET)
    instants = dict(dry.values_list("account", "exhaust_at"))
    running = Meter.objects.filter(
        payer__in=list(instants), settled_at=None, segments__end_s=None, segments__rate_micros_per_hour__gt=0
    )
    found = running.order_by("reference").values_list("reference", "payer").distinct()
    return [(reference, dry_at) for reference, payer in found if (dry_at := instants[payer]) is not None]


@transaction.atomic
def refresh_passed(*, at: datetime) -> None:
    """Compute again the wallets for which something known ahead (a price, the edge of a grant) has come."""
    passed = AccountBalance.objects.filter(refresh_at__lte=at).values_list("pk", flat=True)
    refresh(accounts=list(ledger.lock(passed)), at=at)


def warn_due(*, at: datetime) -> list[RunningDryWarning]:
    """Record a warning for each wallet that runs dry within 24 h, 60 min or 10 min; return those that are new."""
    refresh_passed(at=at)
    new = []
    for lead_s in WARN_AHEAD_S:
        near = AccountBalance.objects.filter(exhaust_at__gt=at, exhaust_at__lte=at + timedelta(seconds=lead_s))
        near = near.exclude(account__reserves__drawn_from__isnull=False)  # it is used up: what is kept is drawn on
        for wallet_id, exhaust_at in near.order_by("pk").values_list("pk", "exhaust_at"):
            assert exhaust_at is not None  # the filter says so
            warning, fresh = RunningDryWarning.objects.get_or_create(
                wallet_id=wallet_id, lead_s=lead_s, exhaust_at=exhaust_at, defaults={"at": at}
            )
            new += [warning] if fresh else []
    return new


def _refresh(accounts: list[int], *, at_s: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute(REFRESH, {"at_s": at_s, "payers": accounts, "horizon_s": HORIZON_S})
        ahead = dict(cursor.fetchall())
    _look_ahead(ahead, grant_windows.credits_of(accounts), at_s=at_s)


def _look_ahead(ahead: Mapping[int, int | None], credits: Mapping[int, list[pricing.Credit]], *, at_s: int) -> None:
    """Correct the instants of wallets (by account, with the second of their next change) that more is known of."""
    changing = sorted(account_id for account_id, next_s in ahead.items() if next_s and account_id not in credits)
    if changing:
        with connection.cursor() as cursor:
            cursor.execute(AHEAD, {"at_s": at_s, "payers": changing, "horizon_s": HORIZON_S})
    for account_id in sorted(credits.keys() & ahead.keys()):
        _walk(account_id, credits=credits[account_id], at_s=at_s)


def _walk(account_id: int, *, credits: list[pricing.Credit], at_s: int) -> None:
    """Compute one wallet piece by piece: the burn changes at a known second, or credit begins or ends."""
    row = AccountBalance.objects.get(pk=account_id)
    with connection.cursor() as cursor:
        cursor.execute(STEPS, {"payer": account_id, "at_s": at_s})
        steps = cursor.fetchall()
    dry_s = pricing.runs_dry_at_s(
        at_s=at_s,
        accrued_num=row.accrued_num,
        burn_micros_per_hour=row.burn_micros_per_hour,
        steps=steps,
        wallet_micros=row.balance_micros - row.held_micros - row.floor_micros,
        credits=credits,
    )
    edges = [edge for c in credits for edge in (c.start_s, c.end_s) if edge is not None and edge > at_s]
    next_s = min([step for step, _ in steps] + edges, default=None)
    row.exhaust_at = None if dry_s is None or dry_s > at_s + HORIZON_S else datetime.fromtimestamp(dry_s, UTC)
    row.refresh_at = None if next_s is None else datetime.fromtimestamp(next_s, UTC)
    row.save(update_fields=["exhaust_at", "refresh_at"])
