"""How long what runs may go on, judged by what has ended: pure, and in whole seconds."""

from collections.abc import Iterable, Sequence

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
