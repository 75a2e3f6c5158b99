"""Run one stream through our engine or a control, recounted, and return the protocol's figures."""

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
