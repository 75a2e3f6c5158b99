import audit.ids
import django.contrib.postgres.fields.ranges
import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('billing', '0002_append_only'),
    ]

    operations = [
        migrations.CreateModel(
            name='InvoiceCounter',
            fields=[
                ('series', models.CharField(max_length=20, primary_key=True, serialize=False)),
                ('last', models.BigIntegerField(default=0)),
            ],
        ),
        migrations.CreateModel(
            name='Budget',
            fields=[
                ('id', models.UUIDField(default=audit.ids.new, editable=False, primary_key=True, serialize=False)),
                ('owner', models.UUIDField(db_index=True)),
                ('currency', models.CharField(max_length=3)),
                ('name', models.CharField(max_length=64)),
                ('label', models.CharField(blank=True, default='', max_length=130)),
                ('amount_micros', models.BigIntegerField()),
                ('thresholds_bp', models.JSONField(default=list)),
                ('action', models.CharField(choices=[('notify', 'Notify'), ('refuse', 'Refuse'), ('stop', 'Stop')], default='notify', max_length=10)),
                ('time_zone', models.CharField(default='UTC', max_length=60)),
                ('created_at', models.DateTimeField()),
            ],
            options={
                'constraints': [models.CheckConstraint(condition=models.Q(('amount_micros__gt', 0)), name='budget_is_positive')],
            },
        ),
        migrations.CreateModel(
            name='Contract',
            fields=[
                ('id', models.UUIDField(default=audit.ids.new, editable=False, primary_key=True, serialize=False)),
                ('reference', models.CharField(max_length=64, unique=True)),
                ('anchor', models.DateTimeField()),
                ('time_zone', models.CharField(default='UTC', max_length=60)),
                ('months', models.IntegerField(default=0)),
                ('days', models.IntegerField(default=0)),
                ('price_micros', models.BigIntegerField()),
                ('discount_bp', models.IntegerField(default=0)),
                ('fee_bp', models.IntegerField(default=0)),
                ('commission_bp', models.IntegerField(default=0)),
                ('renews', models.BooleanField(default=False)),
                ('ended_at', models.DateTimeField(blank=True, null=True)),
                ('payee', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='contracts_earned', to='billing.account')),
                ('payer', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='contracts_paid', to='billing.account')),
            ],
        ),
        migrations.CreateModel(
            name='ContractPeriod',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('k', models.IntegerField()),
                ('start_s', models.BigIntegerField()),
                ('end_s', models.BigIntegerField()),
                ('price_micros', models.BigIntegerField()),
                ('earned_micros', models.BigIntegerField(default=0)),
                ('unusable_s', models.BigIntegerField(default=0)),
                ('closed', models.BooleanField(default=False)),
                ('contract', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='periods', to='billing.contract')),
                ('prepaid', models.OneToOneField(on_delete=django.db.models.deletion.PROTECT, related_name='+', to='billing.account')),
            ],
        ),
        migrations.CreateModel(
            name='InboxEvent',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('provider', models.CharField(max_length=20)),
                ('event', models.CharField(max_length=200)),
                ('kind', models.CharField(max_length=100)),
                ('body_sha256', models.CharField(max_length=64)),
                ('received_at', models.DateTimeField()),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('provider', 'event'), name='event_is_acted_on_once')],
            },
        ),
        migrations.CreateModel(
            name='Invoice',
            fields=[
                ('id', models.UUIDField(default=audit.ids.new, editable=False, primary_key=True, serialize=False)),
                ('owner', models.UUIDField()),
                ('currency', models.CharField(max_length=3)),
                ('period', django.contrib.postgres.fields.ranges.DateTimeRangeField()),
                ('time_zone', models.CharField(default='UTC', max_length=60)),
                ('state', models.CharField(choices=[('draft', 'Draft'), ('final', 'Final'), ('void', 'Void')], default='draft', max_length=10)),
                ('series', models.CharField(max_length=20)),
                ('number', models.BigIntegerField(blank=True, null=True)),
                ('tax_rate_bp', models.IntegerField(default=0)),
                ('carry_in_micros', models.BigIntegerField(default=0)),
                ('carry_out_micros', models.BigIntegerField(default=0)),
                ('tax_minor', models.BigIntegerField(default=0)),
                ('due_minor', models.BigIntegerField(default=0)),
                ('issued_at', models.DateTimeField(blank=True, null=True)),
                ('voided_at', models.DateTimeField(blank=True, null=True)),
                ('replaces', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='replaced_by', to='billing.invoice')),
            ],
        ),
        migrations.CreateModel(
            name='CreditNote',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('n', models.IntegerField()),
                ('net_minor', models.BigIntegerField()),
                ('tax_minor', models.BigIntegerField()),
                ('reason', models.CharField(max_length=200)),
                ('at', models.DateTimeField()),
                ('invoice', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='credit_notes', to='billing.invoice')),
            ],
        ),
        migrations.CreateModel(
            name='InvoiceLine',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('position', models.IntegerField()),
                ('reference', models.CharField(blank=True, default='', max_length=64)),
                ('text', models.CharField(max_length=200)),
                ('seconds', models.BigIntegerField(default=0)),
                ('quantity', models.IntegerField(default=1)),
                ('price_micros_per_hour', models.BigIntegerField(blank=True, null=True)),
                ('amount_micros', models.BigIntegerField()),
                ('invoice', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='lines', to='billing.invoice')),
            ],
        ),
        migrations.CreateModel(
            name='Payment',
            fields=[
                ('id', models.UUIDField(default=audit.ids.new, editable=False, primary_key=True, serialize=False)),
                ('provider', models.CharField(max_length=20)),
                ('key', models.CharField(max_length=100, unique=True)),
                ('amount_minor', models.BigIntegerField()),
                ('state', models.CharField(choices=[('created', 'Created'), ('settled', 'Settled'), ('refused', 'Refused'), ('unknown', 'Unknown')], default='created', max_length=10)),
                ('provider_ref', models.CharField(blank=True, default='', max_length=200)),
                ('detail', models.CharField(blank=True, default='', max_length=300)),
                ('created_at', models.DateTimeField()),
                ('settled_at', models.DateTimeField(blank=True, null=True)),
                ('wallet', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='payments', to='billing.account')),
            ],
        ),
        migrations.CreateModel(
            name='Payout',
            fields=[
                ('id', models.UUIDField(default=audit.ids.new, editable=False, primary_key=True, serialize=False)),
                ('provider', models.CharField(max_length=20)),
                ('period', models.CharField(max_length=20)),
                ('n', models.IntegerField()),
                ('key', models.CharField(max_length=160, unique=True)),
                ('amount_minor', models.BigIntegerField()),
                ('state', models.CharField(choices=[('created', 'Created'), ('settled', 'Settled'), ('refused', 'Refused'), ('unknown', 'Unknown')], default='created', max_length=10)),
                ('provider_ref', models.CharField(blank=True, default='', max_length=200)),
                ('created_at', models.DateTimeField()),
                ('settled_at', models.DateTimeField(blank=True, null=True)),
                ('payee', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='payouts', to='billing.account')),
            ],
        ),
        migrations.CreateModel(
            name='Refund',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('n', models.IntegerField()),
                ('key', models.CharField(max_length=100, unique=True)),
                ('amount_minor', models.BigIntegerField()),
                ('state', models.CharField(choices=[('created', 'Created'), ('settled', 'Settled'), ('refused', 'Refused'), ('unknown', 'Unknown')], default='created', max_length=10)),
                ('provider_ref', models.CharField(blank=True, default='', max_length=200)),
                ('created_at', models.DateTimeField()),
                ('settled_at', models.DateTimeField(blank=True, null=True)),
                ('payment', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='refunds', to='billing.payment')),
            ],
        ),
        migrations.CreateModel(
            name='RunningDryWarning',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('lead_s', models.IntegerField()),
                ('exhaust_at', models.DateTimeField()),
                ('at', models.DateTimeField()),
                ('wallet', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='warnings', to='billing.account')),
            ],
        ),
        migrations.CreateModel(
            name='Voucher',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('code_sha256', models.CharField(max_length=64, unique=True)),
                ('currency', models.CharField(max_length=3)),
                ('amount_micros', models.BigIntegerField()),
                ('valid_until', models.DateTimeField(blank=True, null=True)),
                ('grant_days', models.IntegerField(default=365)),
                ('redeemed_by', models.UUIDField(blank=True, null=True)),
                ('redeemed_at', models.DateTimeField(blank=True, null=True)),
                ('created_at', models.DateTimeField()),
            ],
            options={
                'constraints': [models.CheckConstraint(condition=models.Q(('amount_micros__gt', 0)), name='voucher_gives_something')],
            },
        ),
        migrations.CreateModel(
            name='BudgetAlarm',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('period', django.contrib.postgres.fields.ranges.DateTimeRangeField()),
                ('threshold_bp', models.IntegerField()),
                ('spent_micros', models.BigIntegerField()),
                ('at', models.DateTimeField()),
                ('budget', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='alarms', to='billing.budget')),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('budget', 'period', 'threshold_bp'), name='budget_alarm_rings_once')],
            },
        ),
        migrations.AddConstraint(
            model_name='contract',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('days', 0), ('months__gt', 0)), models.Q(('days__gt', 0), ('months', 0)), _connector='OR'), name='contract_steps_by_months_or_days'),
        ),
        migrations.AddConstraint(
            model_name='contract',
            constraint=models.CheckConstraint(condition=models.Q(('commission_bp__range', (0, 10000)), ('fee_bp__range', (0, 10000)), ('price_micros__gte', 0)), name='contract_terms_are_in_range'),
        ),
        migrations.AddConstraint(
            model_name='contractperiod',
            constraint=models.UniqueConstraint(fields=('contract', 'k'), name='contract_period_is_paid_once'),
        ),
        migrations.AddConstraint(
            model_name='contractperiod',
            constraint=models.CheckConstraint(condition=models.Q(('end_s__gt', models.F('start_s'))), name='contract_period_has_a_length'),
        ),
        migrations.AddConstraint(
            model_name='contractperiod',
            constraint=models.CheckConstraint(condition=models.Q(('earned_micros__gte', 0), ('earned_micros__lte', models.F('price_micros'))), name='earned_is_a_part'),
        ),
        migrations.AddConstraint(
            model_name='invoice',
            constraint=models.UniqueConstraint(fields=('series', 'number'), name='invoice_number_is_given_once'),
        ),
        migrations.AddConstraint(
            model_name='invoice',
            constraint=models.UniqueConstraint(condition=models.Q(('state', 'void'), _negated=True), fields=('owner', 'currency', 'period'), name='period_is_invoiced_once'),
        ),
        migrations.AddConstraint(
            model_name='invoice',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('number', None), ('state', 'draft')), models.Q(models.Q(('state', 'draft'), _negated=True), ('number__isnull', False)), _connector='OR'), name='invoice_has_a_number_iff_issued'),
        ),
        migrations.AddConstraint(
            model_name='creditnote',
            constraint=models.UniqueConstraint(fields=('invoice', 'n'), name='credit_notes_of_an_invoice_are_numbered'),
        ),
        migrations.AddConstraint(
            model_name='creditnote',
            constraint=models.CheckConstraint(condition=models.Q(('net_minor__gt', 0)), name='credit_note_is_positive'),
        ),
        migrations.AddConstraint(
            model_name='invoiceline',
            constraint=models.UniqueConstraint(fields=('invoice', 'position'), name='invoice_lines_are_numbered'),
        ),
        migrations.AddConstraint(
            model_name='payment',
            constraint=models.CheckConstraint(condition=models.Q(('amount_minor__gt', 0)), name='payment_is_positive'),
        ),
        migrations.AddConstraint(
            model_name='payment',
            constraint=models.UniqueConstraint(condition=models.Q(('provider_ref', ''), _negated=True), fields=('provider', 'provider_ref'), name='provider_charge_is_credited_once'),
        ),
        migrations.AddConstraint(
            model_name='payout',
            constraint=models.UniqueConstraint(fields=('payee', 'period', 'n'), name='payouts_of_a_period_are_numbered'),
        ),
        migrations.AddConstraint(
            model_name='payout',
            constraint=models.UniqueConstraint(condition=models.Q(('state__in', ['created', 'unknown'])), fields=('payee',), name='one_payout_in_flight'),
        ),
        migrations.AddConstraint(
            model_name='payout',
            constraint=models.CheckConstraint(condition=models.Q(('amount_minor__gt', 0)), name='payout_is_positive'),
        ),
        migrations.AddConstraint(
            model_name='refund',
            constraint=models.UniqueConstraint(fields=('payment', 'n'), name='refunds_of_a_payment_are_numbered'),
        ),
        migrations.AddConstraint(
            model_name='refund',
            constraint=models.CheckConstraint(condition=models.Q(('amount_minor__gt', 0)), name='refund_is_positive'),
        ),
        migrations.AddConstraint(
            model_name='runningdrywarning',
            constraint=models.UniqueConstraint(fields=('wallet', 'lead_s', 'exhaust_at'), name='warning_is_given_once'),
        ),
    ]
