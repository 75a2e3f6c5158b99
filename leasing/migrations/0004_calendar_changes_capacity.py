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
"""
BACKWARDS = """
DROP TRIGGER calendar_has_less ON leasing_allocation;
DROP TRIGGER calendar_moved ON leasing_allocation;
DROP TRIGGER calendar_has_more ON leasing_allocation;
DROP FUNCTION leasing_calendar_changed();
"""


class Migration(migrations.Migration):
    dependencies = [("leasing", "0003_notices"), ("agents", "0006_capacity_changes_by_themselves")]
    operations = [migrations.RunSQL(FORWARDS, BACKWARDS)]
