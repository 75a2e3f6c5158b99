"""What a placement depends on cannot change without a line in the change log: triggers write it."""

from django.db import migrations

HOST = (
    "owner_id", "zone_id", "fabric", "access", "tier", "state", "scheduling", "conditions", "price_floor_micros",
    "hours", "hours_time_zone", "reliability_bp", "driver_version", "cuda_version", "cpu_milli", "ram_mib", "disk_mib",
    "cpu_milli_per_gpu", "ram_mib_per_gpu", "disk_mib_per_gpu", "simulated", "bare_metal",
)  # fmt: skip
DEVICE = ("host_id", "index", "model_id", "health", "health_reason", "cordoned", "present", "nvlink_clique")


def _differs(columns: tuple[str, ...], *more: str) -> str:
    old, new = ([f"{row}.{column}" for column in columns] + [m.format(row) for m in more] for row in ("OLD", "NEW"))
    return f"({', '.join(old)}) IS DISTINCT FROM ({', '.join(new)})"


FORWARDS = f"""
CREATE FUNCTION agents_host_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO agents_capacitychange (host_id) VALUES (NEW.id);
    RETURN NULL;
END $$;
CREATE FUNCTION agents_device_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO agents_capacitychange (host_id) VALUES (NEW.host_id);
    RETURN NULL;
END $$;
CREATE TRIGGER host_is_new AFTER INSERT ON agents_host FOR EACH ROW EXECUTE FUNCTION agents_host_changed();
CREATE TRIGGER host_changed AFTER UPDATE ON agents_host FOR EACH ROW
    WHEN ({_differs(HOST)}) EXECUTE FUNCTION agents_host_changed();
CREATE TRIGGER device_is_new AFTER INSERT ON agents_device FOR EACH ROW EXECUTE FUNCTION agents_device_changed();
CREATE TRIGGER device_changed AFTER UPDATE ON agents_device FOR EACH ROW
    WHEN ({_differs(DEVICE, "{}.readings -> 'mig'")}) EXECUTE FUNCTION agents_device_changed();
"""
BACKWARDS = """
DROP TRIGGER device_changed ON agents_device;
DROP TRIGGER device_is_new ON agents_device;
DROP TRIGGER host_changed ON agents_host;
DROP TRIGGER host_is_new ON agents_host;
DROP FUNCTION agents_device_changed();
DROP FUNCTION agents_host_changed();
"""


class Migration(migrations.Migration):
    dependencies = [("agents", "0007_cleaning")]
    operations = [migrations.RunSQL(FORWARDS, BACKWARDS)]
