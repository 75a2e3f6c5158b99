"""Counters are not worth a disk flush each: after a crash of the database they start at zero, and nothing else is lost."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("apikit", "0001_initial")]
    operations = [
        migrations.RunSQL(
            "ALTER TABLE apikit_ratecounter SET UNLOGGED", "ALTER TABLE apikit_ratecounter SET LOGGED"
        )
    ]
