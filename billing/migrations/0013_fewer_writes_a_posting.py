"""A posting writes less: one B-tree entry a transfer, and wallets that find room beside themselves when they change.

A transfer is looked up by its accounts all the time, and by its journal almost never. Journals and their transfers are
numbered in one order, which a BRIN tells in a few entries for thousands of rows. A wallet's row changes with each
posting: with half of its page free the new version stays on it, and no index has to know.
"""

import django.contrib.postgres.indexes
import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("billing", "0012_reserves")]
    operations = [
        migrations.AlterField(
            model_name="transfer",
            name="journal",
            field=models.ForeignKey(
                db_constraint=False,
                db_index=False,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="transfers",
                to="billing.journal",
            ),
        ),
        migrations.AddIndex(
            model_name="transfer",
            index=django.contrib.postgres.indexes.BrinIndex(
                autosummarize=True, fields=["journal"], name="transfers_of_journals", pages_per_range=32
            ),
        ),
        migrations.RunSQL(
            "ALTER TABLE billing_accountbalance SET (fillfactor = 50)",
            "ALTER TABLE billing_accountbalance RESET (fillfactor)",
        ),
    ]
