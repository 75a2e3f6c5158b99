"""Accounts, and what moves money between them. A transfer moves an amount from `debit` to `credit`, so the balance of
an account is its credits less its debits, and one row cannot be out of balance."""

from django.contrib.postgres.indexes import BrinIndex
from django.db import models
from django.db.models import F, Q


class AccountKind(models.TextChoices):
    WALLET = "wallet"  # an organization's money
    PROMO_GRANT = "promo_grant"  # one per grant; `part` names it
    PREPAID_TERM = "prepaid_term"  # the unearned part of a contract period
    REFUNDABLE = "refundable"  # one per payment: captured - refunded, against `refund_limit`
    HOST_EARNINGS = "host_earnings"  # what an owner of hosts is owed; negative after a clawback
    PAYOUT_TRANSIT = "payout_transit"  # between a payout's request and its proof
    USAGE_CLEARING = "usage_clearing"  # 0 after every posting
    COMMISSION = "commission"
    OVERRUN_EXPENSE = "overrun_expense"  # per payer: usage after the money was out, carried by the platform
    DISPUTE_DEBT = "dispute_debt"  # per payer: payments that a bank took back and the wallet could not; below 0 is owed
    PROMO_EXPENSE = "promo_expense"
    BREAKAGE = "breakage"
    TAX_PAYABLE = "tax_payable"
    CASH = "cash"  # one per provider (`part`)
    FX = "fx"
    REFUND_LIMIT = "refund_limit"


class Account(models.Model):
    """`owner` is the opaque id of an organization, or None for the platform."""

    kind = models.CharField(max_length=20, choices=AccountKind)
    owner = models.UUIDField(null=True, blank=True)
    currency = models.CharField(max_length=3)
    part = models.CharField(max_length=80, blank=True, default="")
    created_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["owner", "kind", "currency", "part"], nulls_distinct=False, name="account_is_one_per_purpose"
            ),
            # The composite keys of transfers refer to this pair: a transfer cannot mix currencies.
            models.UniqueConstraint(fields=["id", "currency"], name="account_has_one_currency"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.owner or 'platform'} {self.currency}"


class AccountBalance(models.Model):
    """The stored balance of an account that has a limit, and for a wallet what runs against it."""

    account = models.OneToOneField(Account, models.PROTECT, primary_key=True, related_name="limited")
    shard = models.SmallIntegerField(default=0)
    balance_micros = models.BigIntegerField(default=0)
    held_micros = models.BigIntegerField(default=0)
    floor_micros = models.BigIntegerField(default=0)
    burn_micros_per_hour = models.BigIntegerField(default=0)
    # Exact micro-units x seconds per hour that ran until `as_of` and are not posted.
    accrued_num = models.BigIntegerField(default=0)
    as_of = models.DateTimeField(null=True, blank=True)
    exhaust_at = models.DateTimeField(null=True, blank=True)
    # When what is known ahead changes the burn (a published price, the edge of a grant): compute again then.
    refresh_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(balance_micros__gte=F("floor_micros") + F("held_micros")),
                name="balance_covers_what_is_held",
            ),
            models.CheckConstraint(condition=Q(held_micros__gte=0), name="held_is_never_negative"),
        ]
        indexes = [
            models.Index(fields=["exhaust_at"], name="exhausted_first", condition=Q(exhaust_at__isnull=False)),
            models.Index(fields=["refresh_at"], name="refresh_first", condition=Q(refresh_at__isnull=False)),
        ]

    def __str__(self) -> str:
        return f"balance of account {self.account_id}"


class Journal(models.Model):
    """One business event. `key` is its business identity, so that a second posting of it finds the first."""

    key = models.CharField(max_length=200)
    kind = models.CharField(max_length=20)
    request_hash = models.CharField(max_length=64)
    effective_at = models.DateTimeField()
    posted_at = models.DateTimeField()
    reverses = models.ForeignKey(
        "self", models.PROTECT, null=True, blank=True, related_name="reversals", db_index=False
    )
    corrects = models.ForeignKey(
        "self", models.PROTECT, null=True, blank=True, related_name="corrections", db_index=False
    )
    memo = models.CharField(max_length=300, blank=True, default="")
    by = models.CharField(max_length=100, blank=True, default="")

    class Meta:
        # Every posting pays for every index: the rare ones are partial, and time, which comes in order, is a BRIN.
        constraints = [
            models.UniqueConstraint(fields=["key"], name="journal_key_posts_once"),
            models.UniqueConstraint(
                fields=["reverses"], condition=Q(reverses__isnull=False), name="journal_is_reversed_once"
            ),
        ]
        indexes = [
            models.Index(fields=["corrects"], name="journal_corrections", condition=Q(corrects__isnull=False)),
            BrinIndex(fields=["effective_at"], name="journal_by_time"),
        ]

    def __str__(self) -> str:
        return self.key


class Transfer(models.Model):
    """Append-only. Its keys, the composite ones to (account, currency) among them, are checked once a statement by the
    trigger of migration 0009; accounts and journals cannot go."""

    journal = models.ForeignKey(
        Journal, models.PROTECT, related_name="transfers", db_constraint=False, db_index=False
    )  # fmt: skip
    debit = models.ForeignKey(Account, models.PROTECT, related_name="debits", db_constraint=False)
    credit = models.ForeignKey(Account, models.PROTECT, related_name="credits", db_constraint=False)
    amount_micros = models.BigIntegerField()
    currency = models.CharField(max_length=3)

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(amount_micros__gt=0), name="transfer_moves_something"),
            models.CheckConstraint(condition=~Q(debit=F("credit")), name="transfer_moves_elsewhere"),
        ]
        # Journals come in order, with their transfers; a look at those of one is rare, and a posting is not.
        indexes = [BrinIndex(fields=["journal"], name="transfers_of_journals", pages_per_range=32, autosummarize=True)]

    def __str__(self) -> str:
        return f"{self.amount_micros} {self.currency} from {self.debit_id} to {self.credit_id}"


class Hold(models.Model):
    """Money kept for a reference until it is settled, once: taken from grants in draw-down order, then the wallet."""

    account = models.ForeignKey(Account, models.PROTECT, related_name="holds")
    reference = models.CharField(max_length=64, unique=True)
    amount_micros = models.BigIntegerField()
    placed_at = models.DateTimeField()
    expires_at = models.DateTimeField()

    class Meta:
        constraints = [models.CheckConstraint(condition=Q(amount_micros__gte=0), name="hold_is_not_negative")]
        indexes = [models.Index(fields=["expires_at"], name="hold_by_expiry")]

    def __str__(self) -> str:
        return f"hold for {self.reference}"


class HoldPart(models.Model):
    hold = models.ForeignKey(Hold, models.PROTECT, related_name="parts")
    account = models.ForeignKey(Account, models.PROTECT, related_name="+")
    amount_micros = models.BigIntegerField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["hold", "account"], name="hold_takes_once_from_an_account"),
            models.CheckConstraint(condition=Q(amount_micros__gt=0), name="hold_part_is_positive"),
        ]

    def __str__(self) -> str:
        return f"{self.amount_micros} of hold {self.hold_id}"


class HoldSettlement(models.Model):
    """The end of a hold. The primary key makes it the only one."""

    hold = models.OneToOneField(Hold, models.PROTECT, primary_key=True, related_name="settlement")
    captured_micros = models.BigIntegerField(default=0)
    cause = models.CharField(max_length=20)
    at = models.DateTimeField()

    class Meta:
        constraints = [models.CheckConstraint(condition=Q(captured_micros__gte=0), name="capture_is_not_negative")]

    def __str__(self) -> str:
        return f"{self.cause} of hold {self.hold_id}"
