"""The engine's score for rooms of a snapshot, so that a lease is packed by the same numbers as the benchmark's stream.

Hosts of a market give each GPU a fixed share of CPU, so CPU is counted in shares here: 1000 = what goes with one GPU.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from scheduler.placement.availability import free_resources, most_free, overlaps
from scheduler.placement.demand import Demand, build, cpu_ratio
from scheduler.placement.eligibility import Room
from scheduler.placement.pool import (
    ALL_CPU,
    COLUMNS,
    CPU,
    GPUS,
    IDLE,
    LEASES,
    MEMORY,
    RATIO,
    WHOLE,
    WHOLE_GPU,
    WIDEST,
    Arrays,
    Ints,
    Shape,
)
from scheduler.placement.score import gain, load_policy
from scheduler.placement.snapshot import UNITS, Ask, HostView

UNIT_MILLI = WHOLE_GPU // UNITS
WIDTH = 16  # GPUs of the largest machine that a request can name
# What a market is expected to ask for where nothing better is known: (GPUs, thousandths of each, how often).
EXPECTED = ((1, 125, 1), (1, 250, 1), (1, 500, 2), (1, 1000, 8), (2, 1000, 4), (4, 1000, 3), (8, 1000, 3))


@dataclass(frozen=True, slots=True)
class Packing:
    """What a room is worth for one ask (higher = better packed), and what is free on its host before that."""

    score: int
    idle_units: int
    cpu_milli: int
    ram_mib: int


def packings(rooms: Sequence[Room], ask: Ask) -> list[Packing]:
    """Return the packing of each room, in their order."""
    if not rooms:
        return []
    width = max(WIDTH, *(len(room.host.devices) for room in rooms))
    demand = _expected(width)
    rows, free = np.zeros((len(rooms), COLUMNS), np.int64), np.zeros((len(rooms), width), np.int64)
    after = np.zeros_like(free)
    taken_cpu, taken_memory = np.zeros(len(rooms), np.int64), np.zeros(len(rooms), np.int64)
    idle = []
    for index, room in enumerate(rooms):
        idle.append(_describe(room.host, ask, rows[index], free[index]))
        after[index] = free[index]
        position = {device.key: number for number, device in enumerate(room.host.devices)}
        for seat in room.seats:
            after[index, position[seat.device]] -= UNIT_MILLI * (seat.stop - seat.start)
        taken_cpu[index] = _in_shares(room.host, room.cpu_milli)
        taken_memory[index] = room.ram_mib
    then = _after(rows, after, taken_cpu, taken_memory)
    milli = int((free[0] - after[0]).sum())
    shape = Shape(0, 0, milli if milli <= WHOLE_GPU else WHOLE_GPU, max(1, milli // WHOLE_GPU))
    rows[:, RATIO] = cpu_ratio(Arrays(rows, free, ()), demand)
    scores = gain(load_policy().steady.gpu, demand, rows, free, then, after, shape)
    return [Packing(int(score), *left) for score, left in zip(scores, idle, strict=True)]


@lru_cache(maxsize=16)
def _expected(width: int) -> Demand:
    histogram = {Shape(g * milli, 0, milli, g): often for g, milli, often in EXPECTED}
    one_model = np.zeros((1, COLUMNS), np.int64)
    one_model[0, [GPUS, ALL_CPU]] = width, width * WHOLE_GPU
    return build(histogram, Arrays(one_model, np.full((1, width), WHOLE_GPU, np.int64), ("any",)))


def _in_shares(host: HostView, cpu_milli: int) -> int:
    return cpu_milli * WHOLE_GPU // max(1, host.cpu_milli_per_gpu)


def _describe(host: HostView, ask: Ask, row: Ints, free: Ints) -> tuple[int, int, int]:
    """Write what is free on a host over the range of the ask: of each device, what its best mode leaves.

    Return the units, CPU milli and RAM MiB that are free.
    """
    units = [most_free(device, ask.organization, ask.start_s, ask.until_s) for device in host.devices]
    free[: len(units)] = units
    free *= UNIT_MILLI
    lines = sum(overlaps(busy, ask.start_s, ask.until_s) for device in host.devices for busy in device.busy)
    cpu, ram, _ = free_resources(host, ask.start_s, ask.until_s)
    row[[CPU, MEMORY, LEASES, GPUS]] = _in_shares(host, cpu), ram, lines, len(host.devices)
    row[ALL_CPU] = _in_shares(host, host.cpu_milli)
    row[[IDLE, WHOLE, WIDEST]] = UNIT_MILLI * sum(units), units.count(UNITS), UNIT_MILLI * max(units, default=0)
    return sum(units), cpu, ram


def _after(rows: Ints, free: Ints, cpu: Ints, memory: Ints) -> Ints:
    then = rows.copy()
    then[:, CPU] -= cpu
    then[:, MEMORY] -= memory
    then[:, IDLE], then[:, WHOLE] = free.sum(axis=1), (free == WHOLE_GPU).sum(axis=1)
    return then
