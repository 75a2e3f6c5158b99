"""The world that the billing benchmark runs in: N running meters of 10,000 payers, written as rows."""

from datetime import UTC, datetime

from django.db import connection

EPOCH_S = int(datetime(2026, 5, 4, tzinfo=UTC).timestamp())
PAYERS, PAYEES, PRICES = 10_000, 2_000, 8

# Keys are not checked while loading: the rows are consistent by construction, and reconcile proves it afterwards.
LOAD = f"""
SET session_replication_role = replica;
ALTER TABLE billing_segment DROP CONSTRAINT IF EXISTS meter_has_one_price_at_a_time;
INSERT INTO billing_account (id, kind, owner, currency, part, created_at)
SELECT i, 'wallet', md5('payer' || i)::uuid, 'USD', '', now() FROM generate_series(1, {PAYERS}) i
UNION ALL
SELECT {PAYERS} + i, 'host_earnings', md5('payee' || i)::uuid, 'USD', '', now() FROM generate_series(1, {PAYEES}) i
UNION ALL SELECT {PAYERS + PAYEES + 1}, 'cash', NULL, 'USD', 'bench', now();
INSERT INTO billing_journal (id, key, kind, request_hash, effective_at, posted_at, memo, by)
SELECT i, 'bench:' || i, 'topup', '', now(), now(), '', '' FROM generate_series(1, {PAYERS}) i;
INSERT INTO billing_transfer (journal_id, debit_id, credit_id, amount_micros, currency)
SELECT i, {PAYERS + PAYEES + 1}, i, 1000000000000000, 'USD' FROM generate_series(1, {PAYERS}) i;
INSERT INTO billing_accountbalance (account_id, shard, balance_micros, held_micros, floor_micros,
    burn_micros_per_hour, accrued_num)
SELECT i, 0, 1000000000000000, 0, 0, 0, 0 FROM generate_series(1, {PAYERS}) i;
INSERT INTO billing_priceseries (id, sku, region, tier, term, use, currency, notice_s)
SELECT p, 'sku' || p, 'north', 'verified', 'spot', 'active', 'USD', 0 FROM generate_series(0, {PRICES - 1}) p;
INSERT INTO billing_priceversion (id, series_id, during, price_micros_per_hour, unit, minimum_s, free_if_interrupted_s,
    cause, published_at)
SELECT p, p, tstzrange('2020-01-01', NULL), 790001 + 123457 * p, 'gpu_hour', 0, 0, 'bench', now()
FROM generate_series(0, {PRICES - 1}) p;
"""
METERS = f"""
INSERT INTO billing_meter (id, payer_id, payee_id, reference, member, use, commission_bp, tax_on_commission_bp, shard,
    labels, simulated, void_num, minimum_num, waived, ended_by, posted_micros, flagged)
SELECT i, 1 + i %% {PAYERS}, {PAYERS} + 1 + i %% {PAYEES}, 'lease_' || i, 0, 'active', 1250, 0, 0, '{{}}', true, 0, 0,
    false, '', 0, false FROM generate_series(%(first)s::bigint, %(last)s::bigint) i;
INSERT INTO billing_meterfact (id, reference, seq, member, lane, begins, use, at_s, meter_id, price_version_id,
    quantity, follows, cause, received_at)
SELECT i, 'lease_' || i, 1, 0, 'compute', true, 'active', %(begin_s)s + i %% 3600, i,
    CASE WHEN i <= %(follow)s THEN 0 ELSE i %% {PRICES} END, 1 + i %% 4, i <= %(follow)s, '', now()
FROM generate_series(%(first)s::bigint, %(last)s::bigint) i;
INSERT INTO billing_segment (meter_id, payer_id, payee_id, commission_bp, tax_on_commission_bp, shard, fact_id,
    price_version_id, quantity, rate_micros_per_hour, start_s, base_num, settled, followed)
SELECT f.meter_id, 1 + f.id %% {PAYERS}, {PAYERS} + 1 + f.id %% {PAYEES}, 1250, 0, 0, f.id,
    f.price_version_id, f.quantity, f.quantity * v.price_micros_per_hour, f.at_s, 0, false, false
FROM billing_meterfact f JOIN billing_priceversion v ON v.id = f.price_version_id
WHERE f.id BETWEEN %(first)s AND %(last)s;
"""
SEQUENCES = ["account", "journal", "transfer", "priceseries", "priceversion", "meter", "meterfact", "segment"]


def load(*, meters: int, follow: int) -> None:
    """Fill empty tables with accounts, prices and `meters` running meters, the first `follow` of them on spot."""
    with connection.cursor() as cursor:
        cursor.execute(LOAD)
        grow(first=1, last=meters, follow=follow)
        for table in SEQUENCES:
            name = f"pg_get_serial_sequence('billing_{table}', 'id')"
            cursor.execute(f"SELECT setval({name}, (SELECT max(id) + 1 FROM billing_{table}))")


def grow(*, first: int, last: int, follow: int = 0, begin_s: int = EPOCH_S - 3600) -> None:
    """Add meters `first` to `last`, which begin within the hour after `begin_s`."""
    with connection.cursor() as cursor:
        cursor.execute("SET session_replication_role = replica")
        cursor.execute(METERS, {"first": first, "last": last, "follow": follow, "begin_s": begin_s})
        cursor.execute("SET session_replication_role = DEFAULT")
        cursor.execute("VACUUM ANALYZE")


def constrain() -> None:
    """Put the constraint on overlapping segments back, over what is there."""
    with connection.cursor() as cursor:
        cursor.execute("SET maintenance_work_mem = '512MB'")
        cursor.execute(
            "ALTER TABLE billing_segment ADD CONSTRAINT meter_has_one_price_at_a_time"
            " EXCLUDE USING gist (meter_id WITH =, int8range(start_s, end_s) WITH &&)"
        )


def age(*, account: int, count: int) -> None:
    """Give a wallet a history: `count` transfers of 1 micro-unit out of it, as hours of usage leave them behind."""
    with connection.cursor() as cursor:
        cursor.execute(
            "WITH j AS (INSERT INTO billing_journal"
            " (key, kind, request_hash, effective_at, posted_at, memo, by)"
            " SELECT 'aged:' || i, 'bench', '', now(), now(), '', '' FROM generate_series(1, %s) i RETURNING id)"
            " INSERT INTO billing_transfer (journal_id, debit_id, credit_id, amount_micros, currency)"
            " SELECT id, %s, %s, 1, 'USD' FROM j",
            [count, account, PAYERS + PAYEES + 1],
        )
        cursor.execute(
            "UPDATE billing_accountbalance SET balance_micros = balance_micros - %s WHERE account_id = %s",
            [count, account],
        )
        cursor.execute("VACUUM ANALYZE billing_transfer")
