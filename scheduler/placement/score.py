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

from scheduler.placement.demand import CPU_BITS, PPM, Demand
from scheduler.placement.pool import (
    CPU,
    GPUS,
    IDLE,
    LEASES,
    MEMORY,
    MODEL,
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
    room = (rows[:, CPU] >= shape.cpu_milli) & (rows[:, MEMORY] >= shape.memory_mib)
    if shape.models != -1:
        room &= (shape.models >> rows[:, MODEL]) & 1 == 1
    if shape.whole:
        room &= rows[:, WHOLE] >= shape.whole
    elif shape.gpus:
        room &= rows[:, WIDEST] >= shape.gpu_milli
    return np.flatnonzero(room)


def potential(weights: Ints, demand: Demand, rows: Ints, free: Ints) -> Ints:
    """Return the potential of host states: how well what is idle there can still be used. At most about 0."""
    cpu, idle, whole, model = rows[:, CPU], rows[:, IDLE], rows[:, WHOLE], rows[:, MODEL]
    total = np.zeros(len(rows), np.int64)
    if weights[UNUSABLE]:
        rank = np.searchsorted(demand.steps, cpu, side="right")
        level = demand.level[free]
        single = (free * demand.usable[model[:, None], rank[:, None], level]).sum(axis=1)
        used = single + WHOLE_GPU * whole * demand.many[model, rank, whole]
        total -= weights[UNUSABLE] * ((idle * PPM - used) // 1000)
    if weights[UNCOPIED]:
        total -= weights[UNCOPIED] * ((idle * PPM - _copies(demand, cpu, whole, model, free)) // 1000)
    served = cpu * 1000 // demand.cpu_per_gpu
    total -= weights[CPU_SHORT] * np.maximum(idle - served, 0) * 1000
    total -= weights[CPU_SPARE] * np.maximum(served - idle, 0) * 1000
    return total


def _copies(demand: Demand, cpu: Ints, whole: Ints, model: Ints, free: Ints) -> Ints:
    """Share-weighted GPU (milli x ppm) that as many copies of each class as fit would use."""
    fits = demand.quotients[free].sum(axis=1) + demand.groups[whole]
    few = np.minimum(cpu, (1 << CPU_BITS) - 1)
    fed = (few[:, None] * demand.copy_inverse + demand.copy_offset) >> 2 * CPU_BITS
    result: Ints = (np.minimum(fits[:, demand.copy_need], fed) * demand.copy_value[model]).sum(axis=1)
    return result


def rate(weights: Ints, demand: Demand, ratio: Ints, rows: Ints, free: Ints, shape: Shape) -> tuple[Ints, Ints]:
    """Return (score, chosen rest) of each row, all of which have room for the shape.

    ratio: CPU per GPU of the rows against the demand's, see `demand.cpu_ratio`. The chosen rest is what is free on the
    GPU that a fraction would go to; 1000 for whole GPUs, -1 for none.
    """
    if not len(rows):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    host, rest, after = _candidates(free, shape)
    then = rows[host]
    then[:, CPU] -= shape.cpu_milli
    then[:, IDLE] -= shape.milli
    then[:, WHOLE] -= shape.whole + (rest == WHOLE_GPU) * (shape.gpus == 1 and not shape.whole)
    score = gain(weights, demand, ratio[host], rows[host], free[host], then, after, shape)
    if shape.gpus == 1 and not shape.whole:
        left = rest - shape.gpu_milli
        score -= weights[REST] * (demand.rest[left] - demand.rest[rest])
        score -= weights[LEFT] * left * 1000
    return _best_of(host, rest, score, len(rows))


def gain(
    weights: Ints, demand: Demand, ratio: Ints, rows: Ints, free: Ints, then: Ints, after: Ints, shape: Shape
) -> Ints:
    """Return the score of turning host states (rows, free) into (then, after), before what a shared GPU adds."""
    both = potential(weights, demand, np.concatenate((then, rows)), np.concatenate((after, free)))
    score: Ints = both[: len(rows)] - both[len(rows) :] + _keeping(weights, demand, ratio, rows, shape)
    return score


def _candidates(free: Ints, shape: Shape) -> tuple[Ints, Ints, Ints]:
    """Return (row, rest chosen, GPUs afterwards) of each different way to seat the shape on each row."""
    count, width = free.shape
    if shape.gpus == 0:
        return np.arange(count), np.full(count, -1), free
    if shape.whole:
        is_whole = free == WHOLE_GPU
        taken = is_whole & (is_whole.cumsum(axis=1) <= shape.gpus)
        return np.arange(count), np.full(count, WHOLE_GPU), np.where(taken, 0, free)
    fits = free >= shape.gpu_milli
    for column in range(1, width):  # of GPUs with the same rest only the first is a different way
        fits[:, column] &= (free[:, :column] != free[:, column, None]).all(axis=1)
    host, gpu = np.nonzero(fits)
    after = free[host]
    rest = after[np.arange(len(host)), gpu]
    after[np.arange(len(host)), gpu] = rest - shape.gpu_milli
    return host, rest, after


def _keeping(weights: Ints, demand: Demand, ratio: Ints, rows: Ints, shape: Shape) -> Ints:
    """The terms that look at the host before placing: what argues for or against touching it at all."""
    total: Ints = -weights[IDLE_GPU] * rows[:, IDLE] * 125
    total -= weights[IDLE_CPU] * (rows[:, CPU] * 125 // 16)
    total -= weights[WHOLE_FREE] * rows[:, WHOLE] * 125_000
    total -= weights[OPENS_EMPTY] * (rows[:, LEASES] == 0) * MICRO
    total -= weights[SCARCITY] * demand.scarcity[rows[:, MODEL]] * shape.milli
    total += weights[AFFINITY] * (request_ratio(demand, shape) if shape.gpus else 1000) * ratio
    return total


def request_ratio(demand: Demand, shape: Shape) -> int:
    """Thousandths by which the request's CPU per GPU exceeds that of all demand (negative: it asks for less)."""
    return 1000 * (shape.cpu_milli * 1000 // demand.cpu_per_gpu) // shape.milli - 1000


def _best_of(host: Ints, rest: Ints, score: Ints, count: int) -> tuple[Ints, Ints]:
    """Keep the best candidate of each row: the highest score, then the smallest rest."""
    if len(host) == count:
        return score, rest
    order = np.lexsort((rest, -score, host))
    first = order[np.concatenate(([True], host[order][1:] != host[order][:-1]))]
    return score[first], rest[first]


def empty_of(rows: Ints, gpus: int) -> int:
    """Count the hosts of this many GPUs on which nothing runs."""
    return int(((rows[:, LEASES] == 0) & (rows[:, GPUS] == gpus)).sum())
