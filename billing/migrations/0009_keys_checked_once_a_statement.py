"""A posting in one round trip, and the composite keys of transfers checked once a statement instead of once a row.

What a foreign key promises is promised still: no transfer without its journal, none with an account that is not there or
keeps another currency. Accounts cannot lose their id or currency, nor go, so nothing has to be locked to keep it so: a
foreign key locked the platform's accounts in every posting, and took more time than writing the rows.
"""

from django.db import migrations, models
import django.db.models.deletion

KEYS = """
SET CONSTRAINTS ALL IMMEDIATE;
CREATE FUNCTION billing_refuse_stray_transfers() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    -- Scalar subqueries: each is one look into an index, whatever the planner thinks of how many rows were added.
    IF EXISTS (
        SELECT FROM (
            SELECT debit_id AS id, currency FROM added UNION SELECT credit_id, currency FROM added
        ) used
        WHERE (SELECT true FROM billing_account a WHERE a.id = used.id AND a.currency = used.currency) IS NULL
    ) THEN
        RAISE EXCEPTION 'a transfer names an account that does not keep its currency'
            USING ERRCODE = 'foreign_key_violation', CONSTRAINT = 'transfer_in_its_accounts_currency';
    END IF;
    IF EXISTS (
        SELECT FROM added WHERE (SELECT true FROM billing_journal j WHERE j.id = added.journal_id) IS NULL
    ) THEN
        RAISE EXCEPTION 'a transfer belongs to no journal'
            USING ERRCODE = 'foreign_key_violation', CONSTRAINT = 'transfer_of_its_journal';
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER billing_transfer_keys AFTER INSERT ON billing_transfer
    REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_stray_transfers();
CREATE TRIGGER billing_account_keys_stay BEFORE UPDATE OF id, currency ON billing_account
    FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change();
CREATE TRIGGER billing_account_stays BEFORE DELETE OR TRUNCATE ON billing_account
    FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change();
ALTER TABLE billing_transfer
    DROP CONSTRAINT transfer_debit_in_its_currency, DROP CONSTRAINT transfer_credit_in_its_currency;
"""
KEYS_BACK = """
ALTER TABLE billing_transfer
    ADD CONSTRAINT transfer_debit_in_its_currency FOREIGN KEY (debit_id, currency)
        REFERENCES billing_account (id, currency),
    ADD CONSTRAINT transfer_credit_in_its_currency FOREIGN KEY (credit_id, currency)
        REFERENCES billing_account (id, currency);
DROP TRIGGER billing_account_stays ON billing_account;
DROP TRIGGER billing_account_keys_stay ON billing_account;
DROP TRIGGER billing_transfer_keys ON billing_transfer;
DROP FUNCTION billing_refuse_stray_transfers();
"""

# Returns the journal's id; null, and nothing is written, if the key has posted before; 0, and nothing is written, if an
# account would pass its floor. So no caller needs a savepoint around it.
POST = """
CREATE OR REPLACE FUNCTION billing_post(
    key_ text, kind_ text, request_hash_ text, effective_at_ timestamptz, posted_at_ timestamptz, reverses_ bigint,
    corrects_ bigint, memo_ text, by_ text, debits bigint[], credits bigint[], amounts bigint[], currencies text[],
    accounts bigint[], deltas bigint[]
) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    posted bigint;
    limited record;
BEGIN
    FOR limited IN
        SELECT account_id, balance_micros::numeric - held_micros - floor_micros AS free FROM billing_accountbalance
        WHERE account_id = ANY(accounts) ORDER BY account_id FOR NO KEY UPDATE
    LOOP
        IF limited.free < 0 - deltas[array_position(accounts, limited.account_id)] THEN
            PERFORM FROM billing_journal WHERE key = key_;
            RETURN CASE WHEN FOUND THEN NULL ELSE 0 END;
        END IF;
    END LOOP;
    -- The unique key decides which of two callers posts; the other waits here for its commit and finds it.
    INSERT INTO billing_journal
        (key, kind, request_hash, effective_at, posted_at, reverses_id, corrects_id, memo, by)
    VALUES (key_, kind_, request_hash_, effective_at_, posted_at_, reverses_, corrects_, memo_, by_)
    ON CONFLICT (key) DO NOTHING RETURNING id INTO posted;
    IF posted IS NULL THEN
        RETURN NULL;
    END IF;
    INSERT INTO billing_transfer (journal_id, debit_id, credit_id, amount_micros, currency)
    SELECT posted, leg.debit, leg.credit, leg.amount, leg.currency
    FROM unnest(debits, credits, amounts, currencies) AS leg(debit, credit, amount, currency);
    -- Added here: a balance that was read, added to and written back loses what others wrote in between.
    FOR i IN 1 .. cardinality(accounts) LOOP
        UPDATE billing_accountbalance b SET balance_micros = b.balance_micros + deltas[i]
        WHERE b.account_id = accounts[i];
    END LOOP;
    RETURN posted;
END $$
"""


class Migration(migrations.Migration):
    dependencies = [("billing", "0008_commission_rates_and_budget_versions")]
    operations = [
        migrations.RunSQL(KEYS, KEYS_BACK),
        migrations.AlterField(
            model_name="transfer",
            name="journal",
            field=models.ForeignKey(
                db_constraint=False,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="transfers",
                to="billing.journal",
            ),
        ),
        migrations.RunSQL(POST, migrations.RunSQL.noop),
    ]
