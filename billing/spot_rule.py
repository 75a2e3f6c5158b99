"""The rule by which spot prices move, pure and published: bounded steps towards a target utilisation.

Once in each slot of ten minutes, per model, region, tier and notice. A price moves by a whole number of percent, at
most MOST_STEP_PERCENT, in proportion to how far the use of the GPUs is from the target: the most at 0 % and at 100 %,
nothing within a percent's worth of the target. It stays between a floor and a ceiling, both a part of the on-demand
price; a longer notice has higher ones, since it is worth more.
"""

from collections.abc import Mapping

NAME = "spot-1"  # named in the cause of each version that it moved; another rule has another name
SLOT_S = 600
TARGET_BP = 8_000
ALL_BP = 10_000
MOST_STEP_PERCENT = 10
# Of the on-demand price in force, in percent, by notice in seconds: (floor, ceiling).
BOUNDS_PERCENT: Mapping[int, tuple[int, int]] = {0: (20, 90), 120: (22, 95), 600: (25, 100)}


def slot_of(at_s: int) -> int:
    """Return the number of the slot in which a second (since 1970) lies."""
    return at_s // SLOT_S


def step_percent(used_bp: int) -> int:
    """Return by how many percent a price moves when so much of the GPUs is in use, in 1/10,000."""
    over = min(max(used_bp, 0), ALL_BP) - TARGET_BP
    widest = ALL_BP - TARGET_BP if over > 0 else TARGET_BP
    step = abs(over) * MOST_STEP_PERCENT // widest
    return step if over > 0 else -step


def bounds(*, on_demand_micros: int, notice_s: int) -> tuple[int, int]:
    """Return (floor, ceiling) of a spot price in micro-units; the widest for a notice that has none of its own."""
    floor, ceiling = BOUNDS_PERCENT.get(notice_s, (20, 100))
    return on_demand_micros * floor // 100, on_demand_micros * ceiling // 100


def next_price(*, price_micros: int, used_bp: int, floor_micros: int, ceiling_micros: int) -> int:
    """Return the next price: never further from the last than MOST_STEP_PERCENT of it, nor beyond the bounds.

    A last price outside the bounds (the list has moved) comes back in steps as small as any other.
    """
    most = price_micros * MOST_STEP_PERCENT // 100
    step = step_percent(used_bp)
    moved = price_micros * abs(step) // 100
    wanted = price_micros + (moved if step > 0 else -moved)
    inside = min(max(wanted, floor_micros), ceiling_micros)
    return min(max(inside, price_micros - most), price_micros + most)


def published() -> dict[str, object]:
    """Return the rule's figures, for the price door."""
    return {
        "name": NAME,
        "every_s": SLOT_S,
        "target_utilisation_percent": TARGET_BP // 100,
        "most_step_percent": MOST_STEP_PERCENT,
        "bounds_percent_of_on_demand": [
            {"notice_s": notice_s, "floor": floor, "ceiling": ceiling}
            for notice_s, (floor, ceiling) in BOUNDS_PERCENT.items()
        ],
    }
