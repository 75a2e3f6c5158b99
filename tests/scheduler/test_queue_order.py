"""The order of the queue: shares by weight, no starvation, and nothing that depends on rows, names or floats."""

import heapq
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.queue_order import DAY_MS, HALF_LIFE_S, TERMS, Share, Waiting, decayed, in_order

HOUR_MS = 3_600_000


def lease(key: int, organization: str = "a", *, term: str = "on_demand", at_ms: int = 0, hour: int = 1000) -> Waiting:
    return Waiting(key, organization, "CNY", term, at_ms, hour)


def keys(rows: list[Waiting]) -> list[int]:
    return [row.key for row in rows]


def test_half_of_it_counts_after_a_half_life() -> None:
    assert decayed(10**12, HALF_LIFE_S) == pytest.approx(10**12 // 2, abs=100)
    assert decayed(10**12, 3 * HALF_LIFE_S) == pytest.approx(10**12 // 8, abs=100)
    assert decayed(10**12, 0) == 10**12


@given(st.integers(0, 10**15), st.integers(0, 10**7), st.integers(0, 10**7))
def test_decay_in_two_steps_is_decay_in_one(micros: int, first: int, second: int) -> None:
    assert decayed(decayed(micros, first), second) == pytest.approx(decayed(micros, first + second), abs=64)


def test_reserved_goes_before_on_demand_before_spot() -> None:
    rows = [lease(1, term="spot"), lease(2, term="on_demand", at_ms=5), lease(3, term="reserved", at_ms=9)]

    assert keys(in_order(rows, {}, now_ms=10)) == [3, 2, 1]


def test_who_used_less_over_his_weight_goes_first() -> None:
    rows = [lease(1, "much"), lease(2, "little", at_ms=60_000)]
    used = {("much", "CNY"): Share(9_000_000), ("little", "CNY"): Share(3_000_000)}

    assert keys(in_order(rows, used, now_ms=120_000)) == [2, 1]
    used["much", "CNY"] = Share(9_000_000, weight=4)
    assert keys(in_order(rows, used, now_ms=120_000)) == [1, 2]


def test_a_pool_that_comes_free_at_once_is_shared_out_between_those_who_wait() -> None:
    rows = [lease(n, "a") for n in range(4)] + [lease(n, "b", at_ms=60_000) for n in range(4, 8)]

    assert keys(in_order(rows, {}, now_ms=120_000)) == [0, 4, 1, 5, 2, 6, 3, 7]


def test_use_in_another_currency_is_of_another_pool() -> None:
    rows = [lease(1, "a"), lease(2, "b", at_ms=1)]

    assert keys(in_order(rows, {("a", "USD"): Share(10**15)}, now_ms=5)) == [1, 2]


amounts = st.integers(0, 10**13)
rows_of_leases = st.lists(
    st.tuples(
        st.sampled_from("abcde"), st.sampled_from(sorted(TERMS)), st.integers(0, 3 * DAY_MS), st.integers(0, 10**9)
    ),
    max_size=30,
)
shares_of = st.dictionaries(
    st.tuples(st.sampled_from("abcde"), st.just("CNY")), st.builds(Share, amounts, st.integers(1, 100)), max_size=5
)


@settings(max_examples=300)
@given(rows_of_leases, shares_of, st.randoms())
def test_the_order_of_rows_changes_nothing(
    found: list[tuple[str, str, int, int]], shares: dict[tuple[str, str], Share], chance: object
) -> None:
    rows = [Waiting(n, who, "CNY", term, at, hour) for n, (who, term, at, hour) in enumerate(found)]
    shuffled = list(rows)
    chance.shuffle(shuffled)  # type: ignore[attr-defined]

    once = in_order(rows, shares, now_ms=4 * DAY_MS)

    assert in_order(shuffled, dict(reversed(shares.items())), now_ms=4 * DAY_MS) == once
    assert sorted(keys(once)) == list(range(len(rows)))


@settings(max_examples=300)
@given(rows_of_leases, shares_of)
def test_who_has_waited_a_day_longer_comes_first_whatever_was_used(
    found: list[tuple[str, str, int, int]], shares: dict[tuple[str, str], Share]
) -> None:
    rows = [Waiting(n, who, "CNY", term, at, hour) for n, (who, term, at, hour) in enumerate(found)]
    place = {row.key: index for index, row in enumerate(in_order(rows, shares, now_ms=4 * DAY_MS))}

    for early in rows:
        for late in rows:
            if early.term == late.term and late.requested_ms - early.requested_ms > DAY_MS:
                assert place[early.key] < place[late.key]


def gpu_time(weights: dict[str, int], *, gpus: int, days: int, waiting: int, lengths_s: list[int]) -> dict[str, int]:
    """Let organizations that always have `waiting` leases in the queue take what comes free; return their GPU seconds
    in the second half. Use is counted as it is in the product: in steps of ten minutes, and what runs an hour ahead."""
    price, step_s = 1000, 600
    used = dict.fromkeys(weights, 0)
    running: list[tuple[int, int, str]] = []  # end, key, organization
    line = [Waiting(n, who, "CNY", "on_demand", 0, price) for n, who in enumerate(sorted(weights) * waiting)]
    served, key = dict.fromkeys(weights, 0), len(line)
    for now in range(0, days * 86_400, 60):
        if now % step_s == 0:
            alive = [who for _, _, who in running]
            used = {who: decayed(used[who], step_s) + alive.count(who) * price * step_s // 3600 for who in weights}
        while running and running[0][0] <= now:
            heapq.heappop(running)
        free = gpus - len(running)
        if free:
            alive = [who for _, _, who in running]
            shares = {
                (who, "CNY"): Share(used[who] + alive.count(who) * price, weight) for who, weight in weights.items()
            }
            for row in in_order(line, shares, now_ms=now * 1000)[:free]:
                line.remove(row)
                length = lengths_s[row.key % len(lengths_s)]
                heapq.heappush(running, (now + length, row.key, row.organization))
                served[row.organization] += length if now > days * 43_200 else 0
                line.append(Waiting(key, row.organization, "CNY", "on_demand", now * 1000, price))
                key += 1
    return served


@pytest.mark.parametrize("weights", [{"a": 1, "b": 1}, {"a": 3, "b": 1}, {"a": 1, "b": 2, "c": 5}])
def test_who_always_wants_more_than_there_is_gets_gpu_time_by_weight(weights: dict[str, int]) -> None:
    served = gpu_time(weights, gpus=8, days=6, waiting=3, lengths_s=[600, 1800, 3600, 7200, 900])

    total, all_weights = sum(served.values()), sum(weights.values())
    for who, weight in weights.items():
        assert abs(Fraction(served[who], total) - Fraction(weight, all_weights)) < Fraction(1, 20), served
