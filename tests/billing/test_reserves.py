"""Reserves: what is held outlives the wallet by what it is for, is nobody else's, and is drawn before it is charged."""

import random
from datetime import datetime

import pytest
from books import NOON, after, give, make_owner, make_price, run

from billing import close, holds, metering, reconcile, reserves, wallets
from billing.models import AccountBalance, Hold, Transfer
from billing.models.accounts import AccountKind

pytestmark = pytest.mark.django_db
DAY_S = 86_400


def free(owner: object, *, at: datetime) -> int:
    return wallets.balance(owner=owner, currency="USD", at=at).available_micros  # type: ignore[arg-type]


def test_what_is_held_is_nobody_elses_and_comes_back() -> None:
    owner = make_owner(1_000)
    reserves.keep(reference="v", owner=owner, currency="USD", rate_micros_per_hour=10, for_s=3 * DAY_S, at=NOON)
    reserves.keep(reference="v", owner=owner, currency="USD", rate_micros_per_hour=10, for_s=3 * DAY_S, at=NOON)
    assert free(owner, at=NOON) == 1_000 - 720
    with pytest.raises(holds.InsufficientFunds):
        reserves.keep(reference="w", owner=owner, currency="USD", rate_micros_per_hour=10, for_s=3 * DAY_S, at=NOON)

    reserves.lower(reference="v", rate_micros_per_hour=4, at=NOON)

    assert free(owner, at=NOON) == 1_000 - 288
    reserves.release(reference="v", at=NOON)
    reserves.release(reference="v", at=NOON)
    assert free(owner, at=NOON) == 1_000


def test_nothing_is_held_for_what_costs_nothing() -> None:
    owner = make_owner(10)

    assert (
        reserves.keep(reference="v", owner=owner, currency="USD", rate_micros_per_hour=0, for_s=DAY_S, at=NOON) is None
    )
    assert not Hold.objects.exists()


def test_a_reserve_that_is_drawn_on_lasts_for_what_it_was_for_and_pays_every_second_of_it() -> None:
    price = make_price(3_600, use="storage")
    owner = make_owner(3_600 + 3 * 86_400)  # an hour, and three days
    reserves.keep(reference="v", owner=owner, currency="USD", rate_micros_per_hour=3_600, for_s=3 * DAY_S, at=NOON)
    run(payer=owner, price=price, reference="v", use="storage")
    ((_, dry),) = reserves.used_up(at=after(3_600)).items()
    assert dry == after(3_600)

    reserves.begin_drawing(reference="v", since=dry, at=after(3_603))

    reserve = reserves.of("v")
    assert reserve is not None
    assert reserves.ends_at(reserve) == after(3_600 + 3 * DAY_S)
    for hour in range(2, 72, 7):
        close.close_due(at=after(hour * 3_600 + 400))
        assert free(owner, at=after(hour * 3_600 + 400)) <= 1
    end = after(3_600 + 3 * DAY_S)
    reserves.draw(reference="v", at=end)
    metering.stop(reference="v", seq=2, at=end, cause="money")
    metering.finish(reference="v", at=end, ended_by="money")
    reserves.release(reference="v", at=end)
    assert not Transfer.objects.filter(debit__kind=AccountKind.OVERRUN_EXPENSE).exists()
    wallet = AccountBalance.objects.get(account__owner=owner, account__kind=AccountKind.WALLET)
    assert (wallet.balance_micros, wallet.held_micros) == (0, 0)


def test_money_that_comes_stops_the_drawing_and_fills_it_up_where_it_suffices() -> None:
    price = make_price(3_600, use="storage")
    owner = make_owner(3 * 86_400)
    reserves.keep(reference="v", owner=owner, currency="USD", rate_micros_per_hour=3_600, for_s=3 * DAY_S, at=NOON)
    run(payer=owner, price=price, reference="v", use="storage")
    reserves.begin_drawing(reference="v", since=NOON, at=after(1_000))
    reserves.stop_drawing(reference="v", at=after(1_000))
    assert not reserves.fill_up(reference="v", at=after(1_001))
    give(owner, 2_000, at=after(1_001))

    assert reserves.fill_up(reference="v", at=after(1_010))

    reserve = reserves.of("v")
    assert reserve is not None
    assert (reserve.held_micros, reserve.drawn_from) == (3 * 86_400, None)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_random_histories_never_charge_the_platform_for_data(seed: int) -> None:
    """Storage of several sizes, money that comes at random, closes at random: no overrun, and the books are right."""
    chance = random.Random(seed)
    price = make_price(chance.randrange(100, 5_000), use="storage")
    owner, at_s = make_owner(10**9), 0
    live, burn, drawn = {}, 0, 0
    for name in ("v1", "v2", "v3"):
        size = chance.randrange(1, 9)
        rate = price.price_micros_per_hour * size
        reserves.keep(reference=name, owner=owner, currency="USD", rate_micros_per_hour=rate, for_s=3 * DAY_S, at=NOON)
        run(payer=owner, price=price, reference=name, use="storage", quantity=size)
        live[name], burn = 2, burn + rate
    left = free(owner, at=NOON) - burn * chance.randrange(1, 20)
    holds.place(
        owner=owner, currency="USD", amount_micros=left, reference="rest", expires_at=after(10**9), at=NOON
    )  # so that it is soon used up
    for _ in range(25):
        at_s += chance.randrange(60, 20_000)
        at = after(at_s)
        dry = set(reserves.used_up(at=at).values())
        for name in list(live):
            reserve = reserves.of(name)
            assert reserve is not None
            ends = reserves.ends_at(reserve)
            if ends is not None and ends <= at:
                reserves.draw(reference=name, at=at)
                metering.stop(reference=name, seq=live.pop(name), at=ends, cause="money", received_at=at)
                metering.finish(reference=name, at=at, ended_by="money")
                reserves.release(reference=name, at=at)
            elif dry and reserve.drawn_from is None:
                reserves.begin_drawing(reference=name, since=min(dry), at=at)
                drawn += 1
            elif not dry and reserve.drawn_from is not None:
                reserves.stop_drawing(reference=name, at=at)
                reserves.fill_up(reference=name, at=at)
        if chance.random() < 0.4:
            close.close_due(at=at)
        if chance.random() < 0.15:
            give(owner, burn * chance.randrange(1, 10), at=at)
            wallet = AccountBalance.objects.get(account__owner=owner, account__kind=AccountKind.WALLET)
            wallets.refreshed(wallet.account, at=at)
        assert reconcile.findings() == []
    overrun = Transfer.objects.filter(debit__kind=AccountKind.OVERRUN_EXPENSE)
    assert not overrun.exists(), [(t.amount_micros, t.journal.key) for t in overrun]
    assert drawn >= 3
