"""What organizations are told about their money, and the doorbells that make us look."""

import pytest
from books import NOON, after, give, make_price, run

from apikit import clock
from billing import budgets, metering, tasks, wallets, watching
from billing.models import BillingRun
from billing.models.terms import BudgetAction
from outbox.models import Message
from tests.factories import make_organization

pytestmark = pytest.mark.django_db


def test_low_wallets_and_passed_budgets_are_told_once() -> None:
    owner = make_organization(currency="USD")
    give(owner.pk, 1_000_000)
    run(payer=owner.pk, price=make_price(3_600_000))
    budgets.create(
        owner=owner.pk, currency="USD", amount_micros=100_000, name="b", label="", thresholds_bp=[5_000, 10_000],
        action=BudgetAction.NOTIFY, time_zone="UTC", at=NOON,
    )  # fmt: skip

    told = [watching.watch(at=after(second)) for second in (60, 60, 120)]

    assert told == [3, 0, 1]
    topics = sorted(Message.objects.values_list("topic", flat=True))
    assert topics == ["budget.exceeded", "budget.threshold", "wallet.low", "wallet.low"]
    assert set(Message.objects.values_list("organization_id", flat=True)) == {owner.pk}


def test_the_doorbells_do_what_is_due_and_twice_does_no_harm() -> None:
    owner = make_organization(currency="USD")
    give(owner.pk, 10_000_000)
    now = clock.whole_second(clock.now())
    lease = run(payer=owner.pk, price=make_price(3_600_000), at=now.replace(minute=0, second=0) - (after(7200) - NOON))

    for _ in range(2):
        tasks.close_due()
        tasks.exhaustion_due()
        tasks.watch()

    assert BillingRun.objects.count() == 1
    metering.finish(reference=lease, at=now, ended_by="tenant")
    assert wallets.balance(owner=owner.pk, currency="USD", at=now).balance_micros < 10_000_000
