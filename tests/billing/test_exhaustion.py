"""When money runs out while the price is known to move, and what a close leaves of meters that changed price."""

from datetime import timedelta
from random import Random
from uuid import UUID, uuid4

import pytest
from books import NOON, after, give, make_owner, make_price, run

from billing import close, exhaustion, metering, pricing, reconcile, spot, wallets
from billing.models import AccountBalance, PriceVersion, Segment
from billing.price_list import Series

pytestmark = pytest.mark.django_db


def _market(price: int = 3_600_000) -> PriceVersion:
    return make_price(price, sku=uuid4().hex, term="spot")


def _series(market: PriceVersion) -> Series:
    own = market.series
    return Series(own.sku, own.region, own.tier, own.term, own.use, own.currency, own.notice_s)


def _dry_s(owner: UUID) -> float | None:
    instant = wallets.balance(owner=owner, currency="USD", at=NOON).exhausts_at
    return None if instant is None else (instant - NOON).total_seconds()


def test_wallets_that_know_of_the_same_moves_each_run_dry_at_the_second_the_reckoner_finds() -> None:
    random = Random(7)
    money = [random.randrange(0, 900_000) for _ in range(12)]
    owners, market = [make_owner(micros) for micros in money], _market(0)
    for number, owner in enumerate(owners):
        run(payer=owner, price=market, quantity=1 + number % 3, follows=True)
        run(payer=owner, price=make_price(random.choice((0, 1_000_001))))
    moves = [(second, random.choice((0, 1_800_001, 7_200_000))) for second in (100, 250, 251)]
    for second, price in moves:
        spot.move(series=_series(market), price_micros_per_hour=price, starts_at=after(second), cause="demand", at=NOON)

    exhaustion.refresh_all(at=NOON)

    fixed = Segment.objects.filter(fact__follows=False).values_list("payer__owner", "rate_micros_per_hour")
    burns = dict(fixed)
    for number, (owner, micros) in enumerate(zip(owners, money, strict=True)):
        prices = [0, *[price for _, price in moves]]
        steps = [(s, (b - a) * (1 + number % 3)) for (s, _), a, b in zip(moves, prices, prices[1:], strict=False)]
        dry_s = pricing.runs_dry_at_s(
            at_s=0, accrued_num=0, burn_micros_per_hour=burns[owner], steps=steps, wallet_micros=micros, credits=[]
        )
        assert _dry_s(owner) == dry_s, (number, micros, steps)
    assert len({_dry_s(owner) for owner in owners}) > 5


def test_a_known_move_to_nothing_ends_the_exhaustion_and_one_from_nothing_begins_it() -> None:
    cheap, dear = _market(3_600_000), _market(0)
    saved, lost = make_owner(101_000), make_owner(50_000)
    run(payer=saved, price=cheap, follows=True)
    run(payer=lost, price=dear, follows=True)

    spot.move(series=_series(cheap), price_micros_per_hour=0, starts_at=after(101), cause="demand", at=NOON)
    spot.move(series=_series(dear), price_micros_per_hour=3_600_000, starts_at=after(200), cause="demand", at=NOON)
    exhaustion.refresh_all(at=NOON)

    assert (_dry_s(saved), _dry_s(lost)) == (None, 250)


def test_a_remainder_is_carried_over_closes_price_moves_gaps_and_a_close_at_the_second_of_a_move() -> None:
    owner, market = make_owner(10**9), _market(1_000_001)
    lease = run(payer=owner, price=market, follows=True, at=after(3))
    for number, second in enumerate((700, 3_600, 5_000)):
        price = 1_234_567 + number
        spot.move(series=_series(market), price_micros_per_hour=price, starts_at=after(second), cause="x", at=NOON)
    payee = uuid4()
    stopped = run(payer=owner, payee=payee, price=make_price(777_777), at=after(11))
    metering.stop(reference=stopped, seq=2, at=after(1_000), cause="park")
    for seconds in (1_800, 3_600, 4_000, 5_000, 7_200):
        at = NOON + timedelta(seconds=seconds)
        close.close(shard=0, to=at, at=at)
        for ahead_s in (-1, 0, 7):  # somebody else's clock may lie behind what is closed
            exhaustion.refresh_all(at=at + timedelta(seconds=ahead_s))
            assert reconcile.findings() == []
            wallets.balance(owner=owner, currency="USD", at=at + timedelta(seconds=ahead_s))
            assert reconcile.findings() == []
    run(payer=owner, payee=payee, price=make_price(777_778), reference=stopped, seq=3, at=after(7_300))
    give(owner, 1)
    assert reconcile.findings() == []

    metering.stop(reference=lease, seq=9, at=after(4_500), cause="late", received_at=after(7_300))

    stored = AccountBalance.objects.get(account__owner=owner, account__kind="wallet")
    exhaustion.refresh_all(at=after(7_300))
    again = AccountBalance.objects.get(pk=stored.pk)
    assert (again.accrued_num, again.burn_micros_per_hour) == (stored.accrued_num, stored.burn_micros_per_hour)
    assert reconcile.findings() == []
