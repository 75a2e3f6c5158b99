"""How long what runs may go on, judged by what has ended: pure, and in whole seconds."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

FEWEST = 3  # lengths that went on longer than this one has: with fewer, its own age is the better guess


def remaining_s(*, lengths: Sequence[int], age_s: int) -> int:
    """Return the median of what was left of those past lengths that were longer than `age_s`, at that age.

    What has outlived nearly all of them is taken to go on for as long again.
    """
    left = sorted(length - age_s for length in lengths if length > age_s)
    return left[(len(left) - 1) // 2] if len(left) >= FEWEST else max(age_s, 1)


def free_at_s(*, ends: Iterable[tuple[int, int]], needed: int) -> int | None:
    """Return the second by which `needed` units have come free; ends: (second, units). None: never so many."""
    come = 0
    for second, units in sorted(ends):
        come += units
        if come >= needed:
            return second
    return None


@dataclass
class Machine:
    """A machine's GPUs: how many are free, and when others come free; ends: (second, GPUs)."""

    free: int = 0
    ends: list[tuple[int, int]] = field(default_factory=list)

    def has_free_at_s(self, count: int, *, now_s: int) -> int | None:
        """Return the second from which `count` of them are free at once, as long as nobody takes them; None: never."""
        return now_s if self.free >= count else free_at_s(ends=self.ends, needed=count - self.free)


def machines_at_s(machines: Iterable[Machine], *, count: int, nodes: int, now_s: int) -> int | None:
    """Return the second by which `nodes` machines have `count` GPUs free each; None: never so many.

    GPUs that come free one here and one there make no room for a request that needs several on one machine.
    """
    found = (machine.has_free_at_s(count, now_s=now_s) for machine in machines)
    moments = sorted(moment for moment in found if moment is not None)
    return moments[nodes - 1] if len(moments) >= nodes else None
