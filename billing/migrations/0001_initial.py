import django.contrib.postgres.constraints
import django.contrib.postgres.fields.ranges
import django.db.models.deletion
import django.db.models.expressions
from django.contrib.postgres.operations import BtreeGistExtension
from django.db import migrations, models


class Migration(migrations.Migration):

    initial = True

    dependencies = [
    ]

    operations = [
        BtreeGistExtension(),
        migrations.CreateModel(
            name='Account',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('kind', models.CharField(choices=[('wallet', 'Wallet'), ('promo_grant', 'Promo Grant'), ('prepaid_term', 'Prepaid Term'), ('refundable', 'Refundable'), ('host_earnings', 'Host Earnings'), ('payout_transit', 'Payout Transit'), ('usage_clearing', 'Usage Clearing'), ('commission', 'Commission'), ('overrun_expense', 'Overrun Expense'), ('promo_expense', 'Promo Expense'), ('breakage', 'Breakage'), ('tax_payable', 'Tax Payable'), ('cash', 'Cash'), ('fx', 'Fx'), ('refund_limit', 'Refund Limit')], max_length=20)),
                ('owner', models.UUIDField(blank=True, null=True)),
                ('currency', models.CharField(max_length=3)),
                ('part', models.CharField(blank=True, default='', max_length=80)),
                ('created_at', models.DateTimeField()),
            ],
        ),
        migrations.CreateModel(
            name='Adjustment',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('n', models.IntegerField()),
                ('gross_micros', models.BigIntegerField()),
                ('start_s', models.BigIntegerField()),
                ('end_s', models.BigIntegerField()),
                ('cause', models.CharField(max_length=20)),
            ],
        ),
        migrations.CreateModel(
            name='BillingRun',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('shard', models.SmallIntegerField()),
                ('during', django.contrib.postgres.fields.ranges.DateTimeRangeField()),
                ('posted_at', models.DateTimeField()),
                ('gross_micros', models.BigIntegerField(default=0)),
            ],
        ),
        migrations.CreateModel(
            name='Grant',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('priority', models.SmallIntegerField(default=100)),
                ('promotional', models.BooleanField(default=True)),
                ('amount_micros', models.BigIntegerField()),
                ('effective_at', models.DateTimeField()),
                ('expires_at', models.DateTimeField(blank=True, null=True)),
                ('reason', models.CharField(blank=True, default='', max_length=200)),
                ('created_at', models.DateTimeField()),
            ],
        ),
        migrations.CreateModel(
            name='Hold',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('reference', models.CharField(max_length=64, unique=True)),
                ('amount_micros', models.BigIntegerField()),
                ('placed_at', models.DateTimeField()),
                ('expires_at', models.DateTimeField()),
            ],
        ),
        migrations.CreateModel(
            name='HoldPart',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('amount_micros', models.BigIntegerField()),
            ],
        ),
        migrations.CreateModel(
            name='Journal',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('key', models.CharField(max_length=200, unique=True)),
                ('kind', models.CharField(max_length=20)),
                ('request_hash', models.CharField(max_length=64)),
                ('effective_at', models.DateTimeField()),
                ('posted_at', models.DateTimeField()),
                ('memo', models.CharField(blank=True, default='', max_length=300)),
                ('by', models.CharField(blank=True, default='', max_length=100)),
            ],
        ),
        migrations.CreateModel(
            name='Meter',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('reference', models.CharField(max_length=64)),
                ('member', models.SmallIntegerField()),
                ('use', models.CharField(choices=[('active', 'Active'), ('hold', 'Hold'), ('storage', 'Storage')], max_length=10)),
                ('commission_bp', models.IntegerField()),
                ('tax_on_commission_bp', models.IntegerField(default=0)),
                ('shard', models.SmallIntegerField(default=0)),
                ('labels', models.JSONField(blank=True, default=dict)),
                ('simulated', models.BooleanField(default=False)),
                ('void_num', models.BigIntegerField(default=0)),
                ('minimum_num', models.BigIntegerField(default=0)),
                ('waived', models.BooleanField(default=False, help_text='Free: the supplying side ended it within its first seconds.')),
                ('settled_at', models.DateTimeField(blank=True, null=True)),
                ('ended_by', models.CharField(blank=True, default='', max_length=20)),
                ('posted_micros', models.BigIntegerField(default=0)),
                ('flagged', models.BooleanField(default=False, help_text='A fact ended something before it began.')),
            ],
        ),
        migrations.CreateModel(
            name='MeterFact',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('reference', models.CharField(max_length=64)),
                ('seq', models.BigIntegerField()),
                ('member', models.SmallIntegerField(blank=True, null=True)),
                ('lane', models.CharField(blank=True, choices=[('', 'All'), ('compute', 'Compute'), ('storage', 'Storage')], default='', max_length=10)),
                ('begins', models.BooleanField()),
                ('use', models.CharField(blank=True, default='', max_length=10)),
                ('at_s', models.BigIntegerField()),
                ('quantity', models.IntegerField(default=0)),
                ('follows', models.BooleanField(default=False)),
                ('cause', models.CharField(blank=True, default='', max_length=40)),
                ('received_at', models.DateTimeField()),
            ],
        ),
        migrations.CreateModel(
            name='PriceSeries',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('sku', models.CharField(max_length=80)),
                ('region', models.CharField(max_length=60)),
                ('tier', models.CharField(max_length=20)),
                ('term', models.CharField(max_length=20)),
                ('use', models.CharField(max_length=10)),
                ('currency', models.CharField(max_length=3)),
                ('notice_s', models.IntegerField(default=0)),
            ],
            options={
                'verbose_name_plural': 'price series',
            },
        ),
        migrations.CreateModel(
            name='PriceVersion',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('during', django.contrib.postgres.fields.ranges.DateTimeRangeField()),
                ('price_micros_per_hour', models.BigIntegerField()),
                ('unit', models.CharField(default='gpu_hour', max_length=20)),
                ('minimum_s', models.IntegerField(default=0)),
                ('free_if_interrupted_s', models.IntegerField(default=0)),
                ('cause', models.CharField(max_length=100)),
                ('published_at', models.DateTimeField()),
            ],
        ),
        migrations.CreateModel(
            name='Segment',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('quantity', models.IntegerField()),
                ('rate_micros_per_hour', models.BigIntegerField()),
                ('start_s', models.BigIntegerField()),
                ('end_s', models.BigIntegerField(blank=True, null=True)),
                ('base_num', models.BigIntegerField(default=0)),
                ('settled', models.BooleanField(default=False)),
            ],
        ),
        migrations.CreateModel(
            name='Transfer',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('amount_micros', models.BigIntegerField()),
                ('currency', models.CharField(max_length=3)),
            ],
        ),
        migrations.CreateModel(
            name='Void',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('start_s', models.BigIntegerField()),
                ('end_s', models.BigIntegerField()),
                ('reason', models.CharField(max_length=200)),
                ('applied', models.BooleanField(default=False)),
                ('at', models.DateTimeField()),
            ],
        ),
        migrations.CreateModel(
            name='AccountBalance',
            fields=[
                ('account', models.OneToOneField(on_delete=django.db.models.deletion.PROTECT, primary_key=True, related_name='limited', serialize=False, to='billing.account')),
                ('shard', models.SmallIntegerField(default=0)),
                ('balance_micros', models.BigIntegerField(default=0)),
                ('held_micros', models.BigIntegerField(default=0)),
                ('floor_micros', models.BigIntegerField(default=0)),
                ('burn_micros_per_hour', models.BigIntegerField(default=0)),
                ('accrued_num', models.BigIntegerField(default=0)),
                ('as_of', models.DateTimeField(blank=True, null=True)),
                ('exhaust_at', models.DateTimeField(blank=True, null=True)),
                ('refresh_at', models.DateTimeField(blank=True, null=True)),
            ],
        ),
        migrations.AddConstraint(
            model_name='account',
            constraint=models.UniqueConstraint(fields=('owner', 'kind', 'currency', 'part'), name='account_is_one_per_purpose', nulls_distinct=False),
        ),
        migrations.AddConstraint(
            model_name='account',
            constraint=models.UniqueConstraint(fields=('id', 'currency'), name='account_has_one_currency'),
        ),
        migrations.AddConstraint(
            model_name='billingrun',
            constraint=models.CheckConstraint(condition=models.Q(('during__isempty', False)), name='run_covers_something'),
        ),
        migrations.AddConstraint(
            model_name='billingrun',
            constraint=django.contrib.postgres.constraints.ExclusionConstraint(expressions=[('shard', '='), ('during', '&&')], name='runs_of_a_shard_do_not_overlap'),
        ),
        migrations.AddField(
            model_name='grant',
            name='account',
            field=models.OneToOneField(on_delete=django.db.models.deletion.PROTECT, related_name='grant', to='billing.account'),
        ),
        migrations.CreateModel(
            name='HoldSettlement',
            fields=[
                ('hold', models.OneToOneField(on_delete=django.db.models.deletion.PROTECT, primary_key=True, related_name='settlement', serialize=False, to='billing.hold')),
                ('captured_micros', models.BigIntegerField(default=0)),
                ('cause', models.CharField(max_length=20)),
                ('at', models.DateTimeField()),
            ],
        ),
        migrations.AddField(
            model_name='hold',
            name='account',
            field=models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='holds', to='billing.account'),
        ),
        migrations.AddField(
            model_name='holdpart',
            name='account',
            field=models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to='billing.account'),
        ),
        migrations.AddField(
            model_name='holdpart',
            name='hold',
            field=models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='parts', to='billing.hold'),
        ),
        migrations.AddField(
            model_name='journal',
            name='corrects',
            field=models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='corrections', to='billing.journal'),
        ),
        migrations.AddField(
            model_name='journal',
            name='reverses',
            field=models.OneToOneField(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='reversed_by', to='billing.journal'),
        ),
        migrations.AddField(
            model_name='adjustment',
            name='journal',
            field=models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='adjustments', to='billing.journal'),
        ),
        migrations.AddField(
            model_name='meter',
            name='payee',
            field=models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='meters_earned', to='billing.account'),
        ),
        migrations.AddField(
            model_name='meter',
            name='payer',
            field=models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='meters_paid', to='billing.account'),
        ),
        migrations.AddField(
            model_name='adjustment',
            name='meter',
            field=models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='adjustments', to='billing.meter'),
        ),
        migrations.AddField(
            model_name='meterfact',
            name='meter',
            field=models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='facts', to='billing.meter'),
        ),
        migrations.AddConstraint(
            model_name='priceseries',
            constraint=models.UniqueConstraint(fields=('sku', 'region', 'tier', 'term', 'use', 'currency', 'notice_s'), name='price_series_is_one'),
        ),
        migrations.AddField(
            model_name='priceversion',
            name='series',
            field=models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='versions', to='billing.priceseries'),
        ),
        migrations.AddField(
            model_name='meterfact',
            name='price_version',
            field=models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='billing.priceversion'),
        ),
        migrations.AddField(
            model_name='segment',
            name='fact',
            field=models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to='billing.meterfact'),
        ),
        migrations.AddField(
            model_name='segment',
            name='meter',
            field=models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='segments', to='billing.meter'),
        ),
        migrations.AddField(
            model_name='segment',
            name='price_version',
            field=models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='billing.priceversion'),
        ),
        migrations.AddField(
            model_name='transfer',
            name='credit',
            field=models.ForeignKey(db_constraint=False, on_delete=django.db.models.deletion.PROTECT, related_name='credits', to='billing.account'),
        ),
        migrations.AddField(
            model_name='transfer',
            name='debit',
            field=models.ForeignKey(db_constraint=False, on_delete=django.db.models.deletion.PROTECT, related_name='debits', to='billing.account'),
        ),
        migrations.AddField(
            model_name='transfer',
            name='journal',
            field=models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='transfers', to='billing.journal'),
        ),
        migrations.AddField(
            model_name='void',
            name='meter',
            field=models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='voids', to='billing.meter'),
        ),
        migrations.AddIndex(
            model_name='accountbalance',
            index=models.Index(condition=models.Q(('exhaust_at__isnull', False)), fields=['exhaust_at'], name='exhausted_first'),
        ),
        migrations.AddIndex(
            model_name='accountbalance',
            index=models.Index(condition=models.Q(('refresh_at__isnull', False)), fields=['refresh_at'], name='refresh_first'),
        ),
        migrations.AddConstraint(
            model_name='accountbalance',
            constraint=models.CheckConstraint(condition=models.Q(('balance_micros__gte', django.db.models.expressions.CombinedExpression(models.F('floor_micros'), '+', models.F('held_micros')))), name='balance_covers_what_is_held'),
        ),
        migrations.AddConstraint(
            model_name='accountbalance',
            constraint=models.CheckConstraint(condition=models.Q(('held_micros__gte', 0)), name='held_is_never_negative'),
        ),
        migrations.AddConstraint(
            model_name='grant',
            constraint=models.CheckConstraint(condition=models.Q(('amount_micros__gt', 0)), name='grant_gives_something'),
        ),
        migrations.AddConstraint(
            model_name='grant',
            constraint=models.CheckConstraint(condition=models.Q(('expires_at__isnull', True), ('expires_at__gt', models.F('effective_at')), _connector='OR'), name='grant_has_a_window'),
        ),
        migrations.AddConstraint(
            model_name='holdsettlement',
            constraint=models.CheckConstraint(condition=models.Q(('captured_micros__gte', 0)), name='capture_is_not_negative'),
        ),
        migrations.AddIndex(
            model_name='hold',
            index=models.Index(fields=['expires_at'], name='hold_by_expiry'),
        ),
        migrations.AddConstraint(
            model_name='hold',
            constraint=models.CheckConstraint(condition=models.Q(('amount_micros__gte', 0)), name='hold_is_not_negative'),
        ),
        migrations.AddConstraint(
            model_name='holdpart',
            constraint=models.UniqueConstraint(fields=('hold', 'account'), name='hold_takes_once_from_an_account'),
        ),
        migrations.AddConstraint(
            model_name='holdpart',
            constraint=models.CheckConstraint(condition=models.Q(('amount_micros__gt', 0)), name='hold_part_is_positive'),
        ),
        migrations.AddIndex(
            model_name='journal',
            index=models.Index(fields=['effective_at'], name='journal_by_time'),
        ),
        migrations.AddIndex(
            model_name='meter',
            index=models.Index(condition=models.Q(('settled_at__isnull', True)), fields=['payer'], name='running_meters'),
        ),
        migrations.AddIndex(
            model_name='meter',
            index=models.Index(fields=['payee'], name='meters_of_payee'),
        ),
        migrations.AddIndex(
            model_name='meter',
            index=models.Index(fields=['payer', 'settled_at'], name='meters_of_payer'),
        ),
        migrations.AddConstraint(
            model_name='meter',
            constraint=models.UniqueConstraint(fields=('reference', 'member', 'use', 'payer', 'payee', 'commission_bp', 'tax_on_commission_bp'), name='meter_is_one_per_purpose'),
        ),
        migrations.AddConstraint(
            model_name='meter',
            constraint=models.CheckConstraint(condition=models.Q(('commission_bp__range', (0, 10000)), ('tax_on_commission_bp__range', (0, 10000))), name='commission_is_a_part'),
        ),
        migrations.AddConstraint(
            model_name='adjustment',
            constraint=models.UniqueConstraint(fields=('meter', 'n'), name='adjustments_of_a_meter_are_numbered'),
        ),
        migrations.AddConstraint(
            model_name='priceversion',
            constraint=django.contrib.postgres.constraints.ExclusionConstraint(expressions=[('series', '='), ('during', '&&')], name='series_has_one_price_at_a_time'),
        ),
        migrations.AddConstraint(
            model_name='priceversion',
            constraint=models.CheckConstraint(condition=models.Q(('free_if_interrupted_s__gte', 0), ('minimum_s__gte', 0), ('price_micros_per_hour__gte', 0)), name='price_is_not_negative'),
        ),
        migrations.AddConstraint(
            model_name='meterfact',
            constraint=models.UniqueConstraint(fields=('reference', 'seq', 'member', 'lane'), name='fact_is_told_once', nulls_distinct=False),
        ),
        migrations.AddIndex(
            model_name='segment',
            index=models.Index(condition=models.Q(('settled', False)), fields=['end_s'], name='running_segments'),
        ),
        migrations.AddConstraint(
            model_name='segment',
            constraint=django.contrib.postgres.constraints.ExclusionConstraint(expressions=[('meter', '='), (models.Func(models.F('start_s'), models.F('end_s'), function='int8range'), '&&')], name='meter_has_one_price_at_a_time'),
        ),
        migrations.AddConstraint(
            model_name='segment',
            constraint=models.CheckConstraint(condition=models.Q(('end_s__isnull', True), ('end_s__gte', models.F('start_s')), _connector='OR'), name='segment_ends_after_its_start'),
        ),
        migrations.AddConstraint(
            model_name='segment',
            constraint=models.CheckConstraint(condition=models.Q(('rate_micros_per_hour__gte', 0)), name='rate_is_not_negative'),
        ),
        migrations.AddConstraint(
            model_name='transfer',
            constraint=models.CheckConstraint(condition=models.Q(('amount_micros__gt', 0)), name='transfer_moves_something'),
        ),
        migrations.AddConstraint(
            model_name='transfer',
            constraint=models.CheckConstraint(condition=models.Q(('debit', models.F('credit')), _negated=True), name='transfer_moves_elsewhere'),
        ),
        migrations.AddIndex(
            model_name='void',
            index=models.Index(condition=models.Q(('applied', False)), fields=['end_s'], name='voids_to_apply'),
        ),
        migrations.AddConstraint(
            model_name='void',
            constraint=django.contrib.postgres.constraints.ExclusionConstraint(expressions=[('meter', '='), (models.Func(models.F('start_s'), models.F('end_s'), function='int8range'), '&&')], name='second_is_refunded_once'),
        ),
        migrations.AddConstraint(
            model_name='void',
            constraint=models.CheckConstraint(condition=models.Q(('end_s__gt', models.F('start_s'))), name='void_is_not_empty'),
        ),
    ]
