"""The proof itself: it names the row that is wrong, and says nothing when none is."""

import pytest
from books import NOON, after, make_owner, make_price, run
from django.core.management import call_command
from django.db import IntegrityError, connection, transaction

from billing import close, metering, reconcile, wallets
from billing.models import AccountBalance, Meter, Segment, Transfer

pytestmark = [pytest.mark.django_db, pytest.mark.books_are_wrong]


def test_right_books_have_no_findings_and_exit_0(capsys: pytest.CaptureFixture[str]) -> None:
    run(payer=make_owner(10_000_000), price=make_price(1_000_000), at=after(-100))
    close.close(shard=0, to=NOON, at=NOON)

    call_command("reconcile")

    assert reconcile.findings() == []
    assert "invariants hold" in capsys.readouterr().out


def test_a_drifted_balance_is_named_with_its_drift(capsys: pytest.CaptureFixture[str]) -> None:
    owner = make_owner(19_000_000)
    wallet = wallets.account_of(owner=owner, currency="USD", at=NOON)
    AccountBalance.objects.filter(pk=wallet.pk).update(balance_micros=14_000_000)

    with pytest.raises(SystemExit) as stopped:
        call_command("reconcile")

    assert stopped.value.code == 1
    assert f"row {wallet.pk}: stored 14000000, true 19000000, drift 5000000" in capsys.readouterr().out


def _broken(**changes: object) -> set[str]:
    lease = run(payer=make_owner(10_000_000), price=make_price(1_000_000), at=after(-100))
    close.close(shard=0, to=NOON, at=NOON)
    metering.stop(reference=lease, seq=2, at=after(10), cause="tenant")
    metering.finish(reference=lease, at=after(10), ended_by="tenant")
    assert reconcile.findings() == []
    for field, value in changes.items():
        model = Meter if hasattr(Meter, field) else Segment
        model._default_manager.update(**{field: value})
    return {finding.invariant[:2] for finding in reconcile.findings()}


@pytest.mark.parametrize(
    ("change", "invariant"),
    [
        ({"end_s": 2_000_000_000}, "I6"),
        ({"base_num": 5}, "I7"),
        ({"rate_micros_per_hour": 5}, "I7"),
        ({"followed": True}, "I7"),
        ({"settled": False}, "I7"),
        ({"void_num": 3_600}, "I7"),
        ({"posted_micros": 1}, "I6"),
        ({"commission_bp": 9_999}, "I6"),
        ({"waived": True}, "I6"),
    ],
)
def test_a_changed_row_breaks_its_invariant(change: dict[str, object], invariant: str) -> None:
    assert invariant in _broken(**change)


@pytest.mark.parametrize("change", [{"commission_bp": 9_999}, {"tax_on_commission_bp": 1}, {"shard": 1}, {"payee": 1}])
def test_a_segment_that_differs_from_its_meter_is_named(change: dict[str, int]) -> None:
    run(payer=make_owner(10_000_000), price=make_price(1_000_000), at=after(-100))
    if "payee" in change:
        change = {"payee": Segment.objects.get().payer_id}

    Segment.objects.update(**change)

    assert {finding.invariant[:2] for finding in reconcile.findings()} == {"I7"}


def test_what_was_written_cannot_be_changed() -> None:
    run(payer=make_owner(10_000_000), price=make_price(1_000_000), at=after(-100))
    close.close(shard=0, to=NOON, at=NOON)
    _check_keys_now()

    for statement in (
        "UPDATE billing_transfer SET amount_micros = 1",
        "DELETE FROM billing_transfer",
        "TRUNCATE billing_transfer",
        "UPDATE billing_journal SET memo = 'x'",
        "DELETE FROM billing_meterfact",
        "UPDATE billing_billingrun SET gross_micros = 0",
        "UPDATE billing_priceversion SET price_micros_per_hour = 1",
        "DELETE FROM billing_priceversion",
    ):
        with pytest.raises(IntegrityError), transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(statement)


def test_a_transfer_cannot_join_two_currencies() -> None:
    dollars = wallets.account_of(owner=make_owner(5_000_000), currency="USD", at=NOON)
    yuan = wallets.account_of(owner=make_owner(5_000_000, currency="CNY"), currency="CNY", at=NOON)
    journal = dollars.credits.get().journal

    for currency in ("USD", "CNY"):
        moved = Transfer(journal=journal, debit=dollars, credit=yuan, amount_micros=1, currency=currency)
        with pytest.raises(IntegrityError), transaction.atomic():
            moved.save()


def test_a_transfer_belongs_to_a_journal_and_to_accounts_that_are_there() -> None:
    dollars = wallets.account_of(owner=make_owner(5_000_000), currency="USD", at=NOON)
    other = wallets.account_of(owner=make_owner(), currency="USD", at=NOON)
    journal = dollars.credits.get().journal

    for keys in ({"journal_id": 10**9}, {"debit_id": 10**9}, {"credit_id": 10**9}):
        ids = {"journal_id": journal.pk, "debit_id": dollars.pk, "credit_id": other.pk, **keys}
        with pytest.raises(IntegrityError), transaction.atomic():
            Transfer(**ids, amount_micros=1, currency="USD").save()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE billing_account SET currency = 'CNY'",
        "UPDATE billing_account SET id = id + 1000",
        "DELETE FROM billing_account",
        "TRUNCATE billing_account CASCADE",
    ],
)
def test_an_account_keeps_its_id_and_currency_and_never_goes(statement: str) -> None:
    wallets.account_of(owner=make_owner(), currency="USD", at=NOON)
    _check_keys_now()

    with pytest.raises(IntegrityError), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(statement)


def _check_keys_now() -> None:
    """Django's own foreign keys wait for the end of the transaction, which a test never reaches."""
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
