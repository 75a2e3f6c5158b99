"""Equal asks in a row, over a pool of which few hosts change between two of them: only those are judged again.

The answers are those of `decide`: the same candidates, compared by the same ranks.
"""

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from scheduler.placement.decide import option_holders, placement_of, rank_of
from scheduler.placement.judging import Candidate, Judge
from scheduler.placement.snapshot import Ask, HostView, Key, Placement


def can_repeat(ask: Ask) -> bool:
    """Tell whether an ask can be answered here: one alternative, on one machine."""
    return len(ask.options) == 1 and ask.options[0].nodes == 1


class Repeated:
    """One ask over one pool: its candidates, best first."""

    def __init__(self, ask: Ask, hosts: Iterable[HostView], judge: Judge) -> None:
        self._ask, self._judge = ask, judge
        self._candidates: dict[Key, Candidate] = {}
        self._prices: Counter[int] = Counter()
        self._heap: list[tuple[tuple[int, ...], int, Candidate]] = []
        self._cheapest = -1
        self._pushed = 0
        self._look(option_holders(hosts, ask))

    def decide(
        self, hosts: Mapping[Any, HostView], changed: Iterable[Any], *, freed: bool = True
    ) -> Placement | None:  # fmt: skip
        """Return the placement, or None where nothing has room; changed: keys of hosts that are other objects now.

        freed=False: something was taken on each of those, and nothing given back. Who had no room has none then.
        """
        keys = set(changed) if freed else self._candidates.keys() & set(changed)
        for key in keys:
            before = self._candidates.pop(key, None)
            if before is not None:
                self._prices[before.room.price_micros] -= 1
        self._look(option_holders((hosts[key] for key in keys), self._ask))
        if not self._candidates:
            return None
        cheapest = min(price for price, count in self._prices.items() if count)
        if cheapest != self._cheapest:
            self._cheapest, self._heap = cheapest, []
            for candidate in self._candidates.values():
                self._push(candidate)
        while self._candidates.get(self._heap[0][2].room.host.key) is not self._heap[0][2]:
            heapq.heappop(self._heap)
        return placement_of([self._heap[0][2]], 0, len(self._candidates))

    def _look(self, hosts: list[HostView]) -> None:
        for host, verdict in zip(hosts, self._judge(hosts, self._ask.options[0], self._ask), strict=True):
            if isinstance(verdict, Candidate):
                self._candidates[host.key] = verdict
                self._prices[verdict.room.price_micros] += 1
                self._push(verdict)

    def _push(self, candidate: Candidate) -> None:
        self._pushed += 1
        heapq.heappush(self._heap, (rank_of(candidate, self._cheapest), self._pushed, candidate))
