"""Segments say who earns and at which shares: the close sums them alone. Journals keep only the indexes they need."""

import django.contrib.postgres.indexes
import django.db.models.deletion
from django.db import migrations, models


# Constraints at once: PostgreSQL alters no table with checks still to come.
FILL = """
SET CONSTRAINTS ALL IMMEDIATE;
UPDATE billing_segment s SET payee_id = m.payee_id, commission_bp = m.commission_bp,
    tax_on_commission_bp = m.tax_on_commission_bp, shard = m.shard
FROM billing_meter m WHERE m.id = s.meter_id;
"""


class Migration(migrations.Migration):
    dependencies = [
        ("billing", "0005_segments_know_their_payer"),
    ]

    operations = [
        migrations.RemoveIndex(
            model_name="journal",
            name="journal_by_time",
        ),
        migrations.AddField(
            model_name="segment",
            name="commission_bp",
            field=models.SmallIntegerField(default=0),
        ),
        migrations.AddField(
            model_name="segment",
            name="payee",
            field=models.ForeignKey(
                db_constraint=False,
                db_index=False,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="+",
                to="billing.account",
            ),
        ),
        migrations.AddField(
            model_name="segment",
            name="shard",
            field=models.SmallIntegerField(default=0),
        ),
        migrations.AddField(
            model_name="segment",
            name="tax_on_commission_bp",
            field=models.SmallIntegerField(default=0),
        ),
        migrations.RunSQL(FILL, reverse_sql=migrations.RunSQL.noop),
        migrations.AlterField(
            model_name="segment",
            name="payee",
            field=models.ForeignKey(
                db_constraint=False,
                db_index=False,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="+",
                to="billing.account",
            ),
        ),
        migrations.AlterField(
            model_name="segment",
            name="commission_bp",
            field=models.SmallIntegerField(),
        ),
        migrations.AlterField(
            model_name="journal",
            name="corrects",
            field=models.ForeignKey(
                blank=True,
                db_index=False,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="corrections",
                to="billing.journal",
            ),
        ),
        migrations.AlterField(
            model_name="journal",
            name="key",
            field=models.CharField(max_length=200),
        ),
        migrations.AlterField(
            model_name="journal",
            name="reverses",
            field=models.ForeignKey(
                blank=True,
                db_index=False,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="reversals",
                to="billing.journal",
            ),
        ),
        migrations.AlterField(
            model_name="segment",
            name="fact",
            field=models.ForeignKey(
                db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name="+", to="billing.meterfact"
            ),
        ),
        migrations.AlterField(
            model_name="segment",
            name="payer",
            field=models.ForeignKey(
                db_constraint=False,
                db_index=False,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="+",
                to="billing.account",
            ),
        ),
        migrations.AddIndex(
            model_name="journal",
            index=models.Index(
                condition=models.Q(("corrects__isnull", False)), fields=["corrects"], name="journal_corrections"
            ),
        ),
        migrations.AddIndex(
            model_name="journal",
            index=django.contrib.postgres.indexes.BrinIndex(fields=["effective_at"], name="journal_by_time"),
        ),
        migrations.AddConstraint(
            model_name="journal",
            constraint=models.UniqueConstraint(fields=("key",), name="journal_key_posts_once"),
        ),
        migrations.AddConstraint(
            model_name="journal",
            constraint=models.UniqueConstraint(
                condition=models.Q(("reverses__isnull", False)), fields=("reverses",), name="journal_is_reversed_once"
            ),
        ),
    ]
