"""Choosing and taking a host in compiled loops (numba, an optional extra), with the scores of `rating.py`.

One call places, one call gives back: calls from Python into compiled code cost more than what most of them do, and they
cost by the argument. So all tables travel in one flat array (`tables.flatten`), and a class of requests is a row of
numbers.
"""

from typing import Any

from scheduler.placement.pool import (
    ALL_CPU,
    CHANGED,
    CPU,
    GPUS,
    IDLE,
    LEASES,
    MEMORY,
    MODEL,
    STATE,
    TIE,
    WHOLE,
    WIDEST,
    Ints,
)
from scheduler.placement.rating import (
    AVAILABLE,
    CLASS_COLUMNS,
    CURSOR,
    SHAPE_CPU,
    SHAPE_GPUS,
    SHAPE_MILLI,
    SHAPE_MODELS,
    compiled,
    inlined,
    rate_one,
    set_one_before,
)
from scheduler.placement.score import INFEASIBLE
from scheduler.placement.tables import QUOTIENTS

__all__ = ["AVAILABLE", "BLOCK", "CLASS_COLUMNS", "KEPT", "NO_ROOM", "change", "place", "set_before"]

BLOCK = 64  # hosts of which the first in order is remembered together
UNKNOWN = -2  # in place of that host: it has to be looked for
NO_ROOM, KEPT = -1, -2


@compiled
def set_before(flat: Ints, rows: Ints, free: Ints, scratch: Ints) -> None:
    """Write the potential of all hosts as they are into their rows."""
    fits = scratch[: flat[QUOTIENTS + 2]]
    for host in range(len(rows)):
        set_one_before(flat, rows[host], free[host], fits)


@compiled
def change(
    flat: Ints, rows: Ints, free: Ints, images: Ints, log: Ints, scratch: Ints, host: int, gpus: int, sign: int,
    cpu_milli: int, memory_mib: int, milli: int,
) -> None:  # fmt: skip
    """Take (sign 1) or give back (-1) a request on one host; gpus: bit mask. Refreshes what is derived, and logs it."""
    row = rows[host]
    row[CPU] -= sign * cpu_milli
    row[MEMORY] -= sign * memory_mib
    row[LEASES] += sign
    idle, whole, widest, state = 0, 0, 0, row[MODEL] * 7919 + row[GPUS]
    for gpu in range(free.shape[1]):
        if (gpus >> gpu) & 1:
            free[host, gpu] -= sign * milli
        rest = free[host, gpu]
        idle += rest
        whole += rest == 1000
        widest = max(widest, rest)
        state += images[rest]
    row[IDLE], row[WHOLE], row[WIDEST], row[STATE] = idle, whole, widest, state
    end = log[-1]
    log[end % (len(log) - 1)] = host
    row[CHANGED] = end
    log[-1] = end + 1
    set_one_before(flat, row, free[host], scratch[: flat[QUOTIENTS + 2]])


@compiled
def place(
    flat: Ints, rows: Ints, free: Ints, images: Ints, log: Ints, scratch: Ints, shape: Ints, memory_mib: int,
    scores: Ints, rests: Any, heads: Ints, kept_gpus: int,
) -> tuple[int, int]:  # fmt: skip
    """Take the best host for a class: return it and the bit mask of its GPUs, or NO_ROOM or KEPT and 0.

    kept_gpus: an empty host of so many GPUs is not to be opened for this class; 0 = any may be.
    """
    host = best_host(flat, rows, free, log, scratch, shape, memory_mib, scores, rests, heads)
    if host < 0:
        return NO_ROOM, 0
    if kept_gpus > 0 and rows[host, LEASES] == 0 and rows[host, GPUS] == kept_gpus:
        return KEPT, 0
    mask, taken = 0, 0
    for gpu in range(free.shape[1]):
        if taken < shape[SHAPE_GPUS] and free[host, gpu] == rests[host]:
            mask |= 1 << gpu
            taken += 1
    change(
        flat, rows, free, images, log, scratch, host, mask, 1, shape[SHAPE_CPU], memory_mib, shape[SHAPE_MILLI]
    )  # fmt: skip
    return host, mask


@compiled
def best_host(
    flat: Ints, rows: Ints, free: Ints, log: Ints, scratch: Ints, shape: Ints, memory_mib: int, scores: Ints,
    rests: Any, heads: Ints,
) -> int:  # fmt: skip
    """Rescore the hosts that changed since the class came last (all, if that is too long ago); return the best, or -1.

    A class is all requests that differ in memory only: memory counts at the choice, not in the score.
    log: ring of changed hosts, its last element counts them all. rests[host]: what is free on the GPU to be taken.
    heads[block]: the host of the block that comes first in order. scratch: needs, GPUs, then a hash table with more
    places than there are hosts: a cold class is rated once per distinct state, not once per host.
    """
    fits, width = scratch[: flat[QUOTIENTS + 2]], flat[QUOTIENTS + 2] + free.shape[1]
    after, states, ring, end = scratch[len(fits) : width], scratch[width:], len(log) - 1, log[-1]
    cold = shape[CURSOR] < 0 or end - shape[CURSOR] > ring
    whole = shape[SHAPE_GPUS] if shape[SHAPE_MILLI] == 1000 else 0
    if cold:
        states[:] = -1
        scores[:] = INFEASIBLE
        heads[:] = -1
    for position in range(0 if cold else shape[CURSOR], len(rows) if cold else end):
        host = position if cold else log[position % ring]
        row = rows[host]
        if not cold and row[CHANGED] != position:
            continue
        score, chosen = INFEASIBLE, -1
        if (
            row[CPU] >= shape[SHAPE_CPU]
            and row[WHOLE] >= whole
            and row[WIDEST] >= shape[SHAPE_MILLI]
            and (shape[SHAPE_MODELS] >> row[MODEL]) & 1
        ):
            twin = _twin(rows, states, host) if cold else -1
            if twin >= 0:
                score, chosen = scores[twin], rests[twin]
            else:
                score, chosen = rate_one(flat, row, free[host], shape, after, fits)
        before = scores[host]
        scores[host], rests[host] = score, chosen
        _keep_head(rows, scores, heads, host, before, -1 if cold else position)
    shape[CURSOR] = end
    first = _first(rows, scores, heads)
    if first < 0 or rows[first, MEMORY] >= memory_mib:
        return first
    return _first_with_memory(rows, scores, heads, memory_mib)


@inlined
def _keep_head(rows: Ints, scores: Ints, heads: Ints, host: int, before: int, position: int) -> None:
    """Note that a host has a new score (and perhaps new ties); position: how far the log has been read, -1 = cold."""
    block = host // BLOCK
    head, score = heads[block], scores[host]
    if head == UNKNOWN:
        return
    if head == host:
        if score <= before:
            heads[block] = UNKNOWN  # it got worse, or its ties are others now
    elif score > INFEASIBLE:
        if head < 0 or score > scores[head]:
            heads[block] = host
        elif score == scores[head]:
            if position >= 0 and rows[head, CHANGED] > position:
                heads[block] = UNKNOWN  # the head's own change is still to be read: its ties cannot be compared
            elif _comes_first(rows[host], rows[head]):
                heads[block] = host


@inlined
def _first(rows: Ints, scores: Ints, heads: Ints) -> int:
    """Return the host that comes first of all, or -1 if none has room."""
    best = -1
    for block in range(len(heads)):
        head = heads[block]
        if head == UNKNOWN:
            head = -1
            for host in range(block * BLOCK, min((block + 1) * BLOCK, len(rows))):
                if scores[host] > INFEASIBLE and _is_better(rows, scores, host, head):
                    head = host
            heads[block] = head
        if head >= 0 and _is_better(rows, scores, head, best):
            best = head
    return best


@compiled
def _first_with_memory(rows: Ints, scores: Ints, heads: Ints, memory_mib: int) -> int:
    """Return the host that comes first of those with so much memory, or -1. Call it after `_first`."""
    best = -1
    for block in range(len(heads)):
        head = heads[block]
        if head >= 0 and rows[head, MEMORY] >= memory_mib and _is_better(rows, scores, head, best):
            best = head
    for block in range(len(heads)):
        head = heads[block]
        if head < 0 or rows[head, MEMORY] >= memory_mib or not _is_better(rows, scores, head, best):
            continue
        for host in range(block * BLOCK, min((block + 1) * BLOCK, len(rows))):
            if scores[host] > INFEASIBLE and rows[host, MEMORY] >= memory_mib and _is_better(rows, scores, host, best):
                best = host
    return best


@inlined
def _is_better(rows: Ints, scores: Ints, one: int, other: int) -> bool:
    if other < 0 or scores[one] != scores[other]:
        return bool(other < 0 or scores[one] > scores[other])
    return _comes_first(rows[one], rows[other])


@inlined
def _comes_first(one: Ints, other: Ints) -> bool:
    """Order hosts of equal score: least idle GPU, least CPU, least memory, the state's name, the key's hash."""
    for column in (IDLE, CPU, MEMORY, STATE, TIE):
        if one[column] != other[column]:
            return bool(one[column] < other[column])
    return False


@inlined
def _twin(rows: Ints, states: Ints, host: int) -> int:
    """Return a host seen before in the same state, as far as a score looks at it; or -1, and remember this one."""
    row = rows[host]
    place = (row[STATE] ^ (row[CPU] * 1_000_003) ^ (row[ALL_CPU] * 7_919)) % len(states)
    while states[place] >= 0:
        other = rows[states[place]]
        if (
            other[STATE] == row[STATE]
            and other[CPU] == row[CPU]
            and other[ALL_CPU] == row[ALL_CPU]
            and other[MODEL] == row[MODEL]
            and other[GPUS] == row[GPUS]
            and (other[LEASES] == 0) == (row[LEASES] == 0)
        ):
            return int(states[place])
        place = (place + 1) % len(states)
    states[place] = host
    return -1
