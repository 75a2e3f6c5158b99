"""The pool as flat integer arrays: one row per host, and what a request needs of it.

`Arrays.free[host, gpu]` is what is left of each GPU in thousandths (0 where the host has no such GPU). All other state
of a host stands in one row of `Arrays.rows`, whose columns are the constants below, so that whoever scores a host
reads one place in memory.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

WHOLE_GPU = 1000
CPU, MEMORY, IDLE, WHOLE, WIDEST, LEASES, STATE, GPUS, MODEL, ALL_CPU, TIE, CHANGED, RATIO, BEFORE = range(14)
COLUMNS = 15  # BEFORE takes two: the host's potential as it is, for requests with GPUs and for those without
MOST_GPUS, MOST_MODELS, MOST_CAPACITY = 62, 62, 1 << 40  # GPUs and models are bits of a number
HASH_KEY = b"gpuyard placement 1"

NodeRow = tuple[str, int, int, int, str]  # node, cpu_milli, memory_mib, GPU count, GPU model


class Shape(NamedTuple):
    """What a request needs, and all that a score may look at: requests of one shape are one class.

    gpu_milli: thousandths of each GPU; below 1000 only where gpus is 1. gpus 0 = CPU only.
    models: bit mask over the pool's models that may serve it; -1 = any.
    """

    cpu_milli: int
    memory_mib: int
    gpu_milli: int
    gpus: int
    models: int = -1

    @property
    def milli(self) -> int:
        """Thousandths of a GPU that it takes in all."""
        return self.gpu_milli * self.gpus

    @property
    def whole(self) -> int:
        """How many whole free GPUs it needs (0 for a fraction or CPU only)."""
        return self.gpus if self.gpu_milli == WHOLE_GPU else 0


@dataclass(slots=True)
class Arrays:
    """State of all hosts. `names` are the models that the column MODEL counts through, in alphabetical order."""

    rows: Ints
    free: Ints
    names: tuple[str, ...]

    @property
    def hosts(self) -> int:
        """How many hosts there are."""
        return len(self.rows)


def stable_hash(key: object) -> int:
    """Return a keyed 62-bit hash of a host's key, equal on every machine and in every run."""
    return int.from_bytes(blake2b(str(key).encode(), digest_size=8, key=HASH_KEY).digest(), "big") >> 2


def build(nodes: Sequence[NodeRow]) -> Arrays:
    """Return the arrays of an empty pool. Raises ValueError for a doubled name and for what no node can have."""
    if len({node[0] for node in nodes}) != len(nodes):
        raise ValueError("two nodes bear one name")
    if any(min(cpu, memory, gpus) < 0 for _, cpu, memory, gpus, _ in nodes):
        raise ValueError("a node has a negative capacity")
    if any(gpus > MOST_GPUS or max(cpu, memory) > MOST_CAPACITY for _, cpu, memory, gpus, _ in nodes):
        raise ValueError(f"a node has more than {MOST_GPUS} GPUs, or more CPU or memory than {MOST_CAPACITY}")
    if len({model for *_, model in nodes}) > MOST_MODELS:
        raise ValueError(f"more than {MOST_MODELS} GPU models")
    names = tuple(sorted({model for *_, model in nodes}))
    width = max((gpus for *_, gpus, _ in nodes), default=1)
    rows = np.zeros((len(nodes), COLUMNS), np.int64)
    free = np.zeros((len(nodes), max(width, 1)), np.int64)
    for index, (name, cpu, memory, gpus, model) in enumerate(nodes):
        rows[index, [CPU, MEMORY, GPUS, MODEL, ALL_CPU, TIE]] = (
            cpu,
            memory,
            gpus,
            names.index(model),
            cpu,
            stable_hash(name),
        )
        free[index, :gpus] = WHOLE_GPU
    arrays = Arrays(rows, free, names)
    refresh(arrays, range(len(nodes)))
    return arrays


def mixed(value: Ints) -> Ints:
    """Return well-mixed 62-bit images of integers (a finalizer in the manner of splitmix64)."""
    x = value.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((x ^ (x >> np.uint64(31))) >> np.uint64(2)).astype(np.int64)


# The image of each possible rest of a GPU: their sum names a set of rests whatever their order.
REST_IMAGES = mixed(np.arange(1, WHOLE_GPU + 2, dtype=np.int64)) >> 5
IMAGES: list[int] = REST_IMAGES.tolist()


def change(arrays: Arrays, host: int, gpus: Sequence[int], sign: int, shape: Shape) -> None:
    """Take (sign 1) or give back (-1) a request on one host. Refreshes what is derived."""
    row, free = arrays.rows[host], arrays.free[host]
    row[CPU] -= sign * shape.cpu_milli
    row[MEMORY] -= sign * shape.memory_mib
    row[LEASES] += sign
    for gpu in gpus:
        free[gpu] -= sign * shape.gpu_milli
    refresh(arrays, (host,))


def refresh(arrays: Arrays, hosts: Iterable[int]) -> None:
    """Recompute what is derived from `free` for these hosts: idle, whole and widest GPUs, and the name of the state.

    STATE is equal for hosts whose GPUs, shape and model are alike up to the order of GPUs: the last tie-break before
    the hash of the host's key.
    """
    for host in hosts:
        row = arrays.rows[host]
        rests = arrays.free[host].tolist()
        row[IDLE] = sum(rests)
        row[WHOLE] = rests.count(WHOLE_GPU)
        row[WIDEST] = max(rests)
        row[STATE] = sum(IMAGES[rest] for rest in rests) + int(row[MODEL]) * 7919 + int(row[GPUS])
