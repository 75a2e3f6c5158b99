"""Where a part of a GPU may lie: MIG profiles at their legal starts, fractions as buddies.

The legal (start, size) pairs are facts of the hardware which NVML reports (nvmlDeviceGetGpuInstancePossiblePlacements);
sizes are memory slices, of which a device has eight here (an agent scales a device with four).
"""

from collections.abc import Mapping
from functools import lru_cache

from scheduler.placement.snapshot import UNITS, units_mask

Placements = Mapping[str, tuple[tuple[int, int], ...]]
Frozen = tuple[tuple[str, tuple[tuple[int, int], ...]], ...]

# By compute slices of the profile's name, on devices with seven compute slices (A100, H100 and their kin).
# Source: NVIDIA MIG user guide, placements of A100 and H100.
SEVEN_SLICE_STARTS: Mapping[str, tuple[tuple[int, int], ...]] = {
    "1g": tuple((start, 1) for start in range(7)),
    "2g": ((0, 2), (2, 2), (4, 2)),
    "3g": ((0, 4), (4, 4)),
    "4g": ((0, 4),),
    "7g": ((0, 8),),
}


def legal_starts(free: int, placements: tuple[tuple[int, int], ...]) -> list[tuple[int, int]]:
    """Return the (start, size) pairs whose units are all in the mask `free`."""
    return [(start, size) for start, size in placements if units_mask(start, start + size) & ~free == 0]


@lru_cache(maxsize=4096)
def _value(free: int, table: Frozen) -> int:
    """Worth of a mask of free slices: memory slices of every profile at every start that is still legal."""
    return sum(size for _, places in table for _, size in legal_starts(free, places))


def best_start(free: int, profile: str, table: Placements) -> tuple[int, int] | None:
    """Return the legal (start, size) that leaves the most value, or None. Among equals the highest start.

    So the first 1g goes to slice 6, which no 2g and no 4g could use.
    """
    frozen = tuple(sorted(table.items()))
    legal = legal_starts(free, table.get(profile, ()))
    return max(legal, key=lambda p: (_value(free & ~units_mask(p[0], p[0] + p[1]), frozen), p[0]), default=None)


def best_buddy(free: int, size: int) -> int | None:
    """Return the aligned start of `size` free units inside the smallest free buddy block, or None."""
    best: tuple[int, int] | None = None
    for start in range(0, UNITS, size):
        if units_mask(start, start + size) & ~free:
            continue
        block = size
        while block < UNITS:
            wider = start - start % (block * 2)
            if units_mask(wider, wider + block * 2) & ~free:
                break
            block *= 2
        best = min(best or (block, start), (block, start))
    return best[1] if best else None
