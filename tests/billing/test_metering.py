"""Meters: facts become segments, segments become charges, each posted once."""

from itertools import permutations
from uuid import uuid4

import pytest
from books import LONG_AGO, NOON, after, make_owner, make_price, run

from billing import close, downtime, exhaustion, holds, ledger, metering, statements, wallets
from billing.models import Journal, Meter, MeterFact, Segment

pytestmark = pytest.mark.django_db


def test_a_lease_is_charged_to_the_second_when_it_ends() -> None:
    payer, payee = make_owner(10_000_000), uuid4()
    lease = run(payer=payer, payee=payee, price=make_price(3_600_000), quantity=2)
    metering.stop(reference=lease, seq=2, at=after(61.9), cause="tenant")

    charged = metering.finish(reference=lease, at=after(70), ended_by="tenant")

    assert charged == 2 * 61 * 1_000
    assert wallets.balance(owner=payer, currency="USD", at=after(80)).balance_micros == 10_000_000 - charged
    assert metering.cost(reference=lease, at=after(80)).seconds == 61
    assert metering.finish(reference=lease, at=after(90), ended_by="operator") == charged


def test_the_close_and_the_end_share_one_charge() -> None:
    payer = make_owner(10_000_000)
    lease = run(payer=payer, price=make_price(1_000_001), at=after(-1800))

    close.close(shard=0, to=NOON, at=NOON)
    half = 10_000_000 - wallets.balance(owner=payer, currency="USD", at=NOON).balance_micros
    metering.stop(reference=lease, seq=2, at=after(1800), cause="tenant")
    charged = metering.finish(reference=lease, at=after(1800), ended_by="tenant")
    close.close(shard=0, to=after(3600), at=after(3600))

    assert half == 500_000
    assert charged == 1_000_001
    assert wallets.balance(owner=payer, currency="USD", at=after(3600)).balance_micros == 10_000_000 - charged


def test_a_second_close_of_the_same_hour_finds_nothing() -> None:
    run(payer=make_owner(10_000_000), price=make_price(1_000_000), at=after(-1800))
    close.close(shard=0, to=NOON, at=NOON)
    journals = Journal.objects.count()

    assert close.close(shard=0, to=NOON, at=after(5)) is None
    assert Journal.objects.count() == journals


def test_a_start_settles_the_hold() -> None:
    payer = make_owner(2_000_000)
    holds.place(
        owner=payer, currency="USD", amount_micros=1_500_000, reference="lease_a", expires_at=after(600), at=NOON
    )

    run(payer=payer, price=make_price(1_000_000), reference="lease_a", at=after(5))

    found = wallets.balance(owner=payer, currency="USD", at=after(5))
    assert (found.held_micros, found.burn_micros_per_hour) == (0, 1_000_000)
    assert found.exhausts_at == after(5 + 7200)


def test_a_stop_that_arrives_late_is_credited_with_commission_and_earnings() -> None:
    payer, payee = make_owner(10_000_000), uuid4()
    lease = run(payer=payer, payee=payee, price=make_price(1_200_000), at=after(-3 * 3600), commission_bp=1500)
    close.close(shard=0, to=NOON, at=NOON)

    metering.stop(reference=lease, seq=2, at=after(-3000), cause="host lost", received_at=after(10))

    assert wallets.balance(owner=payer, currency="USD", at=after(10)).balance_micros == 10_000_000 - 2_600_000
    earned = Meter.objects.get(reference=lease).payee
    assert ledger.balance_micros(earned) == 2_600_000 * 85 // 100
    assert metering.finish(reference=lease, at=after(20), ended_by="host_lost") == 2_600_000


def test_an_earlier_fact_that_arrives_after_the_end_is_credited() -> None:
    payer = make_owner(10_000_000)
    lease = run(payer=payer, price=make_price(3_600_000))
    metering.stop(reference=lease, seq=3, at=after(100), cause="tenant")
    metering.finish(reference=lease, at=after(100), ended_by="tenant")

    metering.stop(reference=lease, seq=2, at=after(40), cause="gpu lost", received_at=after(200))

    assert metering.cost(reference=lease, at=after(300)).seconds == 40
    assert wallets.balance(owner=payer, currency="USD", at=after(300)).balance_micros == 10_000_000 - 40_000


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_every_order_of_facts_gives_the_same_segments(order: tuple[int, ...]) -> None:
    payer, payee = make_owner(10_000_000), uuid4()
    active, parked = make_price(3_600_000), make_price(36_000, use="hold")
    facts = [
        lambda: run(payer=payer, payee=payee, price=active, reference="lease_o", seq=1, at=NOON, received_at=after(99)),
        lambda: run(payer=payer, payee=payee, price=parked, reference="lease_o", seq=2, at=after(20), use="hold",
                    received_at=after(99)),
        lambda: metering.stop(reference="lease_o", seq=3, at=after(45), cause="tenant", received_at=after(99)),
    ]  # fmt: skip

    for i in (*order, *order):
        facts[i]()

    told = list(Segment.objects.order_by("start_s").values_list("end_s", "rate_micros_per_hour"))
    start_s = int(NOON.timestamp())
    assert told == [(start_s + 20, 3_600_000), (start_s + 45, 36_000)]
    assert metering.finish(reference="lease_o", at=after(99), ended_by="operator") == 20_000 + 250


def test_the_same_number_with_another_body_is_refused() -> None:
    lease = run(payer=make_owner(10_000_000), price=make_price(1_000_000))
    metering.stop(reference=lease, seq=2, at=after(10), cause="tenant")
    metering.stop(reference=lease, seq=2, at=after(10), cause="tenant")

    with pytest.raises(metering.FactReused):
        metering.stop(reference=lease, seq=2, at=after(11), cause="tenant")

    assert MeterFact.objects.filter(seq=2).count() == 1


def test_a_fact_far_ahead_of_the_clock_is_refused() -> None:
    lease = run(payer=make_owner(10_000_000), price=make_price(1_000_000))

    with pytest.raises(metering.FactInTheFuture):
        metering.stop(reference=lease, seq=2, at=after(361), cause="skew", received_at=NOON)


def test_what_has_finished_does_not_start_again() -> None:
    payer, price = make_owner(10_000_000), make_price(1_000_000)
    lease = run(payer=payer, price=price)
    metering.finish(reference=lease, at=after(10), ended_by="tenant")

    with pytest.raises(metering.ReferenceFinished):
        run(payer=payer, price=price, reference=lease, member=1, seq=2**62 + 1, at=after(20))


def test_another_owners_host_gets_its_own_meter() -> None:
    payer, price, first, second = make_owner(10_000_000), make_price(3_600_000), uuid4(), uuid4()
    lease = run(payer=payer, payee=first, price=price, commission_bp=0)
    metering.stop(reference=lease, seq=2, at=after(10), cause="host lost")
    run(payer=payer, payee=second, price=price, commission_bp=0, reference=lease, seq=3, at=after(30))

    metering.finish(reference=lease, at=after(50), ended_by="tenant")

    earned = {meter.payee.owner: ledger.balance_micros(meter.payee) for meter in Meter.objects.all()}
    assert earned == {first: 10_000, second: 20_000}


def test_the_minimum_is_charged_once_to_each_member_and_only_when_the_tenant_ends_it() -> None:
    payer, price = make_owner(10_000_000), make_price(3_600_000, minimum_s=60)
    lease = run(payer=payer, price=price)
    run(payer=payer, price=price, reference=lease, member=1)
    interrupted = run(payer=payer, price=price)

    assert metering.finish(reference=lease, at=after(20), ended_by="tenant") == 2 * 60_000
    assert metering.finish(reference=interrupted, at=after(20), ended_by="host_lost") == 20_000


def test_seconds_that_were_not_usable_are_taken_back_once() -> None:
    payer = make_owner(10_000_000)
    lease = run(payer=payer, price=make_price(3_600_000), at=after(-3600))
    close.close(shard=0, to=NOON, at=NOON)

    down = {"reference": lease, "member": 0, "start": after(-600), "end": after(-500), "reason": "gpu", "at": after(5)}
    assert downtime.void(**down) == 100_000
    assert downtime.void(**down) == 0
    with pytest.raises(downtime.AlreadyRefunded):
        downtime.void(**{**down, "start": after(-550)})

    metering.finish(reference=lease, at=after(10), ended_by="tenant")
    assert statements.for_reference(reference=lease, at=after(20)).posted_micros == 3_510_000


def test_downtime_that_no_run_has_covered_is_posted_with_the_one_that_does() -> None:
    payer = make_owner(10_000_000)
    lease = run(payer=payer, price=make_price(3_600_000))
    assert downtime.void(reference=lease, member=0, start=NOON, end=after(100), reason="gpu", at=after(200)) == 0

    close.close(shard=0, to=after(3600), at=after(3600))

    assert wallets.balance(owner=payer, currency="USD", at=after(3600)).balance_micros == 10_000_000 - 3_500_000


def test_a_wallet_that_runs_dry_names_what_has_to_stop_and_never_goes_below_zero() -> None:
    payer = make_owner(1_000_000)
    lease = run(payer=payer, price=make_price(3_600_000))

    assert exhaustion.due(at=after(999)) == []
    assert exhaustion.due(at=after(1000)) == [payer]
    assert exhaustion.due_references(at=after(1000)) == [lease]

    metering.stop(reference=lease, seq=2, at=after(1100), cause="balance")
    metering.finish(reference=lease, at=after(1100), ended_by="balance")
    assert exhaustion.due(at=after(2000)) == []
    assert wallets.balance(owner=payer, currency="USD", at=after(2000)).balance_micros == 0


@pytest.mark.parametrize(("seconds", "fits"), [(2**63 // 10**11, True), (2**63 // 10**11 + 1, False)])
def test_usage_beyond_64_bits_is_never_written_and_keeps_nothing_from_ending(seconds: int, fits: bool) -> None:
    lease = run(payer=make_owner(10**15), price=make_price(10**11), at=LONG_AGO)
    close.close(shard=0, to=after(seconds - 1, LONG_AGO), at=after(seconds - 1, LONG_AGO))

    charged = metering.finish(reference=lease, at=after(seconds, LONG_AGO), ended_by="tenant")

    most_s = 2**63 // 10**11
    assert (charged, Meter.objects.get().flagged) == (10**11 * most_s // 3600, not fits)
    segment = Segment.objects.get()
    assert segment.end_s == segment.start_s + most_s


def test_a_credit_line_is_not_cut_below_what_has_run_and_is_not_posted() -> None:
    payer = make_owner(1_000_000)
    wallets.set_credit_line(owner=payer, currency="USD", credit_micros=5_000_000, at=NOON)
    run(payer=payer, price=make_price(3_600_000))
    cut = {"owner": payer, "currency": "USD", "at": after(3000)}

    with pytest.raises(ledger.Overdrawn):
        wallets.set_credit_line(credit_micros=1_999_999, **cut)
    wallets.set_credit_line(credit_micros=2_000_000, **cut)

    assert wallets.balance(**cut).available_micros == 0


@pytest.mark.parametrize("ended_by", ["tenant", "host_lost"])
@pytest.mark.parametrize("members", [(0,), (0, 1)])
def test_what_is_taken_back_after_the_end_gives_the_books_that_it_gives_before(
    ended_by: str, members: tuple[int, ...]
) -> None:
    price = make_price(3_600_000, minimum_s=300, free_if_interrupted_s=90)
    charged = []
    for void_first in (True, False):
        payer = make_owner(10_000_000)
        lease = run(payer=payer, price=price)
        run(payer=payer, price=price, reference=lease, member=1, seq=1)
        metering.stop(reference=lease, seq=2, at=after(100), cause="stop")
        back = [
            {"reference": lease, "member": m, "start": after(20), "end": after(40), "reason": "gpu", "at": after(200)}
            for m in members
        ]
        refunded = sum(downtime.void(**down) for down in back if void_first)
        ended = metering.finish(reference=lease, at=after(100), ended_by=ended_by)
        refunded += sum(downtime.void(**down) for down in back)
        assert sum(downtime.void(**down) for down in back) == 0
        charged.append(ended - refunded)

        metering.stop(reference=lease, seq=0, at=after(100), cause="late")  # a late fact that changes nothing
        left = wallets.balance(owner=payer, currency="USD", at=after(300)).balance_micros
        assert left == 10_000_000 - (ended - refunded)
    assert charged[0] == charged[1]
