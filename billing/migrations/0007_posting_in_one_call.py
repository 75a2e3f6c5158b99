"""One call posts a journal, its transfers and what they do to stored balances: its plans are made once a session."""

from django.db import migrations

POST = """
CREATE FUNCTION billing_post(
    key_ text, kind_ text, request_hash_ text, effective_at_ timestamptz, posted_at_ timestamptz, reverses_ bigint,
    corrects_ bigint, memo_ text, by_ text, debits bigint[], credits bigint[], amounts bigint[], currencies text[],
    accounts bigint[], deltas bigint[]
) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    posted bigint;
BEGIN
    IF cardinality(accounts) > 1 THEN  -- one row is locked by its own update
        PERFORM FROM billing_accountbalance WHERE account_id = ANY(accounts) ORDER BY account_id FOR NO KEY UPDATE;
    END IF;
    -- The unique key decides which of two callers posts; the other waits here for its commit and finds it.
    INSERT INTO billing_journal
        (key, kind, request_hash, effective_at, posted_at, reverses_id, corrects_id, memo, by)
    VALUES (key_, kind_, request_hash_, effective_at_, posted_at_, reverses_, corrects_, memo_, by_)
    ON CONFLICT (key) DO NOTHING RETURNING id INTO posted;
    IF posted IS NULL THEN
        RETURN NULL;
    END IF;
    FOR i IN 1 .. cardinality(amounts) LOOP
        INSERT INTO billing_transfer (journal_id, debit_id, credit_id, amount_micros, currency)
        VALUES (posted, debits[i], credits[i], amounts[i], currencies[i]);
    END LOOP;
    -- Added here: a balance that was read, added to and written back loses what others wrote in between.
    FOR i IN 1 .. cardinality(accounts) LOOP
        UPDATE billing_accountbalance b SET balance_micros = b.balance_micros + deltas[i]
        WHERE b.account_id = accounts[i];
    END LOOP;
    RETURN posted;
END $$
"""


class Migration(migrations.Migration):
    dependencies = [("billing", "0006_journal_indexes_and_what_segments_know")]
    operations = [migrations.RunSQL(POST, "DROP FUNCTION billing_post")]
