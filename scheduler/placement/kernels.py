"""The scores of `score.py` in compiled loops (numba, an optional extra): the same integers, some ten times as fast.

Written for the compiler: flat arguments, no tuples inside loops. Whoever changes a term changes it in `score.py` first;
the test that compares the two then fails until it is changed here.
"""

from collections.abc import Callable
from typing import Any, cast

from scheduler.placement.pool import ALL_CPU, CPU, GPUS, IDLE, LEASES, MEMORY, MODEL, STATE, TIE, WHOLE, WIDEST, Ints
from scheduler.placement.score import (
    AFFINITY,
    CPU_SHORT,
    CPU_SPARE,
    IDLE_CPU,
    IDLE_GPU,
    INFEASIBLE,
    LEFT,
    OPENS_EMPTY,
    REST,
    SCARCITY,
    UNCOPIED,
    UNUSABLE,
    WHOLE_FREE,
)

try:
    import numba
except ImportError:  # the extra is not installed: `Engine` then works with numpy
    AVAILABLE = False
else:
    AVAILABLE = True


def compiled[F: Callable[..., Any]](function: F) -> F:
    """Compile a function of integers and arrays, once per machine (the result is kept beside the module)."""
    return cast("F", numba.njit(cache=True)(function)) if AVAILABLE else function


BLOCK = 128  # hosts whose best score is remembered together
UNKNOWN = INFEASIBLE - 1
SHAPE_CPU, SHAPE_MEMORY, SHAPE_MILLI, SHAPE_GPUS, SHAPE_MODELS, SHAPE_RATIO = range(6)


@compiled
def potential_of(
    weights: Ints, steps: Ints, level: Ints, usable: Ints, many: Ints, copy_cpu: Ints, copy_need: Ints,
    copy_count: Ints, copy_value: Ints, copy_models: Ints, quotients: Ints, cpu_per_gpu: int,
    cpu: int, idle: int, whole: int, model: int, free: Ints, fits: Ints,
) -> Any:  # fmt: skip
    """Return the potential of one host state; fits[need]: how often each distinct need goes into its GPUs."""
    total = 0
    if weights[UNUSABLE] != 0:
        low, high = 0, len(steps)
        while low < high:
            middle = (low + high) >> 1
            if steps[middle] <= cpu:
                low = middle + 1
            else:
                high = middle
        used = 1000 * whole * many[model, low, whole]
        for gpu in range(len(free)):
            used += free[gpu] * usable[model, low, level[free[gpu]]]
        total -= weights[UNUSABLE] * ((idle * 1_000_000 - used) // 1000)
    if weights[UNCOPIED] != 0:
        used = 0
        for row in range(len(copy_cpu)):
            if not (copy_models[row] >> model) & 1:
                continue
            times = fits[copy_need[row]] if copy_need[row] >= 0 else whole // copy_count[row]
            if times > 0 and copy_cpu[row] > 0 and times * copy_cpu[row] > cpu:
                times = cpu // copy_cpu[row]
            used += times * copy_value[row]
        total -= weights[UNCOPIED] * ((idle * 1_000_000 - used) // 1000)
    served = cpu * 1000 // cpu_per_gpu
    if idle > served:
        total -= weights[CPU_SHORT] * (idle - served) * 1000
    else:
        total -= weights[CPU_SPARE] * (served - idle) * 1000
    return total


@compiled
def count_fits(quotients: Ints, free: Ints, fits: Ints) -> None:
    """Write into fits[need] how often each distinct need goes into these GPUs."""
    needs = quotients.shape[1]
    for need in range(needs):
        fits[need] = 0
    for gpu in range(len(free)):
        rest = free[gpu]
        for need in range(needs):
            fits[need] += quotients[rest, need]


@compiled
def rate_one(
    weights: Ints, steps: Ints, level: Ints, usable: Ints, many: Ints, copy_cpu: Ints, copy_need: Ints,
    copy_count: Ints, copy_value: Ints, copy_models: Ints, quotients: Ints, rest: Ints, cpu_per_gpu: int,
    scarcity: Ints, ratio: int, row: Ints, free: Ints, before: int, shape: Ints, after: Ints, fits: Ints,
) -> tuple[int, int]:  # fmt: skip
    """Return (score, chosen rest) of one host that has room; `after` and `fits` are scratch space."""
    milli, gpus, width = shape[SHAPE_MILLI], shape[SHAPE_GPUS], len(free)
    idle, whole, model = row[IDLE], row[WHOLE], row[MODEL]
    cpu, left_idle = row[CPU] - shape[SHAPE_CPU], idle - milli * gpus
    base = -before - weights[IDLE_GPU] * idle * 125 - weights[IDLE_CPU] * (row[CPU] * 125 // 16)
    base -= weights[WHOLE_FREE] * whole * 125_000 + weights[SCARCITY] * scarcity[model] * milli * gpus
    if row[LEASES] == 0:
        base -= weights[OPENS_EMPTY] * 1_000_000
    base += weights[AFFINITY] * (shape[SHAPE_RATIO] if gpus > 0 else 1000) * ratio
    copies = weights[UNCOPIED] != 0
    if copies:
        count_fits(quotients, free, fits)
    if gpus == 0 or milli == 1000:
        if copies and gpus > 0:
            for need in range(quotients.shape[1]):
                fits[need] -= gpus * quotients[1000, need]
        taken = 0
        for gpu in range(width):
            after[gpu] = free[gpu]
            if taken < gpus and free[gpu] == 1000:
                after[gpu] = 0
                taken += 1
        then = potential_of(
            weights, steps, level, usable, many, copy_cpu, copy_need, copy_count, copy_value, copy_models, quotients,
            cpu_per_gpu, cpu, left_idle, whole - gpus, model, after, fits,
        )  # fmt: skip
        return base + then, 1000 if gpus > 0 else -1
    best, chosen = INFEASIBLE, -1
    for gpu in range(width):
        after[gpu] = free[gpu]
    for gpu in range(width):
        value = free[gpu]
        if value < milli:
            continue
        repeated = False
        for other in range(gpu):
            if free[other] == value:
                repeated = True
        if repeated:
            continue
        after[gpu] = value - milli
        if copies:
            for need in range(quotients.shape[1]):
                fits[need] += quotients[value - milli, need] - quotients[value, need]
        then = potential_of(
            weights, steps, level, usable, many, copy_cpu, copy_need, copy_count, copy_value, copy_models, quotients,
            cpu_per_gpu, cpu, left_idle, whole - 1 if value == 1000 else whole, model, after, fits,
        )  # fmt: skip
        after[gpu] = value
        if copies:
            for need in range(quotients.shape[1]):
                fits[need] -= quotients[value - milli, need] - quotients[value, need]
        score = base + then - weights[REST] * (rest[value - milli] - rest[value])
        score -= weights[LEFT] * (value - milli) * 1000
        if score > best or (score == best and value < chosen):
            best, chosen = score, value
    return best, chosen


@compiled
def set_before(
    weights: Ints, steps: Ints, level: Ints, usable: Ints, many: Ints, copy_cpu: Ints, copy_need: Ints,
    copy_count: Ints, copy_value: Ints, copy_models: Ints, quotients: Ints, cpu_per_gpu: int,
    rows: Ints, free: Ints, first: int, last: int, before: Ints, fits: Ints,
) -> None:  # fmt: skip
    """Write the potential of the hosts [first, last) as they are into `before`."""
    for host in range(first, last):
        count_fits(quotients, free[host], fits)
        before[host] = potential_of(
            weights, steps, level, usable, many, copy_cpu, copy_need, copy_count, copy_value, copy_models, quotients,
            cpu_per_gpu, rows[host, CPU], rows[host, IDLE], rows[host, WHOLE], rows[host, MODEL], free[host], fits,
        )  # fmt: skip


@compiled
def change(
    rows: Ints, free: Ints, images: Ints, host: int, gpus: int, sign: int, cpu_milli: int, memory_mib: int, milli: int,
) -> None:  # fmt: skip
    """Take (sign 1) or give back (-1) a request on one host; gpus: bit mask. Refreshes what is derived."""
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


@compiled
def best_host(
    weights: Ints, steps: Ints, level: Ints, usable: Ints, many: Ints, copy_cpu: Ints, copy_need: Ints,
    copy_count: Ints, copy_value: Ints, copy_models: Ints, quotients: Ints, rest: Ints, cpu_per_gpu: int,
    scarcity: Ints, ratio: Ints, rows: Ints, free: Ints, before: Ints, shape: Ints, after: Ints, fits: Ints,
    log: Ints, changed: Ints, cursor: int, end: int, scores: Ints, rests: Any, blocks: Ints, states: Ints,
) -> int:  # fmt: skip
    """Rescore the hosts that changed since `cursor` (-1: all), and return the best host, or -1 if none has room.

    log: ring of changed hosts; changed[host]: the last position at which the host stands in it. states: scratch space,
    a hash table with more places than there are hosts: a cold class is rated once per distinct state, not per host.
    """
    cold = cursor < 0
    whole = shape[SHAPE_GPUS] if shape[SHAPE_MILLI] == 1000 else 0
    if cold:
        states[:] = -1
    for position in range(0 if cold else cursor, len(rows) if cold else end):
        host = position
        if not cold:
            host = log[position % len(log)]
            if changed[host] != position:
                continue
        row = rows[host]
        score, chosen = INFEASIBLE, -1
        if (
            row[CPU] >= shape[SHAPE_CPU]
            and row[MEMORY] >= shape[SHAPE_MEMORY]
            and row[WHOLE] >= whole
            and row[WIDEST] >= shape[SHAPE_MILLI]
            and (shape[SHAPE_MODELS] >> row[MODEL]) & 1
        ):
            twin = _twin(rows, states, host) if cold else -1
            if twin >= 0:
                score, chosen = scores[twin], rests[twin]
            else:
                score, chosen = rate_one(
                    weights, steps, level, usable, many, copy_cpu, copy_need, copy_count, copy_value, copy_models,
                    quotients, rest, cpu_per_gpu, scarcity, ratio[host], row, free[host], before[host],
                    shape, after, fits,
                )  # fmt: skip
        block = host // BLOCK
        if blocks[block] != UNKNOWN:
            if score > blocks[block]:
                blocks[block] = score
            elif scores[host] == blocks[block] and score < scores[host]:
                blocks[block] = UNKNOWN  # its best host got worse
        scores[host], rests[host] = score, chosen
    return _argmax(rows, scores, blocks)


@compiled
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


@compiled
def _argmax(rows: Ints, scores: Ints, blocks: Ints) -> int:
    best = INFEASIBLE
    for block in range(len(blocks)):
        if blocks[block] == UNKNOWN:
            blocks[block] = INFEASIBLE
            for host in range(block * BLOCK, min((block + 1) * BLOCK, len(rows))):
                if scores[host] > blocks[block]:
                    blocks[block] = scores[host]
        if blocks[block] > best:
            best = blocks[block]
    if best == INFEASIBLE:
        return -1
    chosen = -1
    for block in range(len(blocks)):
        if blocks[block] != best:
            continue
        for host in range(block * BLOCK, min((block + 1) * BLOCK, len(rows))):
            if scores[host] == best and (chosen < 0 or _comes_first(rows[host], rows[chosen])):
                chosen = host
    return chosen


@compiled
def _comes_first(one: Ints, other: Ints) -> bool:
    """Order hosts of equal score: least idle GPU, least CPU, least memory, the state's name, the key's hash."""
    for column in (IDLE, CPU, MEMORY, STATE, TIE):
        if one[column] != other[column]:
            return bool(one[column] < other[column])
    return False
