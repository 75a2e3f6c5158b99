"""The one order in which waiting leases are served; pure, and in integers only.

First the term: reserved, on demand, spot. Within it the fair share of the lease's organization, in milliseconds of
waiting: what it has used lately (price-weighted, decayed with a half-life of a day) and what it would use in the next
hour with all that stands before this lease, over its weight; the organization that used most lies a day behind one that
used nothing. Each second of waiting takes a second off. So whoever has waited a day longer than another comes first,
whatever the two have used, and nobody starves. Then the time of the request, then the id.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

HALF_LIFE_S = 86_400
DAY_MS = 86_400_000
HOURS_OF_A_DAY = 24
TERMS = {"reserved": 0, "on_demand": 1, "spot": 2}
_ONE = 1 << 60
_BITS = 40


@dataclass(frozen=True, slots=True)
class Waiting:
    """What the order looks at. hour_micros: what one hour of it may cost; requested_ms: since the epoch."""

    key: Any  # comparable: the last that decides
    organization: Any
    currency: str
    term: str
    requested_ms: int
    hour_micros: int


@dataclass(frozen=True, slots=True)
class Share:
    """What an organization has used in one currency, in micro-units, decayed until now; weight: its part, >= 1."""

    used_micros: int = 0
    weight: int = 1


def _half_lives() -> tuple[int, ...]:
    """Return, for each bit of a number of seconds, what is left after 2 ** bit seconds, as a part of _ONE."""
    # 2 ** (-1 / 86400) is found by bisection: x ** 86400 = 1/2 in fixed point, rounded down at each step.
    low, high = 0, _ONE
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _power(middle, HALF_LIFE_S) <= _ONE // 2 else (low, middle)
    left, found = low, []
    for _ in range(_BITS):
        found.append(left)
        left = left * left // _ONE
    return tuple(found)


def _power(base: int, exponent: int) -> int:
    result = _ONE
    while exponent:
        if exponent & 1:
            result = result * base // _ONE
        base = base * base // _ONE
        exponent >>= 1
    return result


_LEFT = _half_lives()


def decayed(micros: int, seconds: int) -> int:
    """Return what counts of an amount after so many seconds: half of it after HALF_LIFE_S."""
    for bit in range(_BITS):
        if seconds >> bit & 1:
            micros = micros * _LEFT[bit] // _ONE
    return micros if seconds < 1 << _BITS else 0


def in_order(
    waiting: Iterable[Waiting], shares: Mapping[tuple[Any, str], Share], *, now_ms: int
) -> list[Waiting]:  # fmt: skip
    """Return the leases in the order of service. shares: by organization and currency; who is not in it used nothing.

    The order of `waiting` does not matter.
    """
    rows = sorted(waiting, key=lambda row: (TERMS[row.term], row.requested_ms, row.key))
    scale = _scale(rows, shares)
    ahead: dict[tuple[Any, str], int] = {}
    ranked = []
    for row in rows:
        who = (row.organization, row.currency)
        share = shares.get(who, Share())
        before = ahead.get(who, 0)
        ahead[who] = before + row.hour_micros
        behind_ms = min(DAY_MS, (share.used_micros + before) * DAY_MS // (share.weight * scale[row.currency]))
        ranked.append(((TERMS[row.term], behind_ms + row.requested_ms - now_ms, row.requested_ms, row.key), row))
    ranked.sort(key=lambda item: item[0])
    return [row for _, row in ranked]


def _scale(rows: Iterable[Waiting], shares: Mapping[tuple[Any, str], Share]) -> dict[str, int]:
    """Return by currency what puts an organization a day behind: the most that one of those who wait has used, over
    its weight; and at least a day of the dearest lease, so that the first minutes of an idle pool weigh little."""
    scale: dict[str, int] = {}
    for row in rows:
        share = shares.get((row.organization, row.currency), Share())
        used = max(share.used_micros, row.hour_micros * HOURS_OF_A_DAY) // share.weight
        scale[row.currency] = max(scale.get(row.currency, 1), used)
    return scale
