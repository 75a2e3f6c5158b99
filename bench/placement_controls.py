"""The controls of the placement benchmark, in floats as published: Random, BestFit, FGD. Lowest row first among equals.

FGD: Weng et al., "Beware of Fragmentation", USENIX ATC 2023; the details and its tie-breaks are the protocol's.
Compiled with numba so that the 17 traces are feasible; the arithmetic is the plain one.
"""

import math

import numpy as np
from numba import njit
from placement_trace import Ints, Trace

from scheduler.placement.pool import NodeRow

RANDOM, BESTFIT, FGD = 0, 1, 2
NAMES = {"random": RANDOM, "bestfit": BESTFIT, "fgd": FGD}


def typical_classes(trace: Trace) -> tuple[Ints, np.ndarray[tuple[int], np.dtype[np.float64]]]:
    """Return classes (CPU, milli, count, models) by falling frequency until 95 % of the pods, and their shares."""
    table = np.stack((trace.cpu, trace.milli, trace.gpus, trace.models), axis=1)
    classes, first, counts = np.unique(table, axis=0, return_index=True, return_counts=True)
    order = np.lexsort((first, -counts))
    cut = int(np.searchsorted(np.cumsum(counts[order]), 0.95 * len(table))) + 1
    return classes[order[:cut]].astype(np.int64), counts[order[:cut]] / len(table)


def run(
    policy: str, trace: Trace, nodes: list[NodeRow], pods: Ints, departs: Ints, arrival: Ints, seed: int = 0
) -> tuple[Ints, Ints]:
    """Play events; return for each arrival the row it went to (-1: refused) and the bit mask of its GPUs."""
    models = np.array([trace.names.index(row[4]) for row in nodes], np.int64)
    cpu, memory, gpus = (np.array([row[i] for row in nodes], np.int64) for i in (1, 2, 3))
    table = np.stack((trace.cpu, trace.memory, trace.milli, trace.gpus, trace.models), axis=1)
    classes, inverse = np.unique(table, axis=0, return_inverse=True)
    typical, shares = typical_classes(trace)
    row, mask = _play(
        NAMES[policy], classes.astype(np.int64), inverse.reshape(-1)[pods].astype(np.int64), departs.astype(np.int64),
        arrival, cpu, memory, gpus, models, typical, shares, seed,
    )  # fmt: skip
    return row, mask


@njit(cache=True)
def _fragments(cpu, free, gpus, model, typical, shares):  # type: ignore[no-untyped-def]
    total = 0.0
    idle = 0.0
    for gpu in range(gpus):
        idle += free[gpu]
    for row in range(typical.shape[0]):
        need, milli, count, models = typical[row]
        fitting = 0
        small = 0.0
        for gpu in range(gpus):
            if free[gpu] >= milli:
                fitting += 1
            else:
                small += free[gpu]
        if count == 0 or not (models >> model) & 1 or need > cpu or fitting < count:
            total += shares[row] * idle
        else:
            total += shares[row] * small
    return total


@njit(cache=True)
def _sigmoid(before, after):  # type: ignore[no-untyped-def]
    return int(100.0 / (1.0 + math.exp(-(before - after) / 1000.0)))


@njit(cache=True)
def _rate(policy, need, cpu, free, gpus, model, before, typical, shares, scratch):  # type: ignore[no-untyped-def]
    """Return (score, GPU of a fraction or -1) of a node that has room."""
    milli, count = need[2], need[3]
    if policy == BESTFIT:
        idle = -milli * count
        chosen = -1
        for gpu in range(gpus):
            idle += free[gpu]
            if count == 1 and free[gpu] >= milli and (chosen < 0 or free[gpu] < free[chosen]):
                chosen = gpu
        return int(100.0 * (1.0 - (cpu - need[0]) / 256000.0 - idle / 16000.0)), chosen
    best, chosen = -1, -1
    if count == 1 and milli < 1000:
        for gpu in range(gpus):
            scratch[gpu] = free[gpu]
        for gpu in range(gpus):
            if free[gpu] >= milli:
                scratch[gpu] = free[gpu] - milli
                score = _sigmoid(before, _fragments(cpu - need[0], scratch, gpus, model, typical, shares))
                scratch[gpu] = free[gpu]
                if score > best:
                    best, chosen = score, gpu
        return best, chosen
    left = count
    for gpu in range(gpus):
        scratch[gpu] = free[gpu]
        if left > 0 and free[gpu] == 1000:
            scratch[gpu] = 0
            left -= 1
    return _sigmoid(before, _fragments(cpu - need[0], scratch, gpus, model, typical, shares)), -1


@njit(cache=True)
def _has_room(need, cpu, memory, free, gpus, model):  # type: ignore[no-untyped-def]
    if cpu < need[0] or memory < need[1] or not (need[4] >> model) & 1:
        return False
    fitting = 0
    for gpu in range(gpus):
        fitting += free[gpu] >= need[2]
    return fitting >= need[3]


@njit(cache=True)
def _play(policy, classes, kinds, departs, arrival, cpu0, memory0, gpus, models, typical, shares, seed):  # type: ignore[no-untyped-def]
    np.random.seed(seed)
    count = len(cpu0)
    cpu, memory = cpu0.copy(), memory0.copy()
    free = np.zeros((count, 8), np.int64)
    for node in range(count):
        free[node, : gpus[node]] = 1000
    scores = np.full((len(classes), count), -1, np.int64)
    picks = np.full((len(classes), count), -1, np.int64)
    seen = np.full(len(classes), -1, np.int64)
    log = np.empty(len(departs) + 1, np.int64)
    last = np.full(count, -1, np.int64)
    end = 0
    before = np.zeros(count)
    for node in range(count):
        before[node] = _fragments(cpu[node], free[node], gpus[node], models[node], typical, shares)
    went = np.full(len(kinds), -1, np.int64)
    masks = np.zeros(len(kinds), np.int64)
    scratch = np.zeros(8, np.int64)
    feasible = np.empty(count, np.int64)
    for event in range(len(departs)):
        who = arrival[event]
        need = classes[kinds[who]]
        if departs[event]:
            node = went[who]
            if node < 0:
                continue
            sign = -1
        else:
            kind = kinds[who]
            first = 0 if seen[kind] < 0 else seen[kind]
            until = count if seen[kind] < 0 else end
            for position in range(first, until):
                node = position if seen[kind] < 0 else log[position]
                if seen[kind] >= 0 and last[node] != position:
                    continue
                scores[kind, node] = -1
                if _has_room(need, cpu[node], memory[node], free[node], gpus[node], models[node]):
                    if policy == RANDOM:
                        scores[kind, node] = 0
                    else:
                        scores[kind, node], picks[kind, node] = _rate(
                            policy, need, cpu[node], free[node], gpus[node], models[node], before[node],
                            typical, shares, scratch,
                        )  # fmt: skip
            seen[kind] = end
            node = np.argmax(scores[kind])
            if scores[kind, node] < 0:
                continue
            if policy == RANDOM:
                able = 0
                for other in range(count):
                    if scores[kind, other] >= 0:
                        feasible[able] = other
                        able += 1
                node = feasible[np.random.randint(able)]
            went[who] = node
            mask = 0
            if need[3] == 1 and (need[2] < 1000 or policy == BESTFIT) and policy != RANDOM:
                mask = 1 << picks[kind, node]
            else:
                left = need[3]
                start = np.random.randint(gpus[node]) if policy == RANDOM and left == 1 else 0
                for step in range(gpus[node]):
                    gpu = (start + step) % gpus[node]
                    if left > 0 and free[node, gpu] >= need[2]:
                        mask |= 1 << gpu
                        left -= 1
            masks[who] = mask
            sign = 1
        cpu[node] -= sign * need[0]
        memory[node] -= sign * need[1]
        for gpu in range(gpus[node]):
            if (masks[who] >> gpu) & 1:
                free[node, gpu] -= sign * need[2]
        if policy == FGD:
            before[node] = _fragments(cpu[node], free[node], gpus[node], models[node], typical, shares)
        log[end] = node
        last[node] = end
        end += 1
    return went, masks
