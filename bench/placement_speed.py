"""Speed of the placement engine: one request per Python call, one core, cold classes included.

CPU time of the process, so that what else runs on the machine counts little; each row several times, the median
reported beside the range. Latencies are wall-clock, and suffer from neighbours.
"""

import statistics
import time
from typing import Any

import numpy as np
from placement_runs import histogram
from placement_trace import Trace, capacity_milli, churn, inflation

from scheduler.placement.engine import Engine
from scheduler.placement.pool import NodeRow

REPEATS = 3
Figures = dict[str, float]


def speeds(trace: Trace, nodes: list[NodeRow], *, numba: bool, quick: bool) -> dict[str, Any]:
    """Return every row: pool x 1, 2 and 16 in numpy and numba, and events under churn."""
    rows = {"numpy_6k": (1, False), "numpy_12k": (2, False), "numpy_99k": (16, False)}
    if numba:
        throughput(trace, nodes, 1, 42, compiled=True, limit=50)  # the compiler's time is not ours
        rows |= {"numba_6k": (1, True), "numba_12k": (2, True), "numba_99k": (16, True)}
    detail: dict[str, Any] = {}
    for key, (times, compiled) in rows.items():
        limit = (20_000 if quick else 1 << 30) if compiled else (5_000 if quick else 22_000)
        detail[key] = median(
            [
                throughput(trace, nodes, times, 42, compiled=compiled, limit=limit)
                for _ in range(1 if quick else REPEATS)
            ]
        )
    limit = 20_000 if quick else 1 << 30
    detail["churn_numba" if numba else "churn_numpy"] = median(
        [throughput_churn(trace, nodes, compiled=numba, limit=limit) for _ in range(1 if quick else REPEATS)]
    )
    return detail


def yardstick() -> float:
    """Return how many small calls of numpy this machine makes per CPU second now, to set beside a decision's speed."""
    numbers, rows = np.arange(64, dtype=np.int64), np.arange(0, 64, 3)
    calls, cpu = 20_000, time.process_time()
    for _ in range(calls // 4):
        taken = numbers.take(rows)
        taken *= 3
        (taken > 40).nonzero()
    return calls / (time.process_time() - cpu)


def median(figures: list[Figures]) -> Figures:
    """Return the median of each figure, and the range of the decisions per second."""
    result = {key: statistics.median([row[key] for row in figures]) for key in figures[0]}
    speed = [row["per_cpu_s"] for row in figures]
    return result | {"per_cpu_s_least": min(speed), "per_cpu_s_most": max(speed), "repeats": len(figures)}


def throughput(trace: Trace, nodes: list[NodeRow], times: int, seed: int, *, compiled: bool, limit: int) -> Figures:
    """Decisions per CPU second, and latencies in ms, of the inflation stream on the pool taken `times` times."""
    pool = [(f"{name}/{copy}", *rest) for copy in range(times) for name, *rest in nodes]
    pods = inflation(trace, seed, capacity_milli(nodes) * times)[:limit]
    engine = Engine(pool, histogram=histogram(trace), compiled=compiled)
    requests = [trace.request(pod, key) for key, pod in enumerate(pods)]
    taken = np.zeros(len(requests))
    yards = yardstick()
    cpu = time.process_time()
    for number, request in enumerate(requests):
        start = time.perf_counter()
        engine.place(request)
        taken[number] = time.perf_counter() - start
    cpu = time.process_time() - cpu
    yards = (yards + yardstick()) / 2
    p50, p99 = np.percentile(taken, [50, 99])
    return {
        "decisions": len(requests),
        "per_cpu_s": len(requests) / cpu,
        "p50_ms": 1000 * float(p50),
        "p99_ms": 1000 * float(p99),
        "max_ms": 1000 * float(taken.max()),
        "yardstick_per_cpu_s": yards,
        "yards_per_decision": yards * cpu / len(requests),
    }


def throughput_churn(trace: Trace, nodes: list[NodeRow], *, compiled: bool, limit: int) -> Figures:
    """Events (placements and releases) per CPU second under churn at load 0.95."""
    stream = churn(trace, 0.95, 3, 3, 1, capacity_milli(nodes))
    engine = Engine(nodes, histogram=histogram(trace), compiled=compiled)
    requests = [trace.request(pod, key) for key, pod in enumerate(stream.pods.tolist())]
    events = list(stream.events())[:limit]
    live: set[int] = set()
    cpu = time.process_time()
    for is_departure, who in events:
        if not is_departure:
            if engine.place(requests[who]) is not None:
                live.add(who)
        elif who in live:
            engine.release(who)
            live.discard(who)
    return {"decisions": len(events), "per_cpu_s": len(events) / (time.process_time() - cpu)}
