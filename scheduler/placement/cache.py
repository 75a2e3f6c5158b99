"""Scores of every class on every host, kept from one decision to the next: only hosts that changed are rated again.

Changed hosts stand in a ring, the dirty log; a class remembers how far it has read. A class that was away for longer
than the ring is long, or never came, is cold and rated on all hosts. The 512 classes used last are kept. Requests that
differ in memory only are one class: memory is looked at when a host is chosen, and no score knows of it.
"""

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

from scheduler.placement import kernels
from scheduler.placement.demand import Demand, cpu_ratio
from scheduler.placement.pool import (
    ALL_CPU,
    CHANGED,
    CPU,
    GPUS,
    IDLE,
    LEASES,
    MEMORY,
    RATIO,
    REST_IMAGES,
    STATE,
    TIE,
    WHOLE_GPU,
    Arrays,
    Ints,
    Shape,
    change,
    mixed,
)
from scheduler.placement.score import INFEASIBLE, Weights, feasible, has_room, rate, request_ratio
from scheduler.placement.tables import flatten

CLASSES = 512
SHORTEST_RING = 4096
NEVER = -2  # no host changes at this place of the log
Seat = tuple[int, tuple[int, ...]]  # a host and its GPUs


class ScoreCache:
    """Best host for a shape over one pool, in numpy: the reference. All changes of the pool go through `put`."""

    def __init__(self, arrays: Arrays, demand: Demand, weights: Weights) -> None:
        self._arrays = arrays
        # Untouched rows of these cost no memory: the system gives pages when they are first written.
        self._scores = np.empty((CLASSES, arrays.hosts), np.int64)
        self._rests = np.empty((CLASSES, arrays.hosts), np.int16)
        # Reading a log longer than there are hosts would cost more than rating all of them.
        self._ring = max(SHORTEST_RING, arrays.hosts)
        self._log = np.zeros(self._ring + 1, np.int64)  # the last element counts all changes
        # What hosts are worth as they stand to requests without and with GPUs, and after which change that was.
        self._worth, self._worth_of = np.zeros((2, arrays.hosts), np.int64), np.zeros((2, arrays.hosts), np.int64)
        arrays.rows[:, CHANGED] = -1
        self.expect(demand, weights)

    def expect(self, demand: Demand, weights: Weights) -> None:
        """Rate by another demand or other weights from now on; every class becomes cold."""
        self._demand, self._weights = demand, weights
        self._arrays.rows[:, RATIO] = cpu_ratio(self._arrays, demand)
        self._slots: OrderedDict[Shape, int] = OrderedDict()
        self._cursors = [-1] * CLASSES
        self._worth_of[:] = NEVER

    def put(self, host: int, gpus: Sequence[int], shape: Shape, sign: int) -> None:
        """Take (sign 1) or give back (-1) what a request has on a host."""
        change(self._arrays, host, gpus, sign, shape)
        end = int(self._log[-1])
        self._log[end % self._ring] = host
        self._log[-1] = end + 1
        self._arrays.rows[host, CHANGED] = end

    def take(self, shape: Shape, kept_gpus: int = 0) -> Seat | int:
        """Take the best host for a shape; return it, or NO_ROOM or KEPT (see `kernels.place`)."""
        bare = Shape(shape.cpu_milli, 0, shape.gpu_milli, shape.gpus, shape.models)
        slot = self._slot(bare)
        self._rescore(bare, slot)
        scores = self._scores[slot]
        host = self._first(scores)
        if host >= 0 and self._arrays.rows[host, MEMORY] < shape.memory_mib:
            has_memory = self._arrays.rows[:, MEMORY] >= shape.memory_mib
            host = self._first(np.where(has_memory, scores, INFEASIBLE))
        if host < 0:
            return kernels.NO_ROOM
        row = self._arrays.rows[host]
        if kept_gpus and row[LEASES] == 0 and row[GPUS] == kept_gpus:
            return kernels.KEPT
        return self._sit(host, int(self._rests[slot, host]), shape)

    def take_whole(self, shape: Shape, host: int) -> Seat:
        """Take whole GPUs of a certain host, which must have them."""
        return self._sit(host, WHOLE_GPU, shape)

    def _first(self, scores: Ints) -> int:
        """Return the host with the highest score that comes first among equals, or -1 if none has room."""
        if not len(scores):
            return -1
        highest = scores[scores.argmax()]
        if highest == INFEASIBLE:
            return -1
        ties = (scores == highest).nonzero()[0]
        return int(ties[0]) if len(ties) == 1 else _first_by_ties(self._arrays.rows, ties)

    def _sit(self, host: int, rest: int, shape: Shape) -> Seat:
        """Take the first GPUs of a host of which so much is free."""
        free = self._arrays.free[host].tolist()
        gpus = tuple([gpu for gpu, left in enumerate(free) if left == rest][: shape.gpus])
        self.put(host, gpus, shape, 1)
        return host, gpus

    def _slot(self, shape: Shape) -> int:
        """Return where the scores of a class are; shape: without memory."""
        slot = self._slots.get(shape)
        if slot is not None:
            self._slots.move_to_end(shape)
            return slot
        slot = len(self._slots) if len(self._slots) < CLASSES else self._slots.popitem(last=False)[1]
        self._slots[shape] = slot
        self._begin(slot, shape)
        return slot

    def _begin(self, slot: int, shape: Shape) -> None:
        self._cursors[slot] = -1

    def _rescore(self, shape: Shape, slot: int) -> None:
        cursor, end, rows = self._cursors[slot], int(self._log[-1]), self._arrays.rows
        self._cursors[slot] = end
        if cursor < 0 or end - cursor > self._ring:
            self._rescore_all(shape, slot)
            return
        if cursor == end:
            return
        positions = np.arange(cursor, end)
        hosts = self._log[:-1].take(positions, mode="wrap")
        self._scores[slot, hosts] = INFEASIBLE
        changed = rows.take(hosts, axis=0)
        able = has_room(changed, shape)
        able &= changed[:, CHANGED] == positions  # a host that changed again stands further on
        chosen = able.nonzero()[0]
        if len(chosen):
            hosts = hosts.take(chosen)
            self._write(slot, hosts, *self._rate(shape, hosts, changed.take(chosen, axis=0)))

    def _rescore_all(self, shape: Shape, slot: int) -> None:
        """Rate a cold class once per distinct state, not once per host: hosts in one state have one score."""
        rows = self._arrays.rows
        self._scores[slot] = INFEASIBLE
        hosts = feasible(rows, shape)
        state = np.zeros(len(hosts), np.int64)
        for column in (STATE, CPU, ALL_CPU):
            state = mixed(state ^ rows[hosts, column])
        state ^= rows[hosts, LEASES] == 0
        _, first, same = np.unique(state, return_index=True, return_inverse=True)
        scores, rests = self._rate(shape, hosts[first], rows[hosts[first]])
        self._write(slot, hosts, scores[same], rests[same])

    def _rate(self, shape: Shape, hosts: Ints, rows: Ints) -> tuple[Ints, Ints]:
        """Rate hosts that have room, with what is known of them since they changed last; rows: theirs."""
        kind = 1 if shape.gpus else 0
        worth, known = self._worth[kind].take(hosts), self._worth_of[kind].take(hosts)
        unknown = (known != rows[:, CHANGED]).nonzero()[0]
        free = self._arrays.free.take(hosts, axis=0)
        rated = rate(self._weights.of(shape), self._demand, rows, free, shape, worth, unknown)
        if len(unknown):
            fresh = hosts.take(unknown)
            self._worth[kind, fresh] = worth.take(unknown)
            self._worth_of[kind, fresh] = rows[:, CHANGED].take(unknown)
        return rated

    def _write(self, slot: int, hosts: Ints, scores: Ints, rests: Ints) -> None:
        self._scores[slot, hosts] = scores
        self._rests[slot, hosts] = rests


class CompiledCache(ScoreCache):
    """The same, in compiled loops."""

    def __init__(self, arrays: Arrays, demand: Demand, weights: Weights) -> None:
        self._heads = np.empty((CLASSES, -(-arrays.hosts // kernels.BLOCK)), np.int64)
        self._classes = np.zeros((CLASSES, kernels.CLASS_COLUMNS), np.int64)
        self._views: list[tuple[Ints, ...]] = []
        self._seats: dict[int, tuple[int, ...]] = {0: ()}  # GPUs by bit mask
        super().__init__(arrays, demand, weights)

    def expect(self, demand: Demand, weights: Weights) -> None:
        super().expect(demand, weights)
        self._flat = flatten(demand, weights)
        needs, width = demand.quotients.shape[1], self._arrays.free.shape[1]
        self._scratch = np.zeros(needs + width + 2 * self._arrays.hosts + 1, np.int64)
        kernels.set_before(self._flat, self._arrays.rows, self._arrays.free, self._scratch)

    def put(self, host: int, gpus: Sequence[int], shape: Shape, sign: int) -> None:
        mask = 0
        for gpu in gpus:
            mask |= 1 << gpu
        kernels.change(
            self._flat, self._arrays.rows, self._arrays.free, REST_IMAGES, self._log, self._scratch, host, mask, sign,
            shape.cpu_milli, shape.memory_mib, shape.gpu_milli,
        )  # fmt: skip

    def take(self, shape: Shape, kept_gpus: int = 0) -> Seat | int:
        slot = self._slot(Shape(shape.cpu_milli, 0, shape.gpu_milli, shape.gpus, shape.models))
        numbers, scores, rests, heads = self._views[slot]
        host, mask = kernels.place(
            self._flat, self._arrays.rows, self._arrays.free, REST_IMAGES, self._log, self._scratch, numbers,
            shape.memory_mib, scores, rests, heads, kept_gpus,
        )  # fmt: skip
        if host < 0:
            return host
        gpus = self._seats.get(mask)
        if gpus is None:
            gpus = self._seats[mask] = tuple(gpu for gpu in range(mask.bit_length()) if mask >> gpu & 1)
        return host, gpus

    def _begin(self, slot: int, shape: Shape) -> None:
        self._classes[slot] = self._numbers(shape)
        views = (self._classes[slot], self._scores[slot], self._rests[slot], self._heads[slot])
        if slot == len(self._views):
            self._views.append(views)

    def _numbers(self, shape: Shape) -> Ints:
        ratio = request_ratio(self._demand, shape) if shape.gpus else 0
        numbers = (shape.cpu_milli, shape.gpu_milli, shape.gpus, shape.models, ratio, -1)
        return np.array(numbers, np.int64)


def _first_by_ties(rows: Ints, hosts: Ints) -> int:
    """Return the one of these hosts that comes first: the order of `kernels._comes_first`, in numpy."""
    order = np.lexsort(tuple(rows[hosts, column] for column in (TIE, STATE, MEMORY, CPU, IDLE)))
    return int(hosts[order[0]])
