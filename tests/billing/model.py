"""What the books should say, worked out the slow way: fractions, one rounding, one second after the other.

It shares nothing with billing. Times are whole seconds from some beginning, money is micro-units.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import pairwise
from math import floor


@dataclass(frozen=True)
class Fact:
    """use None: a stop of whatever runs; else a start, or with price None a stop of that use only."""

    seq: int
    at: int
    member: int
    use: str | None
    price: int | None = None
    quantity: int = 1
    payee: int = 0

    @property
    def begins(self) -> bool:
        return self.price is not None


@dataclass(frozen=True)
class Grant:
    priority: int
    start: int
    end: int | None
    amount: int
    promotional: bool
    position: int


@dataclass(frozen=True)
class History:
    seed: int
    money: int
    facts: tuple[Fact, ...]
    over_at: int
    ended_by: str
    commission_bp: int
    tax_bp: int
    minimum: int
    free: int
    voids: tuple[tuple[int, int, int], ...]  # (member, start, end): usable seconds that were not, after all
    grants: tuple[Grant, ...]
    closes: tuple[int, ...]


@dataclass(frozen=True)
class Stretch:
    start: int
    end: int | None
    price: int
    quantity: int

    def length(self, at: int) -> int:
        return max(0, (at if self.end is None else min(at, self.end)) - self.start)

    def within(self, start: int, end: int) -> int:
        return max(0, min(end, self.end if self.end is not None else end) - max(start, self.start))


@dataclass
class Meter:
    """One member, use and payee."""

    member: int
    use: str
    payee: int
    stretches: list[Stretch] = field(default_factory=list)

    def exact(self, at: int) -> Fraction:
        return sum((Fraction(s.price * s.quantity * s.length(at), 3600) for s in self.stretches), Fraction(0))


def stretches(facts: list[Fact]) -> Iterator[tuple[Fact, Stretch]]:
    """Walk the facts of one lane by number: each ends what ran, and a start begins; time never runs backwards."""
    running: tuple[Fact, int] | None = None
    latest = None
    for fact in sorted(facts, key=lambda f: f.seq):
        ends = running is not None and (fact.begins or fact.use in (None, running[0].use))
        if ends and running is not None:
            began, since = running
            latest = since if fact.at < since else fact.at
            yield began, Stretch(since, latest, began.price or 0, began.quantity)
            running = None
        if fact.begins:
            running = (fact, fact.at if latest is None or fact.at > latest else latest)
    if running is not None:
        yield running[0], Stretch(running[1], None, running[0].price or 0, running[0].quantity)


def meters(history: History, *, over: bool) -> list[Meter]:
    found: dict[tuple[int, str, int], Meter] = {}
    for member in sorted({fact.member for fact in history.facts}):
        own = [fact for fact in history.facts if fact.member == member]
        if over:
            own.append(Fact(10**9, history.over_at, member, None))
        for fact, stretch in stretches(own):
            key = (member, str(fact.use), fact.payee)
            found.setdefault(key, Meter(*key)).stretches.append(stretch)
    return list(found.values())


def charges(history: History) -> list[tuple[Meter, int]]:
    """Return the final charge of every meter: floored once, with minimum, waiver and voids."""
    own = meters(history, over=True)
    active = [meter for meter in own if meter.use == "active"]
    ran: dict[int, int] = {}
    for meter in active:
        lost = sum(s.within(a, b) for m, a, b in history.voids if m == meter.member for s in meter.stretches)
        ran[meter.member] = ran.get(meter.member, 0) + sum(s.length(10**12) for s in meter.stretches) - lost
    longest = max(ran.values(), default=0)
    result = []
    for meter in own:
        exact = meter.exact(10**12)
        if meter.use == "active":
            rates = [(s, s.price * s.quantity) for s in meter.stretches]
            exact -= sum(
                (
                    Fraction(rate * s.within(a, b), 3600)
                    for m, a, b in history.voids
                    if m == meter.member
                    for s, rate in rates
                ),
                Fraction(0),
            )
            latest = max((m for m in active if m.member == meter.member), key=lambda m: m.stretches[-1].start)
            if history.ended_by == "tenant" and latest is meter and 0 < longest < history.minimum:
                exact += Fraction(rates[-1][1] * (history.minimum - longest), 3600)
            if history.ended_by == "host_lost" and longest < history.free:
                exact = Fraction(0)
        result.append((meter, floor(exact)))
    return result


def shares(gross: int, history: History) -> tuple[int, int, int]:
    """Return (host, fee, tax) of a meter's charge."""
    fee = floor(Fraction(gross * history.commission_bp, 10_000))
    tax = floor(Fraction(fee * history.tax_bp, 10_000))
    return gross - fee - tax, fee, tax


@dataclass
class Purse:
    """What pays: grants inside their window in order, the wallet down to 0, the platform for the rest."""

    money: int
    grants: dict[int, int]
    overrun: int = 0

    def pay(self, due: int, at: int, order: list[Grant]) -> None:
        for grant in order:
            if grant.start <= at and (grant.end is None or at < grant.end):
                taken = min(due, self.grants[grant.position])
                self.grants[grant.position] -= taken
                due -= taken
        taken = min(due, self.money)
        self.money -= taken
        self.overrun += due - taken


def draw_order(grants: tuple[Grant, ...]) -> list[Grant]:
    return sorted(
        grants,
        key=lambda g: (g.priority, g.end is None, g.end or 0, not g.promotional, g.start, g.position),
    )


def after_closes(history: History) -> tuple[Purse, int]:
    """Return the purse and the gross after the closes of a history, none of whose facts came late."""
    own = meters(history, over=False)
    order = draw_order(history.grants)
    purse = Purse(history.money, {g.position: g.amount for g in history.grants})
    edges = {e for g in history.grants for e in (g.start, g.end) if e is not None}
    before = 0
    for close in history.closes:
        points = [before, *sorted(e for e in edges if before < e < close), close]
        for a, b in pairwise(points):
            purse.pay(sum(floor(m.exact(b)) - floor(m.exact(a)) for m in own), a, order)
        before = close
    return purse, sum(floor(m.exact(before)) for m in own)


def dry_at(history: History, purse: Purse, *, at: int, limit: int) -> int | None:
    """Return the last second that is paid for, looking at one second after the other; None if beyond `limit`."""
    own = meters(history, over=False)
    posted = sum(floor(m.exact(history.closes[-1])) for m in own) if history.closes else 0
    if all(s.price == 0 or (s.end is not None and s.end <= at) for m in own for s in m.stretches):
        return None
    for second in range(at, at + limit):
        if sum((m.exact(second + 1) for m in own), Fraction(0)) - posted > purse.money:
            return second
    return None


def random_history(seed: int, *, skew: bool = True) -> History:
    rng = random.Random(seed)
    facts, seq = [], 0
    for member in range(rng.choice((1, 1, 2, 3))):
        at = rng.randrange(0, 300)
        for _ in range(rng.randrange(1, 6)):
            seq += 1
            at += rng.choice((0, 1, 7, 59, 60, 61, 600, 3599, 3600, rng.randrange(5000)))
            facts.append(_random_fact(rng, seq, max(0, at - (rng.choice((0, 0, 0, 3)) if skew else 0)), member))
    over_at = max(fact.at for fact in facts) + rng.choice((0, 1, 30, 3600, rng.randrange(8000)))
    grants = tuple(
        Grant(
            priority=rng.choice((1, 2)),
            start=(start := rng.randrange(0, 9000)),
            end=rng.choice((None, start + rng.randrange(1, 9000))),
            amount=rng.randrange(1, 2_000_000),
            promotional=rng.random() < 0.5,
            position=position,
        )
        for position in range(rng.choice((0, 0, 1, 3)))
    )
    history = History(
        seed=seed,
        money=rng.choice((0, 1, 1_000_000, rng.randrange(10**7), 10**12)),
        facts=tuple(facts),
        over_at=over_at,
        ended_by=rng.choice(("tenant", "tenant", "host_lost", "operator_done")),
        commission_bp=rng.choice((0, 1, 1000, 1250, 9999, 10_000)),
        tax_bp=rng.choice((0, 0, 1900, 2500)),
        minimum=rng.choice((0, 0, 60, 4000)),
        free=rng.choice((0, 0, 3600)),
        voids=(),
        grants=grants,
        closes=tuple(sorted({rng.randrange(1, 20_000) for _ in range(rng.randrange(1, 4))})),
    )
    return replace(history, voids=_random_voids(rng, history))


def _random_fact(rng: random.Random, seq: int, at: int, member: int) -> Fact:
    if rng.random() < 0.3:
        return Fact(seq, at, member, rng.choice((None, None, "active", "hold")))
    price = rng.choice((0, 1, 3599, 3600, 3601, 790_000, 1_250_001, rng.randrange(10**7)))
    return Fact(
        seq, at, member, rng.choice(("active", "active", "hold")), price, rng.choice((1, 1, 2, 8)), rng.randrange(2)
    )


def _random_voids(rng: random.Random, history: History) -> tuple[tuple[int, int, int], ...]:
    used = [(m.member, s) for m in meters(history, over=True) if m.use == "active" for s in m.stretches]
    found = []
    for member, stretch in used:
        if stretch.end is not None and stretch.end - stretch.start > 2 and rng.random() < 0.3:
            start = rng.randrange(stretch.start, stretch.end - 1)
            found.append((member, start, rng.randrange(start + 1, stretch.end + 1)))
    return tuple(found)
