"""The calendar cannot change without a line in the change log of capacity: triggers write it, one for each host."""

from django.db import migrations

FORWARDS = """
CREATE FUNCTION leasing_calendar_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO agents_capacitychange (host_id)
    SELECT DISTINCT device.host_id FROM changed JOIN agents_device AS device ON device.id = changed.device_id;
    RETURN NULL;
END $$;
CREATE TRIGGER calendar_has_more AFTER INSERT ON leasing_allocation REFERENCING NEW TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION leasing_calendar_changed();
CREATE TRIGGER calendar_moved AFTER UPDATE ON leasing_allocation REFERENCING NEW TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION leasing_calendar_changed();
CREATE TRIGGER calendar_has_less AFTER DELETE ON leasing_allocation REFERENCING OLD TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION leasing_calendar_changed();

-- What renews itself has no end that anybody could count on.
CREATE FUNCTION leasing_renewal_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO agents_capacitychange (host_id)
    SELECT DISTINCT device.host_id FROM leasing_allocation AS held JOIN agents_device AS device
        ON device.id = held.device_id WHERE held.lease_id = NEW.id AND held.released_at IS NULL;
    RETURN NULL;
END $$;
CREATE TRIGGER renewal_changed AFTER UPDATE ON leasing_lease FOR EACH ROW
    WHEN (OLD.renew IS DISTINCT FROM NEW.renew) EXECUTE FUNCTION leasing_renewal_changed();
"""
BACKWARDS = """
DROP TRIGGER renewal_changed ON leasing_lease;
DROP FUNCTION leasing_renewal_changed();
DROP TRIGGER calendar_has_less ON leasing_allocation;
DROP TRIGGER calendar_moved ON leasing_allocation;
DROP TRIGGER calendar_has_more ON leasing_allocation;
DROP FUNCTION leasing_calendar_changed();
"""


class Migration(migrations.Migration):
    dependencies = [("leasing", "0006_after_a_restore"), ("agents", "0008_capacity_changes_by_themselves")]
    operations = [migrations.RunSQL(FORWARDS, BACKWARDS)]
