"""The scores of `score.py` in compiled loops (numba, an optional extra): the same integers, many times as fast.

Whoever changes a term changes it in `score.py` first; the test that compares the two then fails until it is changed
here.
"""

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

from scheduler.placement.demand import CPU_BITS
from scheduler.placement.pool import BEFORE, CPU, IDLE, LEASES, MODEL, RATIO, WHOLE, Ints
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
from scheduler.placement.tables import (
    COPY_INVERSE,
    COPY_NEED,
    COPY_OFFSET,
    COPY_VALUE,
    CPU_PER_GPU,
    GROUPS,
    LEVEL,
    MANY,
    QUOTIENTS,
    RESTS,
    SCARCITIES,
    STEPS,
    USABLE,
    WEIGHTS,
)

try:
    import numba
except ImportError:  # the extra is not installed: `Engine` then works with numpy
    AVAILABLE = False
else:
    AVAILABLE = True


# numba keeps what it compiled beside the module, and looks only at the file a function stands in to see whether that
# is still good. What is compiled takes functions and constants from all of these, so their digest is part of its name.
SOURCES = ("demand", "kernels", "pool", "rating", "score", "tables")
DIGEST = sha256(b"".join(Path(__file__).with_name(f"{name}.py").read_bytes() for name in SOURCES)).hexdigest()[:12]


def compiled[F: Callable[..., Any]](function: F) -> F:
    """Compile a function of integers and arrays, once per machine and version of the sources."""
    function.__qualname__ += f"_{DIGEST}"
    return cast("F", numba.njit(cache=True)(function)) if AVAILABLE else function


def inlined[F: Callable[..., Any]](function: F) -> F:
    """Compile a function into its callers, for small ones that are called in loops."""
    function.__qualname__ += f"_{DIGEST}"
    return cast("F", numba.njit(cache=True, forceinline=True)(function)) if AVAILABLE else function


# A class of requests as a row of numbers; CURSOR: how far it has read the log, -1 = never.
SHAPE_CPU, SHAPE_MILLI, SHAPE_GPUS, SHAPE_MODELS, SHAPE_RATIO, CURSOR = range(6)
CLASS_COLUMNS = 6


@inlined
def unusable(flat: Ints, cpu: int, idle: int, whole: int, model: int, free: Ints) -> Any:
    """Return what is idle on a host in this state and would serve no class, in micro-GPU."""
    steps, level, usable, many = flat[STEPS], flat[LEVEL], flat[USABLE], flat[MANY]
    low, high = 0, flat[STEPS + 1]
    while low < high:
        middle = (low + high) >> 1
        if flat[steps + middle] <= cpu:
            low = middle + 1
        else:
            high = middle
    used = 1000 * whole * flat[many + (model * flat[MANY + 2] + low) * flat[MANY + 3] + whole]
    usable += (model * flat[USABLE + 2] + low) * flat[USABLE + 3]
    for gpu in range(len(free)):
        used += free[gpu] * flat[usable + flat[level + free[gpu]]]
    return (idle * 1_000_000 - used) // 1000


@inlined
def uncopied(flat: Ints, cpu: int, idle: int, whole: int, model: int, fits: Ints) -> Any:
    """Return what is idle and left over by as many copies of each class as fit; fits: see `count_fits`."""
    used, few, needs, inverse = 0, min(cpu, (1 << CPU_BITS) - 1), flat[COPY_NEED], flat[COPY_INVERSE]
    offset, groups = flat[COPY_OFFSET], flat[GROUPS] + whole * flat[GROUPS + 2]
    value = flat[COPY_VALUE] + model * flat[COPY_VALUE + 2]
    for row in range(flat[COPY_NEED + 1]):
        need = flat[needs + row]
        fed = (few * flat[inverse + row] + flat[offset + row]) >> (2 * CPU_BITS)
        used += min(fits[need] + flat[groups + need], fed) * flat[value + row]
    return (idle * 1_000_000 - used) // 1000


@inlined
def weigh(flat: Ints, kind: int, unusable: int, uncopied: int, cpu: int, idle: int) -> Any:
    """Return the potential of a host state by the weights of one kind (0: with GPUs, 1: CPU only)."""
    weights, served = flat[WEIGHTS] + kind * flat[WEIGHTS + 2], cpu * 1000 // flat[CPU_PER_GPU]
    total = -flat[weights + UNUSABLE] * unusable - flat[weights + UNCOPIED] * uncopied
    if idle > served:
        return total - flat[weights + CPU_SHORT] * (idle - served) * 1000
    return total - flat[weights + CPU_SPARE] * (served - idle) * 1000


@inlined
def weight(flat: Ints, kind: int, term: int) -> int:
    """Return the weight of one term for one kind."""
    return int(flat[flat[WEIGHTS] + kind * flat[WEIGHTS + 2] + term])


@inlined
def potential_of(flat: Ints, kind: int, cpu: int, idle: int, whole: int, model: int, free: Ints, fits: Ints) -> Any:
    """Return the potential of one host state by the weights of one kind."""
    one = unusable(flat, cpu, idle, whole, model, free)
    other = uncopied(flat, cpu, idle, whole, model, fits) if weight(flat, kind, UNCOPIED) != 0 else 0
    return weigh(flat, kind, one, other, cpu, idle)


@inlined
def count_fits(flat: Ints, free: Ints, fits: Ints) -> None:
    """Write into fits[need] how often each distinct need goes into these GPUs."""
    quotients, needs = flat[QUOTIENTS], len(fits)
    for need in range(needs):
        times = 0
        for gpu in range(len(free)):
            times += flat[quotients + free[gpu] * needs + need]
        fits[need] = times


@inlined
def _keeping(flat: Ints, weights: int, row: Ints, shape: Ints) -> Any:
    """The terms that look at the host before placing; weights: where those of the kind begin."""
    gpus = shape[SHAPE_GPUS]
    total = -flat[weights + IDLE_GPU] * row[IDLE] * 125 - flat[weights + IDLE_CPU] * (row[CPU] * 125 // 16)
    total -= flat[weights + WHOLE_FREE] * row[WHOLE] * 125_000
    total -= flat[weights + SCARCITY] * flat[flat[SCARCITIES] + row[MODEL]] * shape[SHAPE_MILLI] * gpus
    if row[LEASES] == 0:
        total -= flat[weights + OPENS_EMPTY] * 1_000_000
    return total + flat[weights + AFFINITY] * (shape[SHAPE_RATIO] if gpus > 0 else 1000) * row[RATIO]


@inlined
def rate_one(flat: Ints, row: Ints, free: Ints, shape: Ints, after: Ints, fits: Ints) -> tuple[int, int]:
    """Return (score, chosen rest) of one host that has room; `after` and `fits` are scratch space."""
    milli, gpus, kind = shape[SHAPE_MILLI], shape[SHAPE_GPUS], 0 if shape[SHAPE_GPUS] > 0 else 1
    weights, rests = flat[WEIGHTS] + kind * flat[WEIGHTS + 2], flat[RESTS]
    idle, whole, model = row[IDLE], row[WHOLE], row[MODEL]
    cpu, left_idle = row[CPU] - shape[SHAPE_CPU], idle - milli * gpus
    base = _keeping(flat, weights, row, shape) - row[BEFORE + kind]
    copies = flat[weights + UNCOPIED] != 0
    if copies:
        count_fits(flat, free, fits)
    for gpu in range(len(free)):
        after[gpu] = free[gpu]
    if gpus == 0 or milli == 1000:
        taken = 0
        for gpu in range(len(free)):
            if taken < gpus and free[gpu] == 1000:
                after[gpu] = 0
                taken += 1
                if copies:
                    _refit(flat, fits, 1000, 0)
        then = potential_of(flat, kind, cpu, left_idle, whole - gpus, model, after, fits)
        return base + then, 1000 if gpus > 0 else -1
    best, chosen = INFEASIBLE, -1
    for gpu in range(len(free)):
        value = free[gpu]
        if value < milli or _stands_before(free, gpu):
            continue
        after[gpu] = value - milli
        if copies:
            _refit(flat, fits, value, value - milli)
        then = potential_of(flat, kind, cpu, left_idle, whole - 1 if value == 1000 else whole, model, after, fits)
        after[gpu] = value
        if copies:
            _refit(flat, fits, value - milli, value)
        score = base + then - flat[weights + REST] * (flat[rests + value - milli] - flat[rests + value])
        score -= flat[weights + LEFT] * (value - milli) * 1000
        if score > best or (score == best and value < chosen):
            best, chosen = score, value
    return best, chosen


@inlined
def _refit(flat: Ints, fits: Ints, before: int, after: int) -> None:
    """Count anew how often each need fits after the rest of one GPU changed."""
    quotients, needs = flat[QUOTIENTS], len(fits)
    for need in range(needs):
        fits[need] += flat[quotients + after * needs + need] - flat[quotients + before * needs + need]


@inlined
def _stands_before(free: Ints, gpu: int) -> bool:
    found = False
    for other in range(gpu):
        found |= free[other] == free[gpu]
    return found


@inlined
def set_one_before(flat: Ints, row: Ints, free: Ints, fits: Ints) -> None:
    """Write the potential of a host as it is into its row, for both kinds of request."""
    cpu, idle, whole, model = row[CPU], row[IDLE], row[WHOLE], row[MODEL]
    one, other = unusable(flat, cpu, idle, whole, model, free), 0
    if weight(flat, 0, UNCOPIED) != 0 or weight(flat, 1, UNCOPIED) != 0:
        count_fits(flat, free, fits)
        other = uncopied(flat, cpu, idle, whole, model, fits)
    for kind in range(2):
        row[BEFORE + kind] = weigh(flat, kind, one, other, cpu, idle)
