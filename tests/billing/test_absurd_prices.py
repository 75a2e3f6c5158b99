"""A meter whose exact usage passes what a column holds: it is named, and everybody else's money goes on as ever."""

from datetime import datetime
from uuid import UUID, uuid4

import pytest
from books import NOON, after, make_owner, make_price, run

from billing import close, exhaustion, metering, price_list, reconcile, wallets
from billing.models import AccountBalance, Meter, Segment

pytestmark = [pytest.mark.django_db, pytest.mark.books_are_wrong]
HOUR = 3_600
# 2^63 are reached after eight hours.
ABSURD = {"price_micros": price_list.MOST_MICROS_PER_HOUR, "quantity": 3}


def _absurd(payer: UUID) -> str:
    return run(payer=payer, price=make_price(ABSURD["price_micros"]), quantity=ABSURD["quantity"])


def _money(owner: UUID, at: datetime) -> int:
    return wallets.balance(owner=owner, currency="USD", at=at).balance_micros


def _named() -> set[tuple[str, str]]:
    return {(found.invariant, found.row) for found in reconcile.findings()}


def test_the_close_posts_everybody_else_and_the_proof_names_the_meter() -> None:
    absurd, usual = make_owner(10**15), make_owner(10**12)
    lease = _absurd(absurd)
    run(payer=usual, payee=(payee := uuid4()), price=make_price(3_600_001))
    meter = Meter.objects.get(reference=lease)

    for hours in (10, 11):
        closed = close.close(shard=0, to=after(hours * HOUR), at=after(hours * HOUR))

        assert closed is not None
        assert _money(usual, after(hours * HOUR)) == 10**12 - hours * 3_600_001
        assert _money(absurd, after(hours * HOUR)) == 10**15
    earned = metering.finish(reference=run(payer=usual, payee=payee, price=make_price(1), at=after(39_600)),
                             at=after(39_601), ended_by="tenant")  # fmt: skip

    assert earned == 0
    assert ("I7 a meter's usage is within what is stored", str(meter.pk)) in _named()
    assert not {row for _, row in _named()} & {str(pk) for pk in AccountBalance.objects.filter(
        account__owner=usual).values_list("pk", flat=True)}  # fmt: skip


def test_its_wallet_is_dry_at_the_right_second_and_every_other_keeps_its_instant() -> None:
    absurd, usual = make_owner(10**15), make_owner(7_200_000)
    lease = _absurd(absurd)
    run(payer=usual, price=make_price(3_600_000))
    rate = Segment.objects.get(meter__reference=lease).rate_micros_per_hour
    dry_at = after(10**15 * HOUR // rate)
    wanted = {absurd: dry_at, usual: after(7_200)}

    for at in (after(1), after(12 * HOUR)):
        exhaustion.refresh_all(at=at)
        for owner, instant in wanted.items():
            row = AccountBalance.objects.get(account__owner=owner)
            if at < instant:
                assert row.exhaust_at == instant
            else:
                assert row.exhaust_at is not None
                assert row.exhaust_at <= at
        assert set(exhaustion.due(at=at)) == {owner for owner, instant in wanted.items() if instant <= at}
    wallets.top_up(owner=absurd, currency="USD", amount_micros=10**6, key="k", by="t", reason="t", at=after(12 * HOUR))


def test_the_list_takes_no_price_that_would_get_there_within_a_day() -> None:
    make_price(price_list.MOST_MICROS_PER_HOUR)
    series = price_list.Series("s", "north", "verified", "on_demand", "active", "USD")

    with pytest.raises(price_list.PriceTooHigh):
        make_price(price_list.MOST_MICROS_PER_HOUR + 1)
    with pytest.raises(price_list.PriceTooHigh):
        price_list.publish_first(
            [price_list.FirstPrice(series, price_list.MOST_MICROS_PER_HOUR + 1)], starts_at=NOON, cause="t", at=NOON
        )
