"""The close: what ran in a shard since its last run is posted in sums per payer and per payee.

Nothing is written per meter. Each increment is a pure function of the segments (the difference of two floors), so a
run that is late covers what a missed one left, and one that is repeated finds nothing. All of a run is one transaction.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

from django.db import DataError, connection, transaction
from django.db.backends.postgresql.psycopg_any import DateTimeTZRange
from django.db.models import Q

from billing import charging, downtime, grant_windows, ledger, reserves, shards
from billing.models import Account, BillingRun, Grant, Journal
from billing.models.accounts import AccountKind

log = logging.getLogger(__name__)
# A full hour is closed this long after its end: facts about it are usually in by then. Later ones are adjustments.
LAG_S = 60
BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)  # where the first run of a shard begins

LOCK_WALLETS = """
SELECT b.account_id FROM billing_accountbalance b JOIN billing_account a ON a.id = b.account_id
WHERE b.shard = %(shard)s AND a.kind = 'wallet' ORDER BY b.account_id FOR NO KEY UPDATE OF b
"""
# Each segment contributes the charge of its meter at both ends of the range; pieces of one meter telescope. Once by
# payer and once by payee: two plain sums, which workers share, beat one with grouping sets, which they cannot.
PIECES = """
SELECT s.payer_id, s.payee_id, s.commission_bp AS bp, s.tax_on_commission_bp AS tax_bp,
    (s.base_num - coalesce(m.void_num, 0)
        + s.rate_micros_per_hour * greatest(0, least(s.end_s, %(t0)s) - s.start_s)) / 3600 AS c0,
    (s.base_num - coalesce(m.void_num, 0)
        + s.rate_micros_per_hour * greatest(0, least(s.end_s, %(t1)s) - s.start_s)) / 3600 AS c1
FROM billing_segment s LEFT JOIN billing_meter m ON m.id = s.meter_id AND m.void_num <> 0
WHERE NOT s.settled AND s.shard = %(shard)s AND s.start_s < %(t1)s AND (s.end_s IS NULL OR s.end_s > %(t0)s)
"""
# Only where the plain sums have failed: a meter whose exact usage passes what is stored is left out, and named.
RECKONABLE = """
    AND s.base_num::numeric + s.rate_micros_per_hour::numeric * greatest(0, least(s.end_s, %(t1)s) - s.start_s)
        <= 9223372036854775807
"""
CHARGED = """
CREATE TEMP TABLE billing_charged ON COMMIT DROP AS
SELECT payer_id, sum(c1 - c0)::bigint AS gross FROM (/*PIECES*/) piece GROUP BY payer_id HAVING sum(c1 - c0) <> 0
""".replace("/*PIECES*/", PIECES)
EARNED = """
CREATE TEMP TABLE billing_earned ON COMMIT DROP AS
SELECT payee_id, sum(c1 - c0)::bigint AS gross, sum(f1 - f0)::bigint AS fee,
    sum(CASE WHEN tax_bp <> 0 THEN f1 * tax_bp / 10000 - f0 * tax_bp / 10000 ELSE 0 END)::bigint AS tax
FROM (SELECT payee_id, tax_bp, c0, c1, c0 * bp / 10000 AS f0, c1 * bp / 10000 AS f1 FROM (/*PIECES*/) piece) fee
GROUP BY payee_id HAVING sum(c1 - c0) <> 0
""".replace("/*PIECES*/", PIECES)
# Each sum takes the number of its journal at once: nothing looks for it among all journals that were ever posted.
SUMS = """
CREATE TEMP TABLE billing_close ON COMMIT DROP AS
SELECT nextval('billing_journal_id_seq') AS journal_id, due.* FROM (
    SELECT 'usage' || %(range)s || payer_id AS key, payer_id, NULL::bigint AS payee_id, gross, 0::bigint AS fee,
        0::bigint AS tax, 0::bigint AS drawn, 0::bigint AS wallet FROM billing_charged
    UNION ALL
    SELECT 'earn' || %(range)s || payee_id, NULL, payee_id, gross, fee, tax, 0, 0 FROM billing_earned
) due
"""
# The same sum for one payer at several points of the range.
AT_POINTS = """
SELECT coalesce(sum((base + rate * greatest(0, least(end_s, p.at_s, %(t1)s) - start_s)) / 3600
    - (base + rate * greatest(0, least(end_s, %(t0)s) - start_s)) / 3600), 0)::bigint
FROM unnest(%(points)s::bigint[]) AS p(at_s) LEFT JOIN (
    SELECT s.start_s, s.end_s, s.rate_micros_per_hour AS rate, s.base_num - coalesce(m.void_num, 0) AS base
    FROM billing_segment s LEFT JOIN billing_meter m ON m.id = s.meter_id AND m.void_num <> 0
    WHERE NOT s.settled AND s.payer_id = %(payer)s AND s.start_s < %(t1)s AND (s.end_s IS NULL OR s.end_s > %(t0)s)
) piece ON true
GROUP BY p.at_s ORDER BY p.at_s
"""
# What the wallet can pay of what grants have not; below, its balance goes and the accrual that is now posted.
FROM_WALLET = """
UPDATE billing_close c
SET wallet = greatest(0, least(c.gross - c.drawn, b.balance_micros - b.held_micros - b.floor_micros))
FROM billing_accountbalance b WHERE b.account_id = c.payer_id AND c.payee_id IS NULL
"""
TAKE = """
UPDATE billing_accountbalance b
SET balance_micros = b.balance_micros - c.wallet, accrued_num = b.accrued_num - 3600 * c.gross
FROM billing_close c WHERE c.payer_id = b.account_id AND c.payee_id IS NULL
"""
OVERRUN_ACCOUNTS = """
INSERT INTO billing_account (kind, owner, currency, part, created_at)
SELECT 'overrun_expense', a.owner, a.currency, '', %(at)s
FROM billing_close c JOIN billing_account a ON a.id = c.payer_id
WHERE c.payee_id IS NULL AND c.gross - c.drawn > c.wallet ON CONFLICT DO NOTHING
"""
JOURNALS = """
INSERT INTO billing_journal (id, key, kind, request_hash, effective_at, posted_at, memo, by)
SELECT journal_id, key, 'usage',
    encode(sha256(concat_ws('|', payer_id, payee_id, gross, fee, tax)::bytea), 'hex'), %(to)s, %(at)s, '', ''
FROM billing_close ORDER BY journal_id
"""
# `side` is a leg of a journal: an amount of either sign from one account to another, 0 writes nothing.
TRANSFERS = """
WITH clearing AS (SELECT id, currency FROM billing_account WHERE kind = 'usage_clearing'),
posted AS (
    SELECT c.*, a.currency, a.owner, k.id AS clearing_id
    FROM billing_close c
    JOIN billing_account a ON a.id = coalesce(c.payee_id, c.payer_id)
    JOIN clearing k ON k.currency = a.currency
), side AS (
    SELECT journal_id, payer_id AS debit, clearing_id AS credit, wallet AS amount, currency FROM posted
        WHERE payee_id IS NULL
    UNION ALL
    SELECT p.journal_id, o.id, p.clearing_id, p.gross - p.drawn - p.wallet, p.currency FROM posted p
        JOIN billing_account o ON o.kind = 'overrun_expense' AND o.owner = p.owner AND o.currency = p.currency
        WHERE p.payee_id IS NULL
    UNION ALL
    SELECT journal_id, clearing_id, payee_id, gross - fee - tax, currency FROM posted WHERE payee_id IS NOT NULL
    UNION ALL
    SELECT p.journal_id, p.clearing_id, f.id, p.fee, p.currency FROM posted p
        JOIN billing_account f ON f.kind = 'commission' AND f.currency = p.currency WHERE p.payee_id IS NOT NULL
    UNION ALL
    SELECT p.journal_id, p.clearing_id, t.id, p.tax, p.currency FROM posted p
        JOIN billing_account t ON t.kind = 'tax_payable' AND t.part = 'commission' AND t.currency = p.currency
        WHERE p.payee_id IS NOT NULL
)
INSERT INTO billing_transfer (journal_id, debit_id, credit_id, amount_micros, currency)
SELECT journal_id, CASE WHEN amount > 0 THEN debit ELSE credit END, CASE WHEN amount > 0 THEN credit ELSE debit END,
    abs(amount), currency
FROM side WHERE amount <> 0 ORDER BY journal_id
"""


@dataclass(frozen=True)
class Closed:
    shard: int
    start: datetime
    end: datetime
    gross_micros: int


def close_due(*, at: datetime) -> list[Closed]:
    """Close each shard up to the last full hour that ended LAG_S ago; return the runs that were made."""
    to = (at - timedelta(seconds=LAG_S)).replace(minute=0, second=0, microsecond=0)
    return [closed for shard in range(shards.count()) if (closed := close(shard=shard, to=to, at=at)) is not None]


@transaction.atomic
def close(*, shard: int, to: datetime, at: datetime) -> Closed | None:
    """Post what ran in a shard between its last run and `to` (whole seconds); None if that is covered already.

    Raises ValueError for an end that is still to come: what will run is not known.
    """
    if to > at:
        raise ValueError(f"{to} is still to come")
    shards.lock(shard)
    start = shards.closed_to(shard) or BEGINNING
    to = to.replace(microsecond=0)
    if to <= start:
        return None
    with connection.cursor() as cursor:
        cursor.execute(LOCK_WALLETS, {"shard": shard})
    reserves.draw_all(shard=shard, at=at)
    gross_micros = _post_sums(shard=shard, start=start, to=to, at=at)
    BillingRun.objects.create(shard=shard, during=DateTimeTZRange(start, to), posted_at=at, gross_micros=gross_micros)
    downtime.post_covered(shard=shard, at=at)
    return Closed(shard, start, to, gross_micros)


def _post_sums(*, shard: int, start: datetime, to: datetime, at: datetime) -> int:
    t0, t1 = int(start.timestamp()), int(to.timestamp())
    facts: dict[str, Any] = {"shard": shard, "t0": t0, "t1": t1, "to": to, "at": at, "range": f":{shard}:{t1}:"}
    with connection.cursor() as cursor:
        cursor.execute("DROP TABLE IF EXISTS pg_temp.billing_close, pg_temp.billing_charged, pg_temp.billing_earned")
        _sum_up(cursor, facts)
        cursor.execute(SUMS, facts)
        cursor.execute("SELECT DISTINCT a.currency FROM billing_close c JOIN billing_account a ON a.id = c.payer_id")
        for (currency,) in cursor.fetchall():
            _platform_accounts(currency, at=at)
        cursor.execute(JOURNALS, facts)
        _draw_grants(facts, start=start, to=to, at=at)
        cursor.execute(FROM_WALLET)
        cursor.execute(OVERRUN_ACCOUNTS, facts)
        cursor.execute(TRANSFERS)
        cursor.execute(TAKE)
        cursor.execute("SELECT coalesce(sum(gross), 0)::bigint FROM billing_close WHERE payee_id IS NULL")
        (gross_micros,) = cursor.fetchone()
    return int(gross_micros)


def _sum_up(cursor: Any, facts: Mapping[str, Any]) -> None:
    """Sum by payer and by payee; one meter beyond reckoning is left out and does not keep the others from posting.

    `reconcile` names it from then on, and the wallet that it burns ("a meter's usage is within what is stored").
    """
    try:
        with transaction.atomic():
            for sums in (CHARGED, EARNED):
                cursor.execute(sums, facts)
    except DataError:
        log.exception("shard %s: a meter has used more than can be reckoned with; it is left out", facts["shard"])
        for sums in (CHARGED, EARNED):
            cursor.execute(sums.replace(PIECES, PIECES + RECKONABLE), facts)


def _platform_accounts(currency: str, *, at: datetime) -> None:
    charging.clearing(currency, at=at)
    ledger.account(kind=AccountKind.COMMISSION, currency=currency, at=at)
    ledger.account(kind=AccountKind.TAX_PAYABLE, currency=currency, part="commission", at=at)


def _draw_grants(facts: Mapping[str, Any], *, start: datetime, to: datetime, at: datetime) -> None:
    """Let grants pay first, payer by payer: only for those that have one whose window meets the range."""
    usable = Grant.objects.filter(
        Q(expires_at=None) | Q(expires_at__gt=start), account__limited__balance_micros__gt=0, effective_at__lt=to
    ).values_list("account__owner", "account__currency")
    with connection.cursor() as cursor:
        cursor.execute("SELECT payer_id FROM billing_close WHERE payee_id IS NULL")
        charged = [payer_id for (payer_id,) in cursor.fetchall()]
    owners = set(usable)
    if not owners:
        return
    payers = Account.objects.filter(pk__in=charged, owner__in={owner for owner, _ in owners}).order_by("pk")
    for payer in [p for p in payers if (p.owner, p.currency) in owners]:
        _draw_for(payer, facts, at=at)


def _draw_for(payer: Account, facts: Mapping[str, Any], *, at: datetime) -> None:
    usage = _usage_between_edges(payer, facts)
    drawn = [
        (account, n) for account, n in charging.draw(payer, usage, at=at) if account.kind == AccountKind.PROMO_GRANT
    ]
    through = charging.clearing(payer.currency, at=at)
    journal = Journal.objects.get(key=f"usage{facts['range']}{payer.pk}")
    ledger.add(journal, [leg for account, n in drawn for leg in ledger.flow(account, through, n)])
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE billing_close SET drawn = %s WHERE payer_id = %s AND payee_id IS NULL",
            [sum(n for _, n in drawn), payer.pk],
        )


def _usage_between_edges(payer: Account, facts: Mapping[str, Any]) -> list[charging.Usage]:
    t0, t1 = facts["t0"], facts["t1"]
    edges = grant_windows.boundaries_s(grant_windows.of_wallet(payer, start_s=t0, end_s=t1))
    points = [t0, *[edge for edge in edges if t0 < edge < t1], t1]
    with connection.cursor() as cursor:
        cursor.execute(AT_POINTS, {**facts, "payer": payer.pk, "points": points})
        charged = [int(micros) for (micros,) in cursor.fetchall()]
    return [charging.Usage(a, b, y - x) for (a, b), (x, y) in zip(pairwise(points), pairwise(charged), strict=True)]
