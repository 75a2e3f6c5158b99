"""Who gives way: the exact minimum of lost value, against a search of everything."""

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from scheduler import spot_victims
from scheduler.spot_victims import Machine

LEASES = [f"lease{n}" for n in range(6)]


@st.composite
def pools(draw: st.DrawFn) -> tuple[list[Machine], dict[str, int]]:
    lost = {name: draw(st.integers(0, 1000)) for name in LEASES}
    machines = []
    for number in range(draw(st.integers(1, 3))):
        gpus = draw(st.integers(1, 8))
        holders = {
            f"gpu{number}-{index}": frozenset(draw(st.sets(st.sampled_from(LEASES), max_size=2)))
            for index in range(gpus)
            if draw(st.booleans())
        }
        machines.append(Machine(f"host{number}", holders))
    return machines, lost


def _least(machines: list[Machine], count: int, lost: dict[str, int]) -> int | None:
    """Try every set of leases: the least that leaves `count` clear GPUs in one machine."""
    best = None
    for size in range(len(LEASES) + 1):
        for gone in combinations(LEASES, size):
            clear = [sum(held <= set(gone) for held in machine.holders.values()) for machine in machines]
            if max(clear) >= count:
                cost = sum(lost[name] for name in gone)
                best = cost if best is None else min(best, cost)
    return best


@given(pool=pools(), count=st.integers(1, 8))
def test_the_first_choice_loses_the_least_of_all_that_is_possible(
    pool: tuple[list[Machine], dict[str, int]], count: int
) -> None:
    machines, lost = pool

    found = next(spot_victims.cheapest(machines, count=count, nodes=1, lost=lost), None)

    assert (found.lost_micros if found else None) == _least(machines, count, lost)


@given(pool=pools(), count=st.integers(1, 4))
def test_choices_come_in_the_order_of_what_is_lost_and_clear_what_they_say(
    pool: tuple[list[Machine], dict[str, int]], count: int
) -> None:
    machines, lost = pool
    holders = {gpu: held for machine in machines for gpu, held in machine.holders.items()}

    found = list(spot_victims.cheapest(machines, count=count, nodes=1, lost=lost))

    assert [choice.lost_micros for choice in found] == sorted(choice.lost_micros for choice in found)
    for choice in found:
        assert len(choice.gpus) == count
        assert set().union(*(holders[gpu] for gpu in choice.gpus)) == set(choice.leases)


def test_a_gang_takes_as_many_machines_as_it_needs_and_counts_a_shared_victim_once() -> None:
    machines = [
        Machine("a", {"a0": frozenset({"x"})}),
        Machine("b", {"b0": frozenset({"x"})}),
        Machine("c", {"c0": frozenset({"y"})}),
    ]

    (found,) = spot_victims.cheapest(machines, count=1, nodes=2, lost={"x": 5, "y": 9})

    assert (found.leases, found.machines, found.lost_micros) == (("x",), ("a", "b"), 5)


def test_what_ran_longer_loses_more_up_to_a_cap() -> None:
    def lost(ran_s: int) -> int:
        return spot_victims.lost_micros(micros_per_hour=3_600_000, ran_s=ran_s)

    assert lost(0) == 600_000
    assert lost(60) == 660_000
    assert lost(10 * 3600) == lost(4 * 3600) == 15_000_000
