"""Run one stream through our engine or a control, recounted, and return the protocol's figures."""

import time
from typing import Any

import numpy as np
import placement_controls as controls
from placement_recount import Book, judge
from placement_trace import (
    Churn,
    Trace,
    capacity_milli,
    churn,
    churn_figure,
    inflation,
    inflation_figure,
)

from scheduler.placement.engine import Engine, Placed
from scheduler.placement.pool import NodeRow, Shape

Figures = dict[str, float]


def histogram(trace: Trace) -> dict[Shape, int]:
    """Return how often each class stands in the trace: what FGD is given, and our engine unless it learns."""
    counts: dict[Shape, int] = {}
    for pod in range(len(trace.cpu)):
        mask = int(trace.models[pod])
        shape = Shape(int(trace.cpu[pod]), int(trace.memory[pod]), int(trace.milli[pod]), int(trace.gpus[pod]), mask)
        counts[shape] = counts.get(shape, 0) + 1
    return counts


def ours_inflation(trace: Trace, nodes: list[NodeRow], seed: int, *, learn: bool = False, **options: Any) -> float:
    """Return our figure of the inflation test; nothing with room is refused."""
    capacity = capacity_milli(nodes)
    pods = np.array(inflation(trace, seed, capacity), np.int64)
    engine = Engine(nodes, histogram=None if learn else histogram(trace), **options)
    book = Book(trace, nodes)
    index = {row[0]: number for number, row in enumerate(nodes)}
    placed = np.zeros(len(pods), np.bool_)
    for key, pod in enumerate(pods.tolist()):
        answer = engine.place(trace.request(pod, key))
        if answer is None:
            assert not book.has_room(pod), "refused although a node had room"
        else:
            book.book(pod, index[answer.node], answer.gpus, 1)
            placed[key] = True
    assert book.allocated == int(trace.demand[pods][placed].sum())
    return inflation_figure(trace.demand[pods], placed, capacity)


def control_inflation(policy: str, trace: Trace, nodes: list[NodeRow], seed: int) -> float:
    """Return a control's figure of the inflation test."""
    capacity = capacity_milli(nodes)
    pods = np.array(inflation(trace, seed, capacity), np.int64)
    departs, arrival = np.zeros(len(pods), np.bool_), np.arange(len(pods), dtype=np.int64)
    went, masks = controls.run(policy, trace, nodes, pods, departs, arrival, seed)
    judge(trace, nodes, pods, departs, arrival, went, masks)
    return inflation_figure(trace.demand[pods], went >= 0, capacity)


def control_churn(
    policy: str, trace: Trace, nodes: list[NodeRow], load: float, warm_up: int, window: int, seed: int
) -> Figures:
    """Return a control's losses under churn."""
    stream = churn(trace, load, warm_up, window, seed, capacity_milli(nodes))
    went, masks = controls.run(policy, trace, nodes, stream.pods, stream.departs, stream.arrival, seed)
    judge(trace, nodes, stream.pods, stream.departs, stream.arrival, went, masks)
    lost, lost8 = churn_figure(trace, stream, went >= 0)
    return {"lost": lost, "lost8": lost8, "moved": 0.0}


def ours_churn(
    trace: Trace, nodes: list[NodeRow], load: float, warm_up: int, window: int, seed: int, **options: Any
) -> Figures:
    """Return our losses under churn, with what was moved in % of the GPU milli offered in the window."""
    stream = churn(trace, load, warm_up, window, seed, capacity_milli(nodes))
    engine = Engine(nodes, histogram=histogram(trace), **options)
    placed, moved = play_churn(engine, trace, nodes, stream)
    lost, lost8 = churn_figure(trace, stream, placed)
    offered = int(trace.demand[stream.pods][stream.measured].sum())
    return {"lost": lost, "lost8": lost8, "moved": 100 * moved / offered}


def play_churn(engine: Engine, trace: Trace, nodes: list[NodeRow], stream: Churn) -> tuple[Any, int]:
    """Play a churn stream, recounted; return (placed by arrival, GPU milli moved by measured arrivals)."""
    book = Book(trace, nodes)
    index = {row[0]: number for number, row in enumerate(nodes)}
    where: dict[int, tuple[int, tuple[int, ...]]] = {}
    placed = np.zeros(len(stream.pods), np.bool_)
    pods, moved = stream.pods.tolist(), 0
    for is_departure, who in stream.events():
        if is_departure:
            if who in where:
                engine.release(who)
                book.book(pods[who], *where.pop(who), -1)
            continue
        answer = engine.place(trace.request(pods[who], who))
        if answer is None:
            continue
        moved += _book_moves(book, answer, pods, where, index) * int(stream.measured[who])
        _book_placed(book, answer, who, pods, where, index)
        placed[who] = True
    return placed, moved


def _book_moves(book: Book, answer: Placed, pods: list[int], where: dict[Any, Any], index: dict[str, int]) -> int:
    """Take every moved lease off its old place; the new ones follow when the guest sits."""
    moved = 0
    for move in answer.moves:
        assert where[move.key][0] == index[move.from_node]
        book.book(pods[move.key], *where.pop(move.key), -1)
        moved += int(book.trace.demand[pods[move.key]])
    return moved


def _book_placed(
    book: Book, answer: Placed, who: int, pods: list[int], where: dict[Any, Any], index: dict[str, int]
) -> None:
    where[who] = (index[answer.node], answer.gpus)
    book.book(pods[who], *where[who], 1)
    for move in answer.moves:
        where[move.key] = (index[move.to_node], move.gpus)
        book.book(pods[move.key], *where[move.key], 1)


def throughput(trace: Trace, nodes: list[NodeRow], times: int, seed: int, *, compiled: bool, limit: int) -> Figures:
    """Decisions per CPU second, and latencies in ms, of the inflation stream on the pool taken `times` times."""
    pool = [(f"{name}/{copy}", *rest) for copy in range(times) for name, *rest in nodes]
    pods = inflation(trace, seed, capacity_milli(nodes) * times)[:limit]
    engine = Engine(pool, histogram=histogram(trace), compiled=compiled)
    requests = [trace.request(pod, key) for key, pod in enumerate(pods)]
    taken = np.zeros(len(requests))
    cpu = time.process_time()
    for number, request in enumerate(requests):
        start = time.perf_counter()
        engine.place(request)
        taken[number] = time.perf_counter() - start
    cpu = time.process_time() - cpu
    p50, p99 = np.percentile(taken, [50, 99])
    return {
        "decisions": len(requests),
        "per_cpu_s": len(requests) / cpu,
        "p50_ms": 1000 * float(p50),
        "p99_ms": 1000 * float(p99),
        "max_ms": 1000 * float(taken.max()),
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


def mean(figures: list[Figures]) -> Figures:
    """Return the mean of each figure."""
    return {key: float(np.mean([f[key] for f in figures])) for key in figures[0]}
