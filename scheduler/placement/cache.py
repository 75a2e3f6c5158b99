"""Scores of every class on every host, kept from one decision to the next: only hosts that changed are rated again.

Changed hosts stand in a ring, the dirty log; a class remembers how far it has read. A class that was away for longer
than the ring is long, or never came, is cold and rated on all hosts. The 512 classes used last are kept.
"""

from collections import OrderedDict

import numpy as np

from scheduler.placement import kernels
from scheduler.placement.demand import Demand, cpu_ratio
from scheduler.placement.pool import ALL_CPU, CPU, IDLE, LEASES, MEMORY, STATE, TIE, Arrays, Ints, Shape, mixed
from scheduler.placement.score import INFEASIBLE, Weights, feasible, rate, request_ratio

CLASSES = 512
SHORTEST_RING = 4096


class ScoreCache:
    """Best host for a shape over one pool. Call `touch` after every change of a host."""

    def __init__(self, arrays: Arrays, demand: Demand, weights: Weights, *, compiled: bool) -> None:
        self._arrays, self._compiled = arrays, compiled
        blocks = -(-arrays.hosts // kernels.BLOCK)
        # Untouched rows of these cost no memory: the system gives pages when they are first written.
        self._scores = np.empty((CLASSES, arrays.hosts), np.int64)
        self._rests = np.empty((CLASSES, arrays.hosts), np.int16)
        self._blocks = np.empty((CLASSES, blocks), np.int64)
        # Reading a log longer than there are hosts would cost more than rating all of them.
        self._ring = max(SHORTEST_RING, arrays.hosts)
        self._log = np.zeros(self._ring, np.int64)
        self._states = np.zeros(2 * arrays.hosts + 1, np.int64)
        self._changed = np.full(arrays.hosts, -1, np.int64)
        self._after = np.zeros(arrays.free.shape[1], np.int64)
        self._end = 0
        self.expect(demand, weights)

    def expect(self, demand: Demand, weights: Weights) -> None:
        """Rate by another demand or other weights from now on; every class becomes cold."""
        self._demand, self._weights = demand, weights
        self._ratio = cpu_ratio(self._arrays, demand)
        self._slots: OrderedDict[Shape, int] = OrderedDict()
        self._cursors = [-1] * CLASSES
        self._shapes: dict[Shape, Ints] = {}
        self._potential_tables = (
            demand.steps, demand.level, demand.usable, demand.many, demand.copy_cpu, demand.copy_need,
            demand.copy_count, demand.copy_value, demand.copy_models, demand.quotients,
        )  # fmt: skip
        self._tables = (*self._potential_tables, demand.rest, demand.cpu_per_gpu, demand.scarcity, self._ratio)
        self._fits = np.zeros(demand.quotients.shape[1], np.int64)
        self._before = [(w, np.zeros(self._arrays.hosts, np.int64)) for w in (weights.gpu, weights.cpu_only)]
        if self._compiled:
            self._set_before(0, self._arrays.hosts)

    def touch(self, host: int) -> None:
        """Note that a host changed."""
        self._log[self._end % self._ring] = host
        self._changed[host] = self._end
        self._end += 1
        if self._compiled:
            self._set_before(host, host + 1)

    def best(self, shape: Shape) -> tuple[int, int] | None:
        """Return (host, rest of the GPU to take; see `score.rate`) of the best host with room, or None."""
        slot = self._slot(shape)
        cursor = self._cursors[slot]
        if self._end - cursor > self._ring:
            cursor = -1
        self._cursors[slot] = self._end
        scores = self._scores[slot]
        if self._compiled:
            host = self._best_compiled(shape, slot, cursor)
        else:
            self._rescore(shape, slot, cursor)
            highest = scores.max(initial=INFEASIBLE)
            host = -1
            if highest > INFEASIBLE:
                ties = np.flatnonzero(scores == highest)
                host = int(ties[0]) if len(ties) == 1 else _first_by_ties(self._arrays.rows, ties)
        return None if host < 0 else (host, int(self._rests[slot, host]))

    def _slot(self, shape: Shape) -> int:
        slot = self._slots.get(shape)
        if slot is not None:
            self._slots.move_to_end(shape)
            return slot
        slot = len(self._slots) if len(self._slots) < CLASSES else self._slots.popitem(last=False)[1]
        self._slots[shape] = slot
        self._cursors[slot] = -1
        return slot

    def _set_before(self, first: int, last: int) -> None:
        for weights, before in self._before:
            kernels.set_before(
                weights, *self._potential_tables, self._demand.cpu_per_gpu, self._arrays.rows, self._arrays.free,
                first, last, before, self._fits,
            )  # fmt: skip

    def _best_compiled(self, shape: Shape, slot: int, cursor: int) -> int:
        flat = self._shapes.get(shape)
        if flat is None:
            ratio = request_ratio(self._demand, shape) if shape.gpus else 0
            numbers = (shape.cpu_milli, shape.memory_mib, shape.gpu_milli, shape.gpus, shape.models, ratio)
            flat = self._shapes[shape] = np.array(numbers, np.int64)
        if cursor < 0:
            self._scores[slot] = INFEASIBLE
            self._blocks[slot] = INFEASIBLE
        weights, before = self._before[0 if shape.gpus else 1]
        return kernels.best_host(
            weights, *self._tables, self._arrays.rows, self._arrays.free, before, flat,
            self._after, self._fits, self._log, self._changed, cursor, self._end, self._scores[slot],
            self._rests[slot], self._blocks[slot], self._states,
        )  # fmt: skip

    def _rescore(self, shape: Shape, slot: int, cursor: int) -> None:
        rows, free = self._arrays.rows, self._arrays.free
        if cursor < 0:
            self._rescore_all(shape, slot)
            return
        positions = np.arange(cursor, self._end)
        hosts = self._log[positions % self._ring]
        hosts = hosts[self._changed[hosts] == positions]
        self._scores[slot, hosts] = INFEASIBLE
        hosts = hosts[feasible(rows[hosts], shape)]
        self._write(shape, slot, hosts, hosts, np.arange(len(hosts)), rows, free)

    def _rescore_all(self, shape: Shape, slot: int) -> None:
        """Rate a cold class once per distinct state, not once per host: hosts in one state have one score."""
        rows, free = self._arrays.rows, self._arrays.free
        self._scores[slot] = INFEASIBLE
        hosts = feasible(rows, shape)
        state = np.zeros(len(hosts), np.int64)
        for column in (STATE, CPU, ALL_CPU):
            state = mixed(state ^ rows[hosts, column])
        state ^= rows[hosts, LEASES] == 0
        _, first, same = np.unique(state, return_index=True, return_inverse=True)
        self._write(shape, slot, hosts, hosts[first], same, rows, free)

    def _write(self, shape: Shape, slot: int, hosts: Ints, rated: Ints, same: Ints, rows: Ints, free: Ints) -> None:
        weights = self._weights.of(shape)
        scores, rests = rate(weights, self._demand, self._ratio[rated], rows[rated], free[rated], shape)
        self._scores[slot, hosts] = scores[same]
        self._rests[slot, hosts] = rests[same]


def _first_by_ties(rows: Ints, hosts: Ints) -> int:
    """Return the one of these hosts that comes first: the order of `kernels._comes_first`, in numpy."""
    order = np.lexsort(tuple(rows[hosts, column] for column in (TIE, STATE, MEMORY, CPU, IDLE)))
    return int(hosts[order[0]])
