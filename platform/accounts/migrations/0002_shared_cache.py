"""The table behind Django's cache: which codes were used, and how often somebody tried. All processes must see it."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("accounts", "0001_initial")]
    operations = [
        migrations.RunSQL(
            """
            CREATE UNLOGGED TABLE accounts_cache (
                cache_key varchar(255) PRIMARY KEY, value text NOT NULL, expires timestamptz NOT NULL
            );
            CREATE INDEX accounts_cache_expires ON accounts_cache (expires);
            """,
            "DROP TABLE accounts_cache",
        )
    ]
