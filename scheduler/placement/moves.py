"""Make room for a request that was refused, by moving a few small leases off one host.

All destinations are found first, on the live arrays but with the way back at hand: either every victim has a new place
and the request has its host, or nothing has changed.
"""

from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np

from scheduler.placement.live import Lease, Live
from scheduler.placement.pool import (
    ALL_CPU,
    CPU,
    GPUS,
    IDLE,
    MEMORY,
    MODEL,
    STATE,
    TIE,
    WHOLE_GPU,
    Ints,
    Shape,
)

HOSTS_TRIED = 32
SAVED_MILLI = 100_000


@dataclass(frozen=True, slots=True)
class Move:
    """A lease that went from one node to another; `gpus` are its GPUs on the new one."""

    key: Hashable
    from_node: str
    to_node: str
    gpus: tuple[int, ...]


class Mover:
    """Moves at most `most` leases for one request, each lease once in its life, one GPU or less each.

    allowance_bp: this part (1/10,000) of all GPU milli offered may be moved; what is not used is saved, but not beyond
    SAVED_MILLI, so that a quiet time does not pay for a storm of moves.
    """

    def __init__(self, most: int, allowance_bp: int) -> None:
        self._most, self._allowance_bp = most, allowance_bp
        self._moved_once: set[Hashable] = set()
        self._allowance = 0  # in 1/10,000 of a milli
        self.moved_milli = 0

    def offered(self, milli: int) -> None:
        """Count an arrival: its share of the allowance may be moved from now on."""
        self._allowance = min(self._allowance + milli * self._allowance_bp, SAVED_MILLI * 10_000)

    def forget(self, key: Hashable) -> None:
        """Note that a lease is over."""
        self._moved_once.discard(key)

    def make_room(self, live: Live, key: Hashable, shape: Shape) -> tuple[Lease, tuple[Move, ...]] | None:
        """Seat a request for whole GPUs by moving others, or change nothing and return None."""
        if not shape.whole:
            return None
        budget = self._allowance // 10_000
        for host in self._cheapest_hosts(live, shape, budget):
            victims = self._victims(live, host, shape)
            if victims is None or sum(lease.shape.milli for lease in victims) > budget:
                continue
            done = self._try(live, key, shape, host, victims)
            if done is not None:
                return done
        return None

    def _cheapest_hosts(self, live: Live, shape: Shape, budget: int) -> list[int]:
        """Hosts that could hold the request if emptied enough, least GPU to move first (a bound from below)."""
        rows, free = live.arrays.rows, live.arrays.free
        able = (rows[:, GPUS] >= shape.gpus) & (rows[:, ALL_CPU] >= shape.cpu_milli)
        able &= (shape.models >> rows[:, MODEL]) & 1 == 1
        used = np.where(np.arange(free.shape[1]) < rows[:, GPUS, None], WHOLE_GPU - free, WHOLE_GPU + 1)
        least = np.sort(used, axis=1)[:, : shape.gpus].sum(axis=1)
        hosts: Ints = np.flatnonzero(able & (least <= budget) & (least < shape.milli))
        order = np.lexsort((*(rows[hosts, column] for column in (TIE, STATE, CPU, IDLE)), least[hosts]))
        return [int(host) for host in hosts[order][:HOSTS_TRIED]]

    def _victims(self, live: Live, host: int, shape: Shape) -> list[Lease] | None:
        """Return the leases to move off this host: those of the emptiest GPUs, then more until CPU and memory fit."""
        row, free = live.arrays.rows[host], live.arrays.free[host].tolist()
        leases = live.on_host[host]
        movable = {k for k, lease in leases.items() if lease.shape.gpus <= 1 and k not in self._moved_once}
        by_gpu: dict[int, list[Lease]] = {gpu: [] for gpu in range(int(row[GPUS]))}
        for lease in leases.values():
            for gpu in lease.gpus:
                by_gpu[gpu].append(lease)
        clearable = sorted(
            (WHOLE_GPU - free[gpu], len(held), gpu)
            for gpu, held in by_gpu.items()
            if all(lease.key in movable for lease in held)
        )
        if len(clearable) < shape.gpus:
            return None
        victims = {lease.key: lease for _, _, gpu in clearable[: shape.gpus] for lease in by_gpu[gpu]}
        spare = sorted((lease for k, lease in leases.items() if k in movable and k not in victims), key=_by_size)
        while True:
            cpu = int(row[CPU]) + sum(lease.shape.cpu_milli for lease in victims.values())
            memory = int(row[MEMORY]) + sum(lease.shape.memory_mib for lease in victims.values())
            if len(victims) > self._most:
                return None
            if cpu >= shape.cpu_milli and memory >= shape.memory_mib:
                return sorted(victims.values(), key=_by_size, reverse=True)
            if not spare:
                return None
            more = min(spare, key=lambda lease: (lease.shape.milli, -lease.shape.cpu_milli))
            spare.remove(more)
            victims[more.key] = more

    def _try(
        self, live: Live, key: Hashable, shape: Shape, host: int, victims: list[Lease]
    ) -> tuple[Lease, tuple[Move, ...]] | None:
        for lease in victims:
            live.give(lease.key)
        guest = live.take_whole(key, shape, host)
        moved: list[Lease] = []
        for lease in victims:
            found = live.take(lease.key, lease.shape)
            if isinstance(found, int):
                break
            moved.append(found)
        if len(moved) < len(victims):
            for lease in (*moved, guest):
                live.give(lease.key)
            for lease in victims:
                live.put(lease)
            return None
        self._moved_once.update(lease.key for lease in victims)
        moved_milli = sum(lease.shape.milli for lease in victims)
        self.moved_milli += moved_milli
        self._allowance -= moved_milli * 10_000
        return guest, tuple(Move(new.key, live.nodes[host], live.nodes[new.host], new.gpus) for new in moved)


def _by_size(lease: Lease) -> tuple[int, int, int]:
    return lease.shape.milli, lease.shape.cpu_milli, lease.shape.memory_mib
