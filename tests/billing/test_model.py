"""Random histories against the independent model (model.py): the same books to the micro-unit, in any order.

`--histories N` runs N of them through the pure functions, and N as rows through the SQL of close and exhaustion and
all invariants, a fifth of those with grants; N / 200 are told fact by fact to every domain function.
"""

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any
from uuid import UUID, uuid4

import model
import pytest
from books import LONG_AGO, make_owner, make_price, run
from django.db import connection
from django.db.models import Sum

from billing import close, costs, downtime, exhaustion, ledger, metering, pricing, reconcile, segments, timeline
from billing.models import Account, AccountBalance, Grant, Meter, MeterFact, PriceVersion, Segment, Transfer
from billing.models.accounts import AccountKind
from billing.models.meters import Lane

BEGIN = datetime(2026, 3, 1, tzinfo=UTC)
BEGIN_S = int(BEGIN.timestamp())
BATCH = 500
pytestmark = pytest.mark.timeout(6_000)  # --histories 100000 takes its time


@pytest.fixture
def histories(request: pytest.FixtureRequest) -> int:
    return request.config.getoption("--histories", default=None) or 2_000


def at(second: int) -> datetime:
    return BEGIN + timedelta(seconds=second)


def _told(fact: model.Fact, key: int) -> timeline.Fact:
    return timeline.Fact(fact.seq, fact.at, fact.use, key if fact.begins else None)


def test_facts_in_any_order_and_doubled_fold_to_the_models_stretches(histories: int) -> None:
    for seed in range(histories):
        history, rng = model.random_history(seed), random.Random(seed)
        for member in {fact.member for fact in history.facts}:
            own = {i: fact for i, fact in enumerate(history.facts, start=1) if fact.member == member}
            expected = [(s.start, s.end, f.use) for f, s in model.stretches(list(own.values()))]
            shuffled = [_told(fact, i) for i, fact in own.items()]
            rng.shuffle(shuffled)
            found = [(s.start_s, s.end_s, s.use) for s in timeline.fold(set(shuffled)).spans]
            assert found == expected, seed


def test_charges_and_their_shares_are_the_models_at_every_cut(histories: int) -> None:
    for seed in range(histories):
        history, rng = model.random_history(seed), random.Random(seed)
        for meter in model.meters(history, over=True):
            cuts = sorted({0, *(rng.randrange(30_000) for _ in range(4)), 40_000})
            pieces = [[(s.price * s.quantity, s.length(cut)) for s in meter.stretches] for cut in cuts]
            charged = [pricing.charge(pricing.numerator(piece)) for piece in pieces]
            split = [
                pricing.parts(gross=c, commission_bp=history.commission_bp, tax_on_commission_bp=history.tax_bp)
                for c in charged
            ]
            steps = [b.minus(a) for a, b in pairwise(split)]
            final = split[-1].gross
            host, fee, tax = model.shares(final, history)
            assert charged == [meter.exact(cut).__floor__() for cut in cuts], seed
            assert (sum(s.host for s in steps), sum(s.fee for s in steps), sum(s.tax for s in steps)) == (
                host,
                fee,
                tax,
            )


class Batch:
    """Many histories in the database at once, written as rows: the SQL of the close and of exhaustion does the rest."""

    def __init__(self, found: list[model.History]) -> None:
        self.histories = found
        self.payers = [uuid4() for _ in found]
        self.prices: dict[int, PriceVersion] = {}
        self.wallets = [self._account(AccountKind.WALLET, owner) for owner in self.payers]
        self.earnings = [self._account(AccountKind.HOST_EARNINGS, uuid4()) for _ in range(2)]
        self.grants = {
            (number, g.position): self._account(AccountKind.PROMO_GRANT, self.payers[number], part=str(g.position))
            for number, history in enumerate(found)
            for g in history.grants
        }
        limited = [*self.wallets, *self.grants.values()]
        Account.objects.bulk_create([*limited, *self.earnings])
        AccountBalance.objects.bulk_create(AccountBalance(account=account) for account in limited)
        cash = ledger.account(kind=AccountKind.CASH, currency="USD", at=LONG_AGO)
        amounts = [h.money for h in found] + [g.amount for h in found for g in h.grants]
        legs = [leg for account, n in zip(limited, amounts, strict=True) for leg in ledger.flow(cash, account, n)]
        ledger.post(key="batch", kind="topup", legs=legs, effective_at=LONG_AGO, at=LONG_AGO)
        Grant.objects.bulk_create(self._grants())
        self._write_meters()

    def _account(self, kind: AccountKind, owner: UUID, part: str = "") -> Account:
        return Account(kind=kind, owner=owner, currency="USD", part=part, created_at=LONG_AGO)

    def _grants(self) -> Iterator[Grant]:
        for (number, position), account in self.grants.items():
            g = self.histories[number].grants[position]
            yield Grant(
                account=account,
                amount_micros=g.amount,
                effective_at=at(g.start),
                expires_at=None if g.end is None else at(g.end),
                priority=g.priority,
                promotional=g.promotional,
                created_at=LONG_AGO + timedelta(seconds=g.position),
            )

    def _write_meters(self) -> None:
        meters, rows = [], []
        for number, history in enumerate(self.histories):
            for meter in model.meters(history, over=False):
                meters.append(
                    Meter(
                        payer=self.wallets[number],
                        payee=self.earnings[meter.payee],
                        reference=f"h{number}",
                        member=meter.member,
                        use=meter.use,
                        commission_bp=history.commission_bp,
                        tax_on_commission_bp=history.tax_bp,
                    )
                )
                rows.append(meter.stretches)
        Meter.objects.bulk_create(meters)
        facts = [
            MeterFact(
                reference=m.reference, seq=seq, member=m.member, lane=Lane.COMPUTE, begins=True, use=m.use,
                at_s=BEGIN_S + s.start, meter=m, received_at=BEGIN,
            )
            for m, own in zip(meters, rows, strict=True)
            for seq, s in enumerate(own, start=m.pk * 100)
        ]  # fmt: skip
        MeterFact.objects.bulk_create(facts)
        Segment.objects.bulk_create(self._segments(meters, rows, iter(facts)))

    def _segments(
        self, meters: list[Meter], rows: list[list[model.Stretch]], facts: Iterator[MeterFact]
    ) -> Iterator[Segment]:
        for meter, own in zip(meters, rows, strict=True):
            base = 0
            for s in own:
                rate = s.price * s.quantity
                yield Segment(
                    meter=meter, payer=meter.payer, payee=meter.payee, commission_bp=meter.commission_bp,
                    tax_on_commission_bp=meter.tax_on_commission_bp, fact=next(facts),
                    price_version=self._price(s.price), quantity=s.quantity, rate_micros_per_hour=rate,
                    start_s=BEGIN_S + s.start,
                    end_s=None if s.end is None else BEGIN_S + s.end, base_num=base,
                )  # fmt: skip
                base += rate * s.length(10**12 if s.end is not None else 0)

    def _price(self, micros: int) -> PriceVersion:
        if micros not in self.prices:
            self.prices[micros] = make_price(micros)
        return self.prices[micros]


@pytest.mark.django_db
def test_closes_of_many_histories_at_once_leave_the_models_purses(histories: int) -> None:
    """Also that exhaustion computed from nothing is the second that the model finds by trying each."""
    for first in range(0, histories, BATCH):
        closes = tuple(sorted({random.Random(first).randrange(1, 20_000) for _ in range(3)}))
        seeds = range(first, min(first + BATCH, histories))
        found = [model.replace(model.random_history(seed), closes=closes) for seed in seeds]
        # Grants are drawn payer by payer, which takes its time: four of five histories go without.
        found = [history if history.seed % 5 == 0 else model.replace(history, grants=()) for history in found]
        batch = Batch(found)
        for to in closes:
            # The batches share a shard whose runs go on: a batch lives in its own stretch of time.
            close.close(shard=0, to=at(to), at=at(to))
        exhaustion.refresh_all(at=at(closes[-1]))
        purses = [model.after_closes(history) for history in found]
        stored = AccountBalance.objects.in_bulk([w.pk for w in batch.wallets])
        assert [stored[w.pk].balance_micros for w in batch.wallets] == [purse.money for purse, _ in purses]
        overrun, left = _balances(AccountKind.OVERRUN_EXPENSE), _balances(AccountKind.PROMO_GRANT)
        assert [-overrun.get((p, ""), 0) for p in batch.payers] == [purse.overrun for purse, _ in purses]
        drawn = {(n, i): left[batch.payers[n], str(i)] for n, i in batch.grants}
        assert drawn == {(n, i): left for n, (purse, _) in enumerate(purses) for i, left in purse.grants.items()}
        _compare_exhaustion(batch, purses, closes[-1])
        assert reconcile.findings() == []
        with connection.cursor() as cursor:  # the next batch begins with empty books
            cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
            cursor.execute("SET session_replication_role = replica")
            cursor.execute(
                "TRUNCATE billing_account, billing_journal, billing_transfer, billing_meter, billing_segment,"
                " billing_meterfact, billing_billingrun, billing_grant, billing_accountbalance,"
                " billing_priceseries, billing_priceversion CASCADE"
            )
            cursor.execute("SET session_replication_role = DEFAULT")


def _balances(kind: AccountKind) -> dict[tuple[UUID | None, str], int]:
    """Return what every account of a kind gained, by (owner, part), from the transfers."""
    found: dict[tuple[UUID | None, str], int] = {}
    for side, sign in (("credit", 1), ("debit", -1)):
        sums = Transfer.objects.filter(**{f"{side}__kind": kind}).values_list(f"{side}__owner", f"{side}__part")
        for owner, part, micros in sums.annotate(Sum("amount_micros")):
            found[owner, part] = found.get((owner, part), 0) + sign * micros
    return found


def _compare_exhaustion(batch: Batch, purses: list[tuple[model.Purse, int]], now: int) -> None:
    stored = AccountBalance.objects.in_bulk([w.pk for w in batch.wallets])
    for number, history in list(enumerate(batch.histories))[:60]:
        if history.grants or any(s.start > now for m in model.meters(history, over=False) for s in m.stretches):
            continue  # what begins later, or grants: known ahead, and compared in test_exhaustion
        expected = model.dry_at(history, purses[number][0], at=now, limit=300)
        found = stored[batch.wallets[number].pk].exhaust_at
        soon = None if found is None or found >= at(now + 300) else int((found - at(now)).total_seconds()) + now
        assert soon == expected, history.seed


def _whole(seed: int) -> None:
    """Tell one history to the domain functions in a random order, with doubles and closes between, and end it."""
    history, rng = model.replace(model.random_history(seed), grants=(), money=10**12), random.Random(seed)
    payer, payees, lease = make_owner(history.money), [uuid4(), uuid4()], f"lease_{seed}"
    now = at(60_000)
    told = [*history.facts, *(fact for fact in history.facts if rng.random() < 0.5)]
    rng.shuffle(told)
    terms = {"minimum_s": history.minimum, "free_if_interrupted_s": history.free}
    for fact in told:
        _tell(fact, history, payer=payer, payees=payees, lease=lease, now=now, terms=terms)
        if rng.random() < 0.3:
            close.close(shard=0, to=at(rng.randrange(20_000)), at=now)
    for member, start, end in history.voids:
        downtime.void(reference=lease, member=member, start=at(start), end=at(end), reason="gpu", at=now)
    ended = [metering.finish(reference=lease, at=at(history.over_at), ended_by=history.ended_by) for _ in range(2)]
    expected = model.charges(history)
    assert ended == [sum(micros for _, micros in expected)] * 2, seed
    assert costs.of_reference(reference=lease, at=now).charged_micros == ended[0], seed
    assert sum(line.micros for line in costs.of_reference(reference=lease, at=now).lines) == ended[0], seed
    host = [sum(model.shares(c, history)[0] for m, c in expected if m.payee == i) for i in (0, 1)]
    earned = _balances(AccountKind.HOST_EARNINGS)
    assert [earned.get((payee, ""), 0) for payee in payees] == host, seed
    assert ledger.balance_micros(Account.objects.get(owner=payer, kind="wallet")) == history.money - ended[0], seed
    read = segments.read(Meter.objects.filter(reference=lease))
    assert sum(r.charge(segments.FOREVER_S) for r in read.values()) == ended[0]


def _tell(fact: model.Fact, history: model.History, *, lease: str, now: datetime, **who: Any) -> None:
    if not fact.begins:
        metering.stop(
            reference=lease, seq=fact.seq, at=at(fact.at), cause="x", members=[fact.member], use=fact.use,
            received_at=now,
        )  # fmt: skip
        return
    assert fact.price is not None
    sku = f"{fact.price}-{sorted(who['terms'].items())}"
    price = PriceVersion.objects.filter(series__sku=sku, series__use=str(fact.use)).first()
    run(
        payer=who["payer"], payee=who["payees"][fact.payee], reference=lease, member=fact.member, seq=fact.seq,
        price=price or make_price(fact.price, sku=sku, use=str(fact.use), **who["terms"]),
        at=at(fact.at), use=str(fact.use), quantity=fact.quantity, commission_bp=history.commission_bp,
        tax_on_commission_bp=history.tax_bp, received_at=now,
    )  # fmt: skip


@pytest.mark.django_db
def test_whole_histories_in_any_order_give_the_models_books(histories: int) -> None:
    for seed in range(max(12, histories // 200)):
        if seed % 20 == 0:  # one long transaction: nobody else tells the planner how its tables have grown
            with connection.cursor() as cursor:
                cursor.execute("ANALYZE")
        _whole(seed)
        assert reconcile.findings() == [], seed
