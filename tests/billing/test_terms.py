"""Terms beyond the hour: holds and credit lines, spot, contracts, refunds, payouts."""

from datetime import timedelta
from uuid import uuid4

import pytest
from books import NOON, after, give, make_owner, make_price, run
from provider import PaperProvider

from billing import (
    close,
    contracts,
    downtime,
    exhaustion,
    grants,
    holds,
    ledger,
    metering,
    payments,
    payouts,
    price_list,
    reconcile,
    spot,
    wallets,
)  # fmt: skip
from billing.models import Account, Journal, Meter, Segment

pytestmark = pytest.mark.django_db


def funds(owner: object, at: object = NOON) -> wallets.Balance:
    return wallets.balance(owner=owner, currency="USD", at=at)  # type: ignore[arg-type]


def test_a_hold_is_placed_once_and_refused_beyond_the_money() -> None:
    owner = make_owner(1_000_000)
    hold = {"owner": owner, "currency": "USD", "amount_micros": 600_000, "expires_at": after(600), "at": NOON}

    assert holds.place(reference="a", **hold) == holds.place(reference="a", **hold)
    with pytest.raises(holds.HoldReused):
        holds.place(reference="a", **{**hold, "amount_micros": 1})
    with pytest.raises(holds.InsufficientFunds) as refused:
        holds.place(reference="b", **hold)
    holds.release(reference="a", at=after(1))
    holds.release(reference="a", at=after(2))

    assert refused.value.facts["missing"] == {"amount": "0.200000", "currency": "USD"}
    assert funds(owner).held_micros == 0


def test_what_ran_and_is_not_posted_cannot_be_held() -> None:
    owner = make_owner(1_000_000)
    run(payer=owner, price=make_price(3_600_000))

    with pytest.raises(holds.InsufficientFunds):
        holds.place(
            owner=owner, currency="USD", amount_micros=900_001, reference="b", expires_at=after(600), at=after(100)
        )


def test_an_expired_hold_is_given_back() -> None:
    owner = make_owner(1_000_000)
    holds.place(owner=owner, currency="USD", amount_micros=1_000_000, reference="a", expires_at=after(600), at=NOON)

    assert holds.release_expired(at=after(599)) == 0
    assert holds.release_expired(at=after(600)) == 1
    assert funds(owner).available_micros == 1_000_000


def test_a_hold_takes_credit_first_and_gives_it_back() -> None:
    owner = make_owner(1_000_000)
    grants.give(owner=owner, currency="USD", amount_micros=300_000, key="g", effective_at=NOON, at=NOON)

    holds.place(owner=owner, currency="USD", amount_micros=1_200_000, reference="a", expires_at=after(9), at=NOON)

    assert (funds(owner).held_micros, funds(owner).available_micros) == (900_000, 100_000)


def test_a_credit_line_lets_a_wallet_go_below_zero_and_is_not_cut_under_it() -> None:
    owner = make_owner()
    wallets.set_credit_line(owner=owner, currency="USD", credit_micros=500_000, at=NOON)
    lease = run(payer=owner, price=make_price(3_600_000))
    metering.finish(reference=lease, at=after(200), ended_by="tenant")

    assert funds(owner).balance_micros == -200_000
    with pytest.raises(ledger.Overdrawn):
        wallets.set_credit_line(owner=owner, currency="USD", credit_micros=100_000, at=NOON)


def test_a_spot_price_moves_inside_a_lease_at_its_second() -> None:
    owner, first = make_owner(100_000_000), make_price(3_600_000, sku="s", term="spot")
    series = price_list.Series("s", "north", "verified", "spot", "active", "USD")
    lease = run(payer=owner, price=first, quantity=2, follows=True)
    frozen = run(payer=owner, price=first)

    spot.move(series=series, price_micros_per_hour=7_200_000, starts_at=after(400), cause="demand", at=after(100))

    assert spot.running_on(series=series) == [lease]
    assert exhaustion.due(at=after(400)) == []
    assert funds(owner, after(400)).burn_micros_per_hour == 2 * 7_200_000 + 3_600_000
    assert metering.finish(reference=lease, at=after(500), ended_by="tenant") == 2 * (400 * 1_000 + 100 * 2_000)
    assert metering.finish(reference=frozen, at=after(500), ended_by="tenant") == 500_000


def test_a_move_known_ahead_is_in_the_instant_of_exhaustion() -> None:
    owner, first = make_owner(1_000_000), make_price(3_600_000, sku="s", term="spot")
    series = price_list.Series("s", "north", "verified", "spot", "active", "USD")
    run(payer=owner, price=first, follows=True)

    spot.move(series=series, price_micros_per_hour=36_000_000, starts_at=after(500), cause="demand", at=after(100))

    assert funds(owner, after(100)).exhausts_at == after(550)
    assert exhaustion.due(at=after(549)) == []
    assert exhaustion.due(at=after(550)) == [owner]


def test_a_move_that_begins_before_the_last_look_is_in_the_accrual() -> None:
    owner, first = make_owner(10_000_000), make_price(3_600_000, sku="s", term="spot")
    series = price_list.Series("s", "north", "verified", "spot", "active", "USD")
    run(payer=owner, price=first, follows=True)
    assert funds(owner, after(120)).accrued_micros == 120_000

    spot.move(series=series, price_micros_per_hour=7_200_000, starts_at=after(100), cause="demand", at=after(100))

    assert reconcile.findings() == []
    assert funds(owner, after(120)).accrued_micros == 140_000


def test_credit_counts_in_the_instant_of_exhaustion_only_inside_its_window() -> None:
    owner = make_owner(1_000_000)
    run(payer=owner, price=make_price(3_600_000))
    grants.give(owner=owner, currency="USD", amount_micros=900_000, key="g", effective_at=after(200),
                expires_at=after(500), at=NOON)  # fmt: skip

    assert funds(owner).exhausts_at == after(1300)
    close.close(shard=0, to=after(700), at=after(700))
    assert grants.expire_due(at=after(700)) == 1

    assert funds(owner, after(700)).balance_micros == 600_000
    assert funds(owner, after(700)).exhausts_at == after(1300)


def test_warnings_are_given_once_at_each_distance() -> None:
    run(payer=make_owner(1_000_000), price=make_price(3_600_000))

    given = [len(exhaustion.warn_due(at=after(second))) for second in (0, 0, 399, 400, 999)]

    assert given == [2, 0, 0, 1, 0]


def test_money_that_comes_back_goes_where_it_came_from() -> None:
    owner = make_owner(100_000)
    grant = grants.give(owner=owner, currency="USD", amount_micros=200_000, key="g", effective_at=NOON, at=NOON)
    lease = run(payer=owner, price=make_price(3_600_000))
    metering.finish(reference=lease, at=after(350), ended_by="balance")  # 0.20 credit, 0.10 wallet, 0.05 overrun

    downtime.void(reference=lease, member=0, start=NOON, end=after(150), reason="gpu", at=after(400))

    assert ledger.balance_micros(Account.objects.get(kind="overrun_expense")) == 0
    assert ledger.balance_micros(grant.account) == 100_000
    assert funds(owner, after(400)).balance_micros == 0


def _contract(owner: object, **terms: object) -> contracts.Contract:
    return contracts.open_contract(
        **{
            "payer": owner, "payee": uuid4(), "currency": "USD", "reference": uuid4().hex, "price_micros": 31_000_000,
            "anchor": NOON, "months": 1, "at": NOON, "renews": True, **terms,
        }  # type: ignore[arg-type]
    )  # fmt: skip


def test_a_contract_is_paid_ahead_earned_by_the_second_and_renewed_on_its_day() -> None:
    owner = make_owner(62_000_000)
    contract = _contract(owner, commission_bp=1000)
    assert funds(owner).balance_micros == 31_000_000

    contracts.earn_due(at=NOON + timedelta(days=10))
    contracts.earn_due(at=NOON + timedelta(days=10))
    assert ledger.balance_micros(contract.payee) == 9_000_000
    contracts.earn_due(at=NOON + timedelta(days=31))

    assert [p.k for p in contract.periods.order_by("k")] == [0, 1]
    assert funds(owner).balance_micros == 0


def test_a_contract_that_cannot_be_paid_again_ends() -> None:
    contract = _contract(make_owner(31_000_000))
    contracts.earn_due(at=NOON + timedelta(days=31))

    contract.refresh_from_db()
    assert contract.ended_at is not None
    with pytest.raises(contracts.ContractEnded):
        contracts.terminate(contract_id=contract.pk, at=NOON + timedelta(days=32))


def test_seconds_that_a_contract_could_not_use_are_refunded_at_its_periods_end() -> None:
    owner = make_owner(31_000_000)
    contract = _contract(owner, renews=False)
    contracts.unusable(contract=contract, seconds=86_400, at=NOON + timedelta(days=1))

    contracts.earn_due(at=NOON + timedelta(days=40))

    assert funds(owner).balance_micros == 1_000_000


def test_an_earned_discount_is_never_made_worse() -> None:
    contract = _contract(make_owner(31_000_000), discount_bp=1500)

    with pytest.raises(contracts.WorseTerms):
        contracts.change(contract_id=contract.pk, price_micros=1, discount_bp=1499, at=NOON)
    assert contracts.change(contract_id=contract.pk, price_micros=1, discount_bp=2000, at=NOON).discount_bp == 2000


def test_a_contract_needs_the_money() -> None:
    with pytest.raises(holds.InsufficientFunds):
        _contract(make_owner(30_999_999))


def test_a_refused_payment_credits_nothing_and_an_unknown_one_is_looked_up() -> None:
    owner, refusing, silent = make_owner(), PaperProvider(refuses=True), PaperProvider(silent=1)
    begin = {"owner": owner, "currency": "USD", "amount_minor": 500, "provider": "paper", "at": NOON}
    refused, unknown = payments.begin(key="a", **begin), payments.begin(key="b", **begin)

    assert payments.attempt(payment_id=refused.pk, provider=refusing, at=NOON).state == "refused"
    assert payments.attempt(payment_id=unknown.pk, provider=silent, at=NOON).state == "unknown"
    assert funds(owner).balance_micros == 0
    assert payments.attempt(payment_id=unknown.pk, provider=silent, at=NOON).state == "settled"

    assert (silent.count(), funds(owner).balance_micros) == (1, 5_000_000)
    with pytest.raises(payments.PaymentKeyReused):
        payments.begin(key="b", **{**begin, "amount_minor": 501})


def test_a_refund_with_a_lost_answer_is_sent_once_and_a_refused_one_comes_back() -> None:
    owner, provider = make_owner(), PaperProvider()
    payment = payments.begin(owner=owner, currency="USD", amount_minor=500, provider="paper", key="a", at=NOON)
    payments.attempt(payment_id=payment.pk, provider=provider, at=NOON)
    refund = payments.begin_refund(payment_id=payment.pk, amount_minor=300, at=NOON)
    lost = PaperProvider(silent=1)

    assert payments.attempt_refund(refund_id=refund.pk, provider=lost, at=NOON).state == "unknown"
    assert payments.attempt_refund(refund_id=refund.pk, provider=lost, at=NOON).state == "settled"
    declined = payments.begin_refund(payment_id=payment.pk, amount_minor=200, at=NOON)
    with pytest.raises(holds.InsufficientFunds):
        payments.begin_refund(payment_id=payment.pk, amount_minor=1, at=NOON)
    payments.attempt_refund(refund_id=declined.pk, provider=PaperProvider(refuses=True), at=NOON)

    assert lost.count() == 1
    assert funds(owner).balance_micros == 2_000_000
    give(owner, 9_000_000)
    with pytest.raises(payments.RefundAboveCapture):
        payments.begin_refund(payment_id=payment.pk, amount_minor=201, at=NOON)


def test_one_payout_is_in_flight_and_a_proven_refusal_frees_the_money_under_a_new_key() -> None:
    owner = make_owner()
    lease = run(payer=make_owner(10_000_000), payee=owner, price=make_price(3_605_000), commission_bp=0)
    metering.finish(reference=lease, at=after(3600), ended_by="tenant")
    ask = {"owner": owner, "currency": "USD", "period": "2026-05", "provider": "paper", "at": after(3600)}
    with pytest.raises(payouts.NothingToPayOut):
        payouts.request(minimum_micros=4_000_000, **ask)
    with pytest.raises(payouts.NothingToPayOut):
        payouts.request(earned_before=NOON, **ask)

    first = payouts.request(**ask)
    with pytest.raises(payouts.PayoutInFlight):
        payouts.request(**ask)
    assert payouts.send(payout_id=first.pk, provider=PaperProvider(refuses=True), at=after(3600)).state == "refused"
    second = payouts.request(**ask)
    assert payouts.send(payout_id=second.pk, provider=PaperProvider(), at=after(3600)).state == "settled"

    assert (first.key == second.key, second.amount_minor) == (False, 360)
    assert payouts.payable_micros(owner=owner, currency="USD", at=after(3600)) == 5_000


def test_a_price_is_never_in_the_past_nor_before_one_that_is_published() -> None:
    make_price(5, sku="p", starts_at=after(100))
    series = price_list.Series("p", "north", "verified", "on_demand", "active", "USD")
    publish = {"series": series, "price_micros_per_hour": 7, "cause": "test"}

    for starts_at, at in ((after(50), after(60)), (after(50), NOON), (after(100), NOON)):
        with pytest.raises(price_list.PriceInThePast):
            price_list.publish(starts_at=starts_at, at=at, **publish)
    with pytest.raises(price_list.NotForSale):
        price_list.version_at(series=series, at=after(99))
    assert price_list.version_at(series=series, at=after(100)).price_micros_per_hour == 5


@pytest.mark.parametrize("amount", [0, -1, 5_001])
def test_money_that_cannot_come_in_is_refused(amount: int) -> None:
    with pytest.raises(ValueError, match="no amount"):
        wallets.top_up(owner=uuid4(), currency="USD", amount_micros=amount, key="k", by="t", reason="r", at=NOON)

    assert not Journal.objects.exists()


def test_a_top_up_is_credited_once_and_its_key_is_bound_to_its_amount() -> None:
    owner = uuid4()
    top_up = {"owner": owner, "currency": "USD", "key": "k", "by": "t", "reason": "r", "at": NOON}
    for _ in range(3):
        wallets.top_up(amount_micros=1_000_000, **top_up)

    with pytest.raises(ledger.PostingKeyReused):
        wallets.top_up(amount_micros=2_000_000, **top_up)

    assert funds(owner).balance_micros == 1_000_000


def test_the_close_writes_as_much_for_a_hundred_meters_as_for_one() -> None:
    payer, payee, price = make_owner(10**12), uuid4(), make_price(3_600_000)

    def entries_of_a_close(count: int, seq: int) -> int:
        for member in range(count):
            run(payer=payer, payee=payee, price=price, reference=f"r{seq}", member=member, at=after(seq))
        before = Journal.objects.count()
        close.close(shard=0, to=after(seq + 3600), at=after(seq + 3600))
        return Journal.objects.count() - before

    assert entries_of_a_close(1, 0) == entries_of_a_close(30, 1) == 2
    assert Meter.objects.count() == Segment.objects.count() == 31
    assert reconcile.findings() == []
