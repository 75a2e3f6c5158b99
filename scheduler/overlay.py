"""The pools of one pass: what is taken or kept on one of them is taken on all, since their devices are the same."""

from datetime import datetime

from scheduler import pool as pools
from scheduler.pool import Kept, Pool


class Overlay:
    """Pools by price term and currency, loaded when they are needed, with all that is kept laid over each of them."""

    def __init__(self, at: datetime) -> None:
        self._at = at
        self._pools: dict[tuple[str, str], Pool] = {}
        self._kept: dict[str, list[Kept]] = {}

    def pool(self, term: str, currency: str) -> Pool:
        key = (term, currency)
        if key not in self._pools:
            pool = self._pools[key] = pools.load(term=term, currency=currency, at=self._at)
            for kept in self._kept.get(currency, ()):
                if _is_there(pool, kept):
                    pool.keep(kept)
        return self._pools[key]

    def keep(self, kept: Kept, currency: str) -> None:
        self._kept.setdefault(currency, []).append(kept)
        for pool in self._of(currency):
            if _is_there(pool, kept):
                pool.keep(kept)

    def give_back(self, kept: Kept, currency: str) -> None:
        self._kept[currency].remove(kept)
        for pool in self._of(currency):
            if _is_there(pool, kept):
                pool.give_back(kept)

    def keeps(self, kept: Kept, currency: str) -> bool:
        return kept in self._kept.get(currency, ())

    def reconsider(self, currency: str) -> None:
        for pool in self._of(currency):
            pool.reconsider()

    @property
    def good_until_s(self) -> int:
        """Before this second nothing begins or ends that was known when the pools were loaded."""
        return min((pool.good_until_s for pool in self._pools.values()), default=0)

    @property
    def decisions(self) -> int:
        """How often the engine was asked."""
        return sum(pool.decisions for pool in self._pools.values())

    def _of(self, currency: str) -> list[Pool]:
        return [pool for (_, of), pool in self._pools.items() if of == currency]


def _is_there(pool: Pool, kept: Kept) -> bool:
    return all(str(member.host) in pool.hosts for member in kept.placement.members)
