"""What is expected to come: a histogram of request classes, turned into integer tables that scores look things up in.

Classes weigh 1 + GPUs, so that large requests are not dropped with the tail: a cut by count would lose the eight-GPU
class. All shares are parts per million, floored; no float enters a table.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from scheduler.placement.pool import ALL_CPU, GPUS, MODEL, WHOLE_GPU, Arrays, Ints, Shape

PPM = 1_000_000
CUT_PPM = 990_000
MOST_CLASSES = 512
CPU_BITS = 20  # copies are counted over no more than a million milli-CPU of a host
OFFERS = 12  # how many random requests a shared GPU's rest is offered when its unfilled part is estimated


@dataclass(frozen=True, slots=True)
class Demand:
    """Tables over the classes kept.

    steps: distinct CPU needs, ascending. level: rest of a GPU -> index of the distinct needs it covers.
    usable[model, CPU rank, level]: share of one-GPU classes that fit; many[model, CPU rank, whole]: of larger ones.
    copy_*: the classes of `uncopied`. How many copies of a class a host's CPU feeds is (CPU x inverse + offset) >> 2 x
    CPU_BITS: an exact division without dividing. need: index of its GPU need; value[model]: what one copy counts there.
    quotients[rest, need]: how often a need goes into a rest; groups[whole, need]: the same for groups of whole GPUs.
    rest[r]: expected unfilled micro-GPU of a shared GPU with r free, after random offers.
    cpu_per_gpu: milli CPU per GPU-milli of all GPU demand, x 1000. scarcity[model]: price in thousandths.
    """

    steps: Ints
    level: Ints
    usable: Ints
    many: Ints
    copy_inverse: Ints
    copy_offset: Ints
    copy_need: Ints
    copy_value: Ints
    quotients: Ints
    groups: Ints
    rest: Ints
    cpu_per_gpu: int
    scarcity: Ints


def build(histogram: Mapping[Shape, int], arrays: Arrays) -> Demand:
    """Return the tables for a histogram of classes on this pool. An empty histogram expects single whole GPUs."""
    weights = _weights(histogram) or {Shape(0, 0, WHOLE_GPU, 1): PPM}
    kept = [(shape, share) for shape, share in weights.items() if shape.gpus]
    models = len(arrays.names)
    steps = np.array(sorted({shape.cpu_milli for shape, _ in kept}), np.int64)
    needs = sorted({shape.gpu_milli for shape, _ in kept if shape.gpus == 1})
    level = np.searchsorted(np.array(needs, np.int64), np.arange(WHOLE_GPU + 1), side="right").astype(np.int64)
    usable = np.zeros((models, len(steps) + 1, len(needs) + 1), np.int64)
    many = np.zeros((models, len(steps) + 1, arrays.free.shape[1] + 1), np.int64)
    for shape, share in kept:
        rank = int(np.searchsorted(steps, shape.cpu_milli)) + 1
        for model in range(models):
            if not shape.models >> model & 1:
                continue
            if shape.gpus == 1:
                usable[model, rank:, needs.index(shape.gpu_milli) + 1 :] += share
            else:
                many[model, rank:, shape.gpus :] += share
    gpu_milli = sum(shape.milli * count for shape, count in histogram.items())
    cpu_milli = sum(shape.cpu_milli * count for shape, count in histogram.items() if shape.gpus)
    return Demand(
        steps=steps,
        level=level,
        usable=usable,
        many=many,
        **_copies(kept, models, arrays.free.shape[1]),
        rest=_rests(histogram),
        cpu_per_gpu=max(1, 1000 * cpu_milli // gpu_milli) if gpu_milli else 1000,
        scarcity=_scarcity(histogram, arrays),
    )


def _copies(kept: list[tuple[Shape, int]], models: int, width: int) -> dict[str, Ints]:
    """Return the tables of `uncopied`: one column for each class, those of one GPU first."""
    copied = sorted(kept, key=lambda item: (item[0].gpu_milli, item[0].gpus, item[0].cpu_milli, item[0].models))
    needs = sorted({shape.gpu_milli for shape, _ in copied if shape.gpus == 1})
    counts = sorted({shape.gpus for shape, _ in copied if shape.gpus > 1})
    quotients = np.arange(WHOLE_GPU + 1)[:, None] // np.array([*needs, *[WHOLE_GPU + 1] * len(counts)])[None, :]
    groups = np.zeros((width + 1, len(needs) + len(counts)), np.int64)
    groups[:, len(needs) :] = np.arange(width + 1)[:, None] // np.array(counts, np.int64)[None, :]
    cpus = [min(shape.cpu_milli, 1 << CPU_BITS) for shape, _ in copied]
    value = [[shape.milli * share * (shape.models >> model & 1) for shape, share in copied] for model in range(models)]
    return {
        "copy_inverse": np.array([-(-(1 << 2 * CPU_BITS) // cpu) if cpu else 0 for cpu in cpus], np.int64),
        "copy_offset": np.array([0 if cpu else 1 << 3 * CPU_BITS for cpu in cpus], np.int64),
        "copy_need": np.array(
            [needs.index(s.gpu_milli) if s.gpus == 1 else len(needs) + counts.index(s.gpus) for s, _ in copied],
            np.int64,
        ),
        "copy_value": np.array(value, np.int64).reshape(models, len(copied)),
        "quotients": quotients.astype(np.int64),
        "groups": groups,
    }


def _weights(histogram: Mapping[Shape, int]) -> dict[Shape, int]:
    """Classes without memory, by falling weight until the cut, with their shares in ppm (of all that is kept).

    Where there are too many to look at, those with nearly the same CPU and fraction are counted as one, rounded up.
    """
    kept, coarse = _heaviest(histogram, 0), 0
    while len(kept) > MOST_CLASSES:
        coarse += 1
        kept = _heaviest(histogram, coarse)
    held = sum(weight for _, weight in kept)
    return {shape: weight * PPM // held for shape, weight in kept}


def _heaviest(histogram: Mapping[Shape, int], coarse: int) -> list[tuple[Shape, int]]:
    """Return the classes until the cut, CPU and fractions rounded up to so many binary places."""
    step = (1 << coarse) - 1
    merged: dict[Shape, int] = {}
    for shape, count in histogram.items():
        fraction = shape.gpus == 1 and shape.gpu_milli < WHOLE_GPU
        milli = min(WHOLE_GPU, (shape.gpu_milli + step) & ~step) if fraction else shape.gpu_milli
        bare = Shape((shape.cpu_milli + step) & ~step, 0, milli, shape.gpus, shape.models)
        merged[bare] = merged.get(bare, 0) + count * (1000 + shape.milli)
    ordered = sorted(merged.items(), key=lambda i: (-i[1], i[0].cpu_milli, i[0].gpu_milli, i[0].gpus, i[0].models))
    total, kept, held = sum(merged.values()), [], 0
    for shape, weight in ordered:
        if held * PPM >= total * CUT_PPM:
            break
        kept.append((shape, weight))
        held += weight
    return kept


def _rests(histogram: Mapping[Shape, int]) -> Ints:
    """Expected unfilled rest of a shared GPU by what is free on it, in micro-GPU, after OFFERS random fractions."""
    counts: dict[int, int] = {}
    for shape, count in histogram.items():
        if shape.gpus == 1 and shape.gpu_milli < WHOLE_GPU:
            counts[shape.gpu_milli] = counts.get(shape.gpu_milli, 0) + count
    total = sum(counts.values())
    free = np.arange(WHOLE_GPU + 1, dtype=np.int64)
    rest = free * 1000
    for _ in range(OFFERS if total else 0):
        shares = {need: count * PPM // total for need, count in counts.items()}
        after = rest * (PPM - sum(shares.values()))
        for need, share in sorted(shares.items()):
            after += share * rest[np.where(free >= need, free - need, free)]
        rest = after // PPM
    return rest


def _scarcity(histogram: Mapping[Shape, int], arrays: Arrays) -> Ints:
    """Price of each model: how much fuller than the emptiest it runs if demand spreads as evenly as its models allow.

    Found by pouring the demand in small drops, the least flexible classes first, each drop into the emptiest model that
    may take it. In thousandths of the pool's mean load; 0 for the emptiest model, 0 everywhere if all may go anywhere.
    """
    models = len(arrays.names)
    everything = (1 << models) - 1
    capacity = [int(arrays.rows[arrays.rows[:, MODEL] == m, GPUS].sum()) * WHOLE_GPU for m in range(models)]
    wanted: dict[int, int] = {}
    for shape, count in histogram.items():
        mask = shape.models & everything
        wanted[mask] = wanted.get(mask, 0) + shape.milli * count
    total = sum(wanted.values())
    if not total or all(mask == everything for mask in wanted):
        return np.zeros(models, np.int64)
    load = [0] * models
    for mask, milli in sorted(wanted.items(), key=lambda item: (item[0].bit_count(), item[0])):
        allowed = [m for m in range(models) if mask >> m & 1 and capacity[m]]
        drops = 256
        for drop in range(drops if allowed else 0):
            emptiest = min(allowed, key=lambda m: (load[m] * PPM // capacity[m], m))
            load[emptiest] += milli * (drop + 1) // drops - milli * drop // drops
    pool = sum(capacity)
    levels = [1000 * load[m] * pool // (capacity[m] * total) if capacity[m] else 0 for m in range(models)]
    lowest = min((level for level, size in zip(levels, capacity, strict=True) if size), default=0)
    return np.array([max(0, level - lowest) for level in levels], np.int64)


def cpu_ratio(arrays: Arrays, demand: Demand) -> Ints:
    """Thousandths by which a host's CPU per GPU exceeds that of the demand (negative: it has less)."""
    gpus = np.maximum(arrays.rows[:, GPUS], 1)
    ratio: Ints = 1000 * (arrays.rows[:, ALL_CPU] * 1000 // demand.cpu_per_gpu) // (WHOLE_GPU * gpus) - 1000
    return ratio
