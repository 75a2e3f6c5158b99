"""How good is it to put a request on a host? The reference, in numpy: all hosts of a list at once, integers only.

A score is what the host gains in a potential (unusable rests weigh against it), less what makes the host worth keeping
as it is. Every term is in micro-GPU, every weight in thousandths, so 1_000 x 1_000_000 is "one GPU of difference".
`kernels.py` computes the same numbers in compiled loops; a test holds the two together.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scheduler.placement.demand import CPU_BITS, PPM, Demand
from scheduler.placement.pool import (
    CPU,
    GPUS,
    IDLE,
    LEASES,
    MEMORY,
    MODEL,
    RATIO,
    WHOLE,
    WHOLE_GPU,
    WIDEST,
    Ints,
    Shape,
)

TERMS = (
    "unusable", "uncopied", "cpu_short", "cpu_spare", "idle_gpu", "idle_cpu", "whole_free", "affinity", "opens_empty",
    "rest", "left", "scarcity",
)  # fmt: skip
(
    UNUSABLE, UNCOPIED, CPU_SHORT, CPU_SPARE, IDLE_GPU, IDLE_CPU, WHOLE_FREE, AFFINITY, OPENS_EMPTY, REST, LEFT,
    SCARCITY,
) = range(len(TERMS))  # fmt: skip
MICRO = 1_000_000
WEIGHTS_FILE = Path(__file__).with_name("weights.json")
INFEASIBLE = -(1 << 62)
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Weights:
    """One set of weights for requests with GPUs, one for those without; in thousandths, in the order of TERMS."""

    gpu: Ints
    cpu_only: Ints

    def of(self, shape: Shape) -> Ints:
        """Return the weights for a request of this shape."""
        return self.gpu if shape.gpus else self.cpu_only


@dataclass(frozen=True, slots=True)
class Policy:
    """The tuned weights: `filling` while nothing leaves, `steady` once leases come and go.

    kept_whole_percent: how many empty hosts are kept for large requests, see `Engine._is_kept`; the second number is
    for engines that may move leases, which need fewer.
    """

    version: int
    filling: Weights
    steady: Weights
    kept_whole_percent: int
    kept_whole_percent_moving: int


@lru_cache(maxsize=4)
def load_policy(path: Path = WEIGHTS_FILE) -> Policy:
    """Read the versioned weights. Raises KeyError where a term is missing."""
    data = json.loads(path.read_text())
    return Policy(
        version=data["version"],
        filling=weights_of(data["filling"]),
        steady=weights_of(data["steady"]),
        kept_whole_percent=int(data["kept_whole_percent"]),
        kept_whole_percent_moving=int(data["kept_whole_percent_moving"]),
    )


def weights_of(data: Mapping[str, Mapping[str, int]]) -> Weights:
    """Return weights from {"gpu": {term: thousandths}, "cpu_only": {...}}."""
    gpu, cpu_only = (np.array([data[kind][term] for term in TERMS], np.int64) for kind in ("gpu", "cpu_only"))
    return Weights(gpu, cpu_only)


def feasible(rows: Ints, shape: Shape) -> Ints:
    """Return the positions of the rows that have room for the shape."""
    return np.flatnonzero(has_room(rows, shape))


def has_room(rows: Ints, shape: Shape) -> Bools:
    """Tell of each row whether it has room for the shape."""
    room: Bools = rows[:, CPU] >= shape.cpu_milli
    if shape.memory_mib:
        room &= rows[:, MEMORY] >= shape.memory_mib
    if shape.models != -1:
        room &= (shape.models >> rows[:, MODEL]) & 1 == 1
    if shape.whole:
        room &= rows[:, WHOLE] >= shape.whole
    elif shape.gpus:
        room &= rows[:, WIDEST] >= shape.gpu_milli
    return room


def potential(weights: Ints, demand: Demand, rows: Ints, free: Ints) -> Ints:
    """Return the potential of host states: how well what is idle there can still be used. At most about 0.

    `take` and `vecdot` stand here where indices and sums would do, since each call of numpy is what costs.
    """
    cpu, idle, whole, model = rows[:, CPU], rows[:, IDLE], rows[:, WHOLE], rows[:, MODEL]
    short, spare = int(weights[CPU_SHORT]), int(weights[CPU_SPARE])
    over = idle - cpu * 1000 // demand.cpu_per_gpu
    # -short x what idle GPU lacks in CPU - spare x what CPU is over: only one of them is not 0.
    total: Ints = over * (spare * 1000) - np.maximum(over, 0) * ((short + spare) * 1000)
    if weights[UNUSABLE]:
        rank = demand.steps.searchsorted(cpu, side="right") + model * demand.usable.shape[1]
        level = demand.level.take(free) + (rank * demand.usable.shape[2])[:, None]
        used = np.vecdot(free, demand.usable.ravel().take(level))
        used += WHOLE_GPU * whole * demand.many.ravel().take(rank * demand.many.shape[2] + whole)
        total -= weights[UNUSABLE] * ((idle * PPM - used) // 1000)
    if weights[UNCOPIED]:
        total -= weights[UNCOPIED] * ((idle * PPM - _copies(demand, cpu, whole, model, free)) // 1000)
    return total


def _copies(demand: Demand, cpu: Ints, whole: Ints, model: Ints, free: Ints) -> Ints:
    """Share-weighted GPU (milli x ppm) that as many copies of each class as fit would use."""
    fits = demand.quotients.take(free, axis=0).sum(axis=1) + demand.groups.take(whole, axis=0)
    fed = np.minimum(cpu, (1 << CPU_BITS) - 1)[:, None] * demand.copy_inverse
    fed += demand.copy_offset
    fed >>= 2 * CPU_BITS
    np.minimum(fits.take(demand.copy_need, axis=1), fed, out=fed)
    result: Ints = np.vecdot(fed, demand.copy_value.take(model, axis=0))
    return result


def rate(
    weights: Ints, demand: Demand, rows: Ints, free: Ints, shape: Shape, worth: Ints, unknown: Ints
) -> tuple[Ints, Ints]:
    """Return (score, chosen rest) of each row, all of which have room for the shape.

    worth: `_worth_as_is` of the rows by these weights; where it is not known (positions `unknown`) it is written. The
    chosen rest is what is free on the GPU that a fraction would go to; 1000 for whole GPUs, -1 for none.
    """
    if not len(rows):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    host, rest, after = _candidates(free, shape)
    then = rows.copy() if host is None else rows.take(host, axis=0)
    then[:, CPU] -= shape.cpu_milli
    then[:, IDLE] -= shape.milli
    then[:, WHOLE] -= shape.whole if host is None else rest == WHOLE_GPU
    if len(unknown):
        fresh, fresh_free = rows.take(unknown, axis=0), free.take(unknown, axis=0)
        both = potential(weights, demand, np.concatenate((then, fresh)), np.concatenate((after, fresh_free)))
        worth[unknown] = _worth_as_is(weights, fresh) - both[len(then) :]
        score = both[: len(then)]
    else:
        score = potential(weights, demand, then, after)
    asks = worth + _suits(weights, demand, rows, shape)
    if host is None:
        return score + asks, rest
    left = rest - shape.gpu_milli
    score += asks.take(host)
    score -= weights[REST] * (demand.rest.take(left) - demand.rest.take(rest))
    score -= weights[LEFT] * 1000 * left
    return _best_of(host, rest, score, len(rows))


def gain(weights: Ints, demand: Demand, rows: Ints, free: Ints, then: Ints, after: Ints, shape: Shape) -> Ints:
    """Return the score of turning host states (rows, free) into (then, after), before what a shared GPU adds."""
    both = potential(weights, demand, np.concatenate((then, rows)), np.concatenate((after, free)))
    worth = _worth_as_is(weights, rows) - both[len(rows) :]
    result: Ints = both[: len(rows)] + worth + _suits(weights, demand, rows, shape)
    return result


def _candidates(free: Ints, shape: Shape) -> tuple[Ints | None, Ints, Ints]:
    """Return (row, rest chosen, GPUs afterwards) of each different way to seat the shape on each row.

    The rows ascend, and in each of them the rests. None: there is one way for each row.
    """
    if shape.gpus == 0:
        return None, np.full(len(free), -1), free
    if shape.whole:
        is_whole = free == WHOLE_GPU
        taken = is_whole & (is_whole.cumsum(axis=1) <= shape.gpus)
        return None, np.full(len(free), WHOLE_GPU), np.where(taken, 0, free)
    ordered = free.copy()
    ordered.sort(axis=1)  # no score knows which of a host's GPUs is which
    fits = ordered >= shape.gpu_milli
    fits[:, 1:] &= ordered[:, 1:] != ordered[:, :-1]  # GPUs with one rest are one way
    host, gpu = fits.nonzero()
    rest, after = ordered[fits], ordered.take(host, axis=0)
    after[np.arange(len(host)), gpu] = rest - shape.gpu_milli
    return host, rest, after


def _worth_as_is(weights: Ints, rows: Ints) -> Ints:
    """The terms that look at nothing but the host before placing: what argues against touching it at all.

    `rate` takes the potential of the host as it is off this.
    """
    total: Ints = rows[:, IDLE] * (-125 * int(weights[IDLE_GPU]))
    total -= weights[IDLE_CPU] * (rows[:, CPU] * 125 // 16)
    total -= rows[:, WHOLE] * (125_000 * int(weights[WHOLE_FREE]))
    total -= (rows[:, LEASES] == 0) * (MICRO * int(weights[OPENS_EMPTY]))
    return total


def _suits(weights: Ints, demand: Demand, rows: Ints, shape: Shape) -> Ints:
    """The terms that set the host, as it is when empty, against what is asked for: its model, its CPU per GPU."""
    ratio = request_ratio(demand, shape) if shape.gpus else 1000
    total: Ints = rows[:, RATIO] * (int(weights[AFFINITY]) * ratio)
    if weights[SCARCITY] and shape.gpus:
        total -= demand.scarcity.take(rows[:, MODEL]) * (int(weights[SCARCITY]) * shape.milli)
    return total


def request_ratio(demand: Demand, shape: Shape) -> int:
    """Thousandths by which the request's CPU per GPU exceeds that of all demand (negative: it asks for less)."""
    return 1000 * (shape.cpu_milli * 1000 // demand.cpu_per_gpu) // shape.milli - 1000


def _best_of(host: Ints, rest: Ints, score: Ints, count: int) -> tuple[Ints, Ints]:
    """Keep the best candidate of each row: the highest score, then the smallest rest. Order: see `_candidates`."""
    if len(host) == count:
        return score, rest
    best = np.maximum.reduceat(score, host.searchsorted(np.arange(count)))
    winners = np.flatnonzero(score == best.take(host))[::-1]
    chosen = np.empty(count, np.int64)
    chosen[host.take(winners)] = rest.take(winners)  # the last write stays: that of the smallest rest
    return best, chosen


def empty_of(rows: Ints, gpus: int) -> int:
    """Count the hosts of this many GPUs on which nothing runs."""
    return int(((rows[:, LEASES] == 0) & (rows[:, GPUS] == gpus)).sum())
