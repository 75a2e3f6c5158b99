"""Which leases give way for another with the least lost value. Pure: the same input gives the same answer.

Per machine every set of as many GPUs as are wanted is weighed (at eight GPUs a mask of 256 at most), so the cheapest is
the exact minimum; then the machines are compared. A lease on several GPUs or machines is lost whole, and counted once.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import TypeVar

RUN_CAP_S = 4 * 3600  # what ran longer is taken to have saved its work
RESTART_S = 600  # of its price: what it costs a tenant to be where it was
SECONDS_PER_HOUR = 3600

K = TypeVar("K")


def lost_micros(*, micros_per_hour: int, ran_s: int, credit_micros: int = 0) -> int:
    """Return what is lost when a lease is reclaimed: what it ran (capped), a restart, and what it is credited."""
    lost_s = min(max(ran_s, 0), RUN_CAP_S) + RESTART_S
    return micros_per_hour * lost_s // SECONDS_PER_HOUR + credit_micros


@dataclass(frozen=True)
class Machine:
    """One machine: which leases hold each GPU, for the range that is wanted. A GPU that cannot be had is left out."""

    key: str
    holders: Mapping[str, frozenset[str]]  # GPU -> leases that may be sent away (none: it is free)


@dataclass(frozen=True, order=True)
class Choice:
    """GPUs to clear, and who goes. Ordered: least lost first, then the fewest leases, then by name."""

    lost_micros: int
    leases: tuple[str, ...] = field(compare=False)
    sort_key: tuple[int, str, tuple[str, ...]]
    machines: tuple[str, ...] = field(compare=False)
    gpus: tuple[str, ...] = field(compare=False)


def choices(machine: Machine, *, count: int, lost: Mapping[str, int]) -> list[Choice]:
    """Return the sets of `count` GPUs of a machine that can be cleared, cheapest first; each set of leases once."""
    best: dict[frozenset[str], Choice] = {}
    for gpus in combinations(sorted(machine.holders), count):
        leases = frozenset().union(*(machine.holders[gpu] for gpu in gpus))
        if leases not in best:
            best[leases] = _choice(leases, lost, machines=(machine.key,), gpus=gpus)
    return sorted(best.values())


def _choice(
    leases: Iterable[str], lost: Mapping[str, int], *, machines: tuple[str, ...], gpus: tuple[str, ...]
) -> Choice:
    names = tuple(sorted(leases))
    cost = sum(lost[name] for name in names)
    return Choice(cost, names, (len(names), machines[0], names), machines, gpus)


def cheapest(machines: Sequence[Machine], *, count: int, nodes: int, lost: Mapping[str, int]) -> Iterator[Choice]:
    """Yield whom to send away for `nodes` machines with `count` GPUs each, cheapest first.

    For one machine: every choice of every machine. For a gang: the machines that lose least by themselves, together;
    leases that they share are counted once.
    """
    by_machine = [found for machine in machines if (found := choices(machine, count=count, lost=lost))]
    if nodes == 1:
        yield from sorted(choice for found in by_machine for choice in found)
        return
    firsts = sorted(found[0] for found in by_machine)[:nodes]
    if len(firsts) == nodes:
        leases = {name for choice in firsts for name in choice.leases}
        places = tuple(choice.machines[0] for choice in firsts)
        yield _choice(leases, lost, machines=places, gpus=tuple(gpu for choice in firsts for gpu in choice.gpus))
