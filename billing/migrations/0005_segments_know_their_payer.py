"""Segments say whose money they burn and whether another follows: exhaustion is summed from them alone."""

import django.db.models.deletion
from django.db import migrations, models

# Constraints at once: PostgreSQL alters no table with checks still to come.
FILL = """
SET CONSTRAINTS ALL IMMEDIATE;
UPDATE billing_segment s SET payer_id = m.payer_id FROM billing_meter m WHERE m.id = s.meter_id;
UPDATE billing_segment s SET followed = true FROM (
    SELECT id, lead(start_s) OVER (PARTITION BY meter_id ORDER BY start_s, end_s NULLS LAST, id) AS next_s
    FROM billing_segment
) n WHERE n.id = s.id AND n.next_s = s.end_s;
"""


class Migration(migrations.Migration):
    dependencies = [("billing", "0004_documents_stay")]

    operations = [
        migrations.AddField(
            model_name="segment",
            name="followed",
            field=models.BooleanField(default=False),
        ),
        migrations.AddField(
            model_name="segment",
            name="payer",
            field=models.ForeignKey(
                db_index=False,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="+",
                to="billing.account",
            ),
        ),
        migrations.RunSQL(FILL, reverse_sql=migrations.RunSQL.noop),
        migrations.AlterField(
            model_name="segment",
            name="payer",
            field=models.ForeignKey(
                db_index=False,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="+",
                to="billing.account",
            ),
        ),
        migrations.AddIndex(
            model_name="meter",
            index=models.Index(
                condition=models.Q(("void_num", 0), _negated=True),
                fields=["id"],
                name="meters_with_voids",
            ),
        ),
        migrations.AddIndex(
            model_name="segment",
            index=models.Index(
                condition=models.Q(("settled", False)),
                fields=["payer"],
                name="segments_that_burn",
            ),
        ),
        migrations.AddIndex(
            model_name="segment",
            index=models.Index(
                condition=models.Q(("end_s__isnull", False), ("followed", False), ("settled", False)),
                fields=["payer"],
                name="segments_with_a_remainder",
            ),
        ),
    ]
