"""What the books refuse, whoever asks: a transfer in two currencies, and any change of what was written."""

from django.db import migrations

APPEND_ONLY = ("journal", "transfer", "holdpart", "holdsettlement", "meterfact", "adjustment", "billingrun")

COMPOSITE_KEYS = """
ALTER TABLE billing_transfer
    ADD CONSTRAINT transfer_debit_in_its_currency FOREIGN KEY (debit_id, currency)
        REFERENCES billing_account (id, currency),
    ADD CONSTRAINT transfer_credit_in_its_currency FOREIGN KEY (credit_id, currency)
        REFERENCES billing_account (id, currency);
"""
COMPOSITE_KEYS_BACK = """
ALTER TABLE billing_transfer
    DROP CONSTRAINT transfer_debit_in_its_currency, DROP CONSTRAINT transfer_credit_in_its_currency;
"""

REFUSE = """
CREATE FUNCTION billing_refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% is append-only: correct it with a new entry', TG_TABLE_NAME
        USING ERRCODE = 'integrity_constraint_violation';
END $$;

-- A version may only have its open end closed: what was promised stays.
CREATE FUNCTION billing_close_open_end_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT upper_inf(OLD.during) OR upper_inf(NEW.during) OR lower(OLD.during) <> lower(NEW.during)
        OR to_jsonb(OLD) - 'during' <> to_jsonb(NEW) - 'during' THEN
        RAISE EXCEPTION 'a price version is never edited: publish a new one'
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER billing_priceversion_close_open_end_only BEFORE UPDATE ON billing_priceversion
    FOR EACH ROW EXECUTE FUNCTION billing_close_open_end_only();
CREATE TRIGGER billing_priceversion_append_only BEFORE DELETE OR TRUNCATE ON billing_priceversion
    FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change();
""" + "".join(
    # For each statement, so that TRUNCATE is refused as well.
    f"""
CREATE TRIGGER billing_{table}_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON billing_{table}
    FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change();
"""
    for table in APPEND_ONLY
)
REFUSE_BACK = (
    "".join(f"DROP TRIGGER billing_{table}_append_only ON billing_{table};" for table in (*APPEND_ONLY, "priceversion"))
    + "DROP TRIGGER billing_priceversion_close_open_end_only ON billing_priceversion;"
    + "DROP FUNCTION billing_refuse_change(); DROP FUNCTION billing_close_open_end_only();"
)


class Migration(migrations.Migration):
    dependencies = [("billing", "0001_initial")]
    operations = [migrations.RunSQL(COMPOSITE_KEYS, COMPOSITE_KEYS_BACK), migrations.RunSQL(REFUSE, REFUSE_BACK)]
