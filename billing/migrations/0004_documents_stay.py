"""An issued invoice is a document: only its becoming void is ever written to it."""

from django.db import migrations

FORWARD = """
CREATE FUNCTION billing_invoice_stays() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.state = 'draft' THEN
        RETURN CASE WHEN TG_OP = 'DELETE' THEN OLD ELSE NEW END;
    END IF;
    IF TG_OP = 'UPDATE' AND OLD.state = 'final' AND NEW.state = 'void'
        AND to_jsonb(OLD) - 'state' - 'voided_at' = to_jsonb(NEW) - 'state' - 'voided_at' THEN
        RETURN NEW;
    END IF;
    RAISE EXCEPTION 'invoice % is issued: void it or credit it', OLD.number
        USING ERRCODE = 'integrity_constraint_violation';
END $$;
CREATE TRIGGER billing_invoice_stays BEFORE UPDATE OR DELETE ON billing_invoice
    FOR EACH ROW EXECUTE FUNCTION billing_invoice_stays();

CREATE FUNCTION billing_invoice_line_stays() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    id_of_invoice uuid := CASE WHEN TG_OP = 'INSERT' THEN NEW.invoice_id ELSE OLD.invoice_id END;
BEGIN
    IF (SELECT state FROM billing_invoice WHERE id = id_of_invoice) <> 'draft' THEN
        RAISE EXCEPTION 'the invoice is issued' USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN CASE WHEN TG_OP = 'DELETE' THEN OLD ELSE NEW END;
END $$;
CREATE TRIGGER billing_invoiceline_stays BEFORE INSERT OR UPDATE OR DELETE ON billing_invoiceline
    FOR EACH ROW EXECUTE FUNCTION billing_invoice_line_stays();

CREATE TRIGGER billing_creditnote_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON billing_creditnote
    FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change();
CREATE TRIGGER billing_inboxevent_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON billing_inboxevent
    FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change();
"""
BACKWARD = """
DROP TRIGGER billing_inboxevent_append_only ON billing_inboxevent;
DROP TRIGGER billing_creditnote_append_only ON billing_creditnote;
DROP TRIGGER billing_invoiceline_stays ON billing_invoiceline;
DROP TRIGGER billing_invoice_stays ON billing_invoice;
DROP FUNCTION billing_invoice_line_stays();
DROP FUNCTION billing_invoice_stays();
"""


class Migration(migrations.Migration):
    dependencies = [("billing", "0003_terms_payments_documents")]
    operations = [migrations.RunSQL(FORWARD, BACKWARD)]
