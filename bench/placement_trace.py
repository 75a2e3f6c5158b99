"""The public traces of the placement benchmark, and the streams of requests that its protocol draws from them."""

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scheduler.placement.engine import Request
from scheduler.placement.pool import NodeRow

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

TRACES = (
    "default", "cpu050", "cpu100", "cpu200", "cpu250", "gpushare40", "gpushare60", "gpushare80", "gpushare100",
    "gpuspec10", "gpuspec20", "gpuspec25", "gpuspec33", "multigpu20", "multigpu30", "multigpu40", "multigpu50",
)  # fmt: skip
OFFERED = 1.3  # times the capacity


@dataclass(frozen=True)
class Trace:
    """A pod list, sorted by name. milli is of each GPU; models is a bit mask over `names`, -1 = any."""

    name: str
    names: tuple[str, ...]
    cpu: Ints
    memory: Ints
    milli: Ints
    gpus: Ints
    models: Ints

    @cached_property
    def demand(self) -> Ints:
        """GPU milli of each pod."""
        return self.milli * self.gpus

    def request(self, pod: int, key: int) -> Request:
        """Return the pod as a request of the engine."""
        mask = int(self.models[pod])
        allowed = () if mask == -1 else tuple(n for i, n in enumerate(self.names) if mask >> i & 1) or ("none",)
        gpus = int(self.gpus[pod])
        return Request(
            key, int(self.cpu[pod]), int(self.memory[pod]), gpus, int(self.milli[pod]) if gpus else 1000, allowed
        )

    def tiled(self) -> "Trace":
        """The same with fractions rounded up to 1/8, 1/4, 1/2 or 1."""
        steps = np.array([125, 250, 500, 1000])
        milli = np.where(self.gpus == 1, steps[np.searchsorted(steps, np.maximum(self.milli, 1))], self.milli)
        return Trace(self.name + "-tiled", self.names, self.cpu, self.memory, milli, self.gpus, self.models)


def read_nodes(data: Path) -> list[NodeRow]:
    """Return the pool in file order."""
    with (data / "openb/openb_node_list_gpu_node.csv").open() as file:
        rows = list(csv.DictReader(file))
    return [(r["sn"], int(r["cpu_milli"]), int(r["memory_mib"]), int(r["gpu"]), r["model"]) for r in rows]


def read_trace(data: Path, name: str, nodes: list[NodeRow]) -> Trace:
    """Return one pod list."""
    names = tuple(sorted({row[4] for row in nodes}))
    with (data / f"openb/openb_pod_list_{name}.csv").open() as file:
        rows = sorted(csv.DictReader(file), key=lambda row: row["name"])

    def mask(row: dict[str, str]) -> int:
        wanted = row.get("gpu_spec") or ""
        return sum(1 << names.index(m) for m in set(wanted.split("|")) if m in names) if wanted else -1

    gpus = np.array([int(row["num_gpu"]) for row in rows], np.int64)
    return Trace(
        name,
        names,
        cpu=np.array([int(row["cpu_milli"]) for row in rows], np.int64),
        memory=np.array([int(row["memory_mib"]) for row in rows], np.int64),
        milli=np.array([int(row["gpu_milli"] or 0) for row in rows], np.int64) * (gpus > 0),
        gpus=gpus,
        models=np.array([mask(row) for row in rows], np.int64),
    )


def capacity_milli(nodes: list[NodeRow]) -> int:
    """Return all GPU milli of the pool."""
    return 1000 * sum(row[3] for row in nodes)


def inflation(trace: Trace, seed: int, capacity: int) -> list[int]:
    """Return the pods offered, in order: the list shuffled, thinned or filled up to 1.3 times the capacity."""
    rng = np.random.default_rng(seed)
    pods = len(trace.cpu)
    sequence = rng.permutation(pods).tolist()
    demand = int(trace.demand.sum())
    while demand > OFFERED * capacity:
        demand -= int(trace.demand[sequence.pop(int(rng.integers(len(sequence))))])
    while True:
        pod = int(rng.integers(pods))
        if demand + int(trace.milli[pod]) > OFFERED * capacity:
            return sequence
        sequence.append(pod)
        demand += int(trace.demand[pod])


def inflation_figure(asked: Ints, placed: NDArray[np.bool_], capacity: int) -> float:
    """Return the mean of allocated GPU, % of capacity, over the events at which 130 % (rounded) has been asked for."""
    at = np.array([round(100 * int(total) / capacity) for total in np.cumsum(asked)])
    allocated = np.cumsum(np.where(placed, asked, 0))
    return float((100 * allocated / capacity)[at == 130].mean())


@dataclass(frozen=True)
class Churn:
    """Arrivals with lifetimes. events: (is departure, arrival) in order of time; departures come first among equals."""

    pods: Ints
    measured: NDArray[np.bool_]
    departs: NDArray[np.bool_]
    arrival: Ints

    def events(self) -> Iterator[tuple[bool, int]]:
        """Yield (is departure, arrival)."""
        yield from zip(self.departs.tolist(), self.arrival.tolist(), strict=True)


def churn(trace: Trace, load: float, warm_up: int, window: int, seed: int, capacity: int) -> Churn:
    """Draw a stream; times in mean lifetimes. Measured are the arrivals after the warm-up until its end."""
    rate = load * capacity / float(trace.demand.mean())
    count = int(1.02 * rate * (warm_up + window))
    rng = np.random.default_rng(seed)
    pods = rng.integers(len(trace.cpu), size=count)
    arrives = np.cumsum(rng.exponential(1 / rate, size=count))
    leaves = arrives + rng.exponential(1, size=count)
    end = warm_up + window
    inside = arrives < end
    pods, arrives, leaves = pods[inside], arrives[inside], leaves[inside]
    times = np.concatenate((leaves, arrives))
    departs = np.arange(len(times)) < len(pods)
    arrival = np.concatenate((np.arange(len(pods)), np.arange(len(pods))))
    order = np.lexsort((~departs, times))
    order = order[times[order] < end]
    return Churn(pods.astype(np.int64), arrives >= warm_up, departs[order], arrival[order].astype(np.int64))


def churn_figure(trace: Trace, stream: Churn, placed: NDArray[np.bool_]) -> tuple[float, float]:
    """Return (% of GPU milli lost, % of eight-GPU requests lost) over the measured arrivals."""
    asked, lost = trace.demand[stream.pods], stream.measured & ~placed
    large = trace.gpus[stream.pods] == 8
    share = 100 * asked[lost].sum() / asked[stream.measured].sum()
    share_large = 100 * (large & lost).sum() / max(1, (large & stream.measured).sum())
    return float(share), float(share_large)


def node_orders(nodes: list[NodeRow]) -> dict[str, list[NodeRow]]:
    """Return the orders of the protocol; nodes are named anew by position."""
    rng = np.random.default_rng(0)
    orders = {f"random {number}": rng.permutation(len(nodes)).tolist() for number in range(8)}
    per_gpu = np.array([row[1] / row[3] for row in nodes])
    gpus = np.array([row[3] for row in nodes])
    for name, key in (("cores per GPU", per_gpu), ("GPUs", gpus)):
        orders[f"{name} up"] = np.argsort(key, kind="stable").tolist()
        orders[f"{name} down"] = np.argsort(-key, kind="stable").tolist()
    return {
        name: [(f"node-{position:04d}", *nodes[old][1:]) for position, old in enumerate(order)]
        for name, order in orders.items()
    }
