"""A hold in one statement says what the longer way says, to the micro-unit and to the second."""

import random
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db import connection

from billing import exhaustion, grants, holds, metering, price_list, reconcile, wallets
from billing.models import AccountBalance, Hold
from tests.factories import NOON, after, make_zone

pytestmark = pytest.mark.django_db


def tenant(number: int, micros: int = 10_000_000) -> UUID:
    owner = UUID(int=number)
    wallets.top_up(
        owner=owner, currency="XTS", amount_micros=micros, key=f"topup:{number}", by="test", reason="test", at=NOON
    )
    return owner


def burn(owner: UUID, *, rate: int, at: datetime) -> None:
    make_zone()
    series = price_list.Series(
        sku=f"MODEL_{owner.int}", region="sim", tier="verified", term="on_demand", use="active", currency="XTS"
    )
    version = price_list.publish(series=series, price_micros_per_hour=rate, starts_at=NOON, cause="test", at=NOON)
    metering.start(
        payer=owner, payee=UUID(int=99), currency="XTS", reference=f"lease_{owner.int}", member=0, use="active",
        price_version_id=version.pk, quantity=1, commission_bp=0, labels={}, seq=1, at=at,
    )  # fmt: skip


def state(owner: UUID) -> dict[str, Any]:
    row = AccountBalance.objects.get(account__owner=owner, account__kind="wallet")
    kept = ("held_micros", "balance_micros", "burn_micros_per_hour", "accrued_num", "exhaust_at", "refresh_at")
    return {name: getattr(row, name) for name in kept}


def place(owner: UUID, micros: int, *, at: datetime, reference: str = "r") -> Hold:
    return holds.place(
        owner=owner, currency="XTS", amount_micros=micros, reference=f"{reference}{owner.int}",
        expires_at=at + timedelta(days=1), at=at,
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(20))
def test_both_ways_leave_the_same_wallet(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed)
    rate, micros = chance.choice([0, chance.randrange(50_000_000)]), chance.randrange(1, 9_000_000)
    seconds = chance.randrange(7200)
    quick, slow = tenant(2 * seed + 10), tenant(2 * seed + 11)
    if rate:
        burn(quick, rate=rate, at=after(1)), burn(slow, rate=rate, at=after(1))
    outcomes = []
    for owner, at_once in ((quick, True), (slow, False)):
        with monkeypatch.context() as patch:
            if not at_once:
                patch.setattr(holds, "_place_at_once", lambda *_, **__: False)
            try:
                outcomes.append(place(owner, micros, at=after(1 + seconds)).amount_micros)
            except holds.InsufficientFunds as refused:
                outcomes.append(refused.facts["missing"])

    assert outcomes[0] == outcomes[1]
    stored = state(quick)
    if isinstance(outcomes[0], int):  # a refusal writes nothing, so there is nothing to compare
        assert stored == state(slow)
    rows = AccountBalance.objects.filter(account__owner__in=[quick, slow], account__kind="wallet")
    exhaustion.refresh(accounts=[row.pk for row in rows], at=after(1 + seconds))
    assert state(quick) == state(slow)
    if isinstance(outcomes[0], int):
        assert state(quick) == stored
    assert reconcile.findings() == []


def test_an_idle_wallet_takes_one_statement(django_assert_num_queries: Any) -> None:
    owner = tenant(7)

    with django_assert_num_queries(1):
        place(owner, 1_000_000, at=after(5))


def test_credits_are_drawn_on_by_the_longer_way() -> None:
    owner = tenant(8, micros=10_000)
    grants.give(owner=owner, currency="XTS", amount_micros=5_000_000, key="g", effective_at=NOON, at=NOON)

    held = place(owner, 4_000_000, at=after(5))

    assert sorted(part.account.kind for part in held.parts.all()) == ["promo_grant"]
    assert reconcile.findings() == []


def test_the_same_reference_again_is_the_same_hold() -> None:
    owner = tenant(9)
    first = place(owner, 1_000, at=after(5))

    assert place(owner, 1_000, at=after(6)).pk == first.pk
    with pytest.raises(holds.HoldReused):
        place(owner, 2_000, at=after(7))
    assert state(owner)["held_micros"] == 1_000


@pytest.mark.django_db(transaction=True)
def test_ten_at_once_against_credit_for_one_and_nine_are_told_that_the_money_is_not_there() -> None:
    owner = tenant(7, micros=1_000_000)
    grants.give(owner=owner, currency="XTS", amount_micros=500_000, key="g", effective_at=NOON, at=NOON)

    def place(number: int) -> str:
        try:
            holds.place(
                owner=owner, currency="XTS", amount_micros=1_200_000, reference=f"r{number}", expires_at=after(60),
                at=NOON,
            )  # fmt: skip
        except holds.InsufficientFunds:
            return "refused"
        finally:
            connection.close()
        return "placed"

    with ThreadPoolExecutor(10) as pool:
        found = list(pool.map(place, range(10)))

    assert (found.count("placed"), found.count("refused")) == (1, 9)
    assert wallets.balance(owner=owner, currency="XTS", at=NOON).held_micros == 700_000
