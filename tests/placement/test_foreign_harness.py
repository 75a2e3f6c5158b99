"""The engine in other people's hands: odd pools, odd requests, mistakes: clear errors, and nothing has changed."""

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from scheduler.placement import kernels
from scheduler.placement.engine import Engine, Request
from scheduler.placement.pool import Shape
from scheduler.placement.recount import Recount

ROWS = [
    ("n/a \u00fc", 96_000, 393_216, 8, "G2"),
    ("", 64_000, 262_144, 2, "T4"),
    ("cpu only", 32_000, 65_536, 0, ""),
    ("wide", 128_000, 900_000, 16, "G3"),
]
BOTH = [False, pytest.param(True, marks=pytest.mark.skipif(not kernels.AVAILABLE, reason="numba is not installed"))]


def state(engine: Engine) -> Any:
    return engine._arrays.rows.tolist(), engine._arrays.free.tolist(), dict(engine._live.leases)


@pytest.mark.parametrize("compiled", BOTH)
@pytest.mark.parametrize(
    "wrong",
    [
        Request("b", -1, 0, 1),
        Request("b", 0, -1, 1),
        Request("b", 0, 0, -1),
        Request("b", 0, 0, 2, 500),
        Request("b", 0, 0, 1, 0),
        Request("b", 0, 0, 1, 1_001),
        Request("b", 1.5, 0, 1),  # type: ignore[arg-type]
        Request("b", True, 0, 1),
        Request("b", "1", 0, 1),  # type: ignore[arg-type]
        Request("b", 1, 0, 1, 1000, "T4"),  # type: ignore[arg-type]
        Request("b", 1, 0, 1, 1000, (4,)),  # type: ignore[arg-type]
        Request("a", 1, 1, 1),
    ],
)
def test_what_cannot_be_meant_raises_and_changes_nothing(wrong: Request, compiled: bool) -> None:
    engine = Engine(ROWS, compiled=compiled)
    assert engine.place(Request("a", 1_000, 1_000, 1, 333)) is not None
    before = state(engine)

    with pytest.raises(ValueError, match="cannot be placed"):
        engine.place(wrong)

    assert state(engine) == before
    assert engine.place(Request("c", 1_000, 1_000, 1, 667)) is not None


@pytest.mark.parametrize("compiled", BOTH)
@pytest.mark.parametrize(
    "large",
    [
        Request("b", 1, 1, 17),
        Request("b", 1, 1, 10**30),
        Request("b", 10**30, 1, 1),
        Request("b", 1, 10**30, 1),
        Request("b", 1, 1, 1, 1000, ("B200",)),
        Request("b", 1, 1, 3, 1000, ("T4",)),
        Request("b", 1, 900_001, 0),
    ],
)
def test_what_no_node_can_hold_is_placed_nowhere_and_changes_nothing(large: Request, compiled: bool) -> None:
    engine = Engine(ROWS, compiled=compiled)
    before = state(engine)

    assert engine.place(large) is None

    assert state(engine) == before


@pytest.mark.parametrize("compiled", BOTH)
def test_released_twice_or_never_placed_raises_and_changes_nothing(compiled: bool) -> None:
    engine = Engine(ROWS, compiled=compiled)
    asked = Request("a", 1_000, 1_000, 1, 810)
    engine.place(asked)
    engine.release(asked)
    before = state(engine)

    for unknown in (asked, "a", "never", Request("never", 1, 1, 1)):
        with pytest.raises(KeyError, match="nothing is placed"):
            engine.release(unknown)

    assert state(engine) == before
    assert not engine._live.leases


@dataclass
class Pod:
    """Somebody else's request."""

    key: int
    cpu_milli: Any
    memory_mib: Any
    gpus: Any
    gpu_milli: Any
    models: Any = ()


@pytest.mark.parametrize("compiled", BOTH)
def test_requests_of_another_class_with_numpy_numbers_and_lists_are_understood(compiled: bool) -> None:
    engine = Engine(ROWS, compiled=compiled)
    pod = Pod(7, np.int64(1_000), np.int32(1_000), np.int64(1), np.int64(470), ["T4", "V100"])

    answer = engine.place(pod)  # type: ignore[arg-type]

    assert answer is not None
    assert answer.node == ""
    engine.release(pod)
    assert (engine._arrays.free == Engine(ROWS, compiled=compiled)._arrays.free).all()


def random_request(rng: random.Random, key: int) -> Request:
    gpus = rng.choice([0, 1, 1, 1, 2, 3, 4, 8, 16, 17])
    milli = rng.choice([1, 333, 810, 999, rng.randrange(1, 1001)]) if gpus == 1 else 1000
    models = rng.choice([(), (), ("T4",), ("G2", "G3"), ("none",), ("", "G2")])
    return Request(key, rng.randrange(0, 40_000), rng.randrange(0, 200_000), gpus, milli, models)


@pytest.mark.parametrize("compiled", BOTH)
@pytest.mark.parametrize("histogram", [None, {}, {Shape(1_000, 0, 470, 1): 0}, {Shape(4_000, 0, 1000, 8): 5}])
def test_odd_streams_are_placed_whenever_a_node_has_room(histogram: Any, compiled: bool) -> None:
    """Every class occurs once or so: all of them cold, and far more than are kept. Nothing feasible is refused."""
    rng = random.Random(17)
    rows = [(f"{name} {copy}", *rest) for copy in range(3) for name, *rest in ROWS]
    engine, recount, live = Engine(rows, histogram=histogram, compiled=compiled), Recount(rows), []  # type: ignore[arg-type,var-annotated]
    refused = 0
    for key in range(700):
        if live and rng.random() < 0.3:
            gone = live.pop(rng.randrange(len(live)))
            engine.release(gone)
            recount.released(gone)
            continue
        asked = random_request(rng, key)
        answer = engine.place(asked)
        if answer is None:
            refused += 1
            assert not recount.has_room(asked)
        else:
            recount.placed(asked, answer.node, answer.gpus)
            live.append(key)
    assert 0 < refused < 600
    for key in live:
        engine.release(key)
    assert (engine._arrays.free == Engine(rows, compiled=compiled)._arrays.free).all()


@pytest.mark.skipif(not kernels.AVAILABLE, reason="numba is not installed")
def test_numba_and_numpy_agree_on_odd_streams_where_memory_is_short() -> None:
    rows = [(f"n{i}", 90_000 + 1_000 * (i % 3), 60_000 + 40_000 * (i % 5), 8 - 4 * (i % 2), "G2") for i in range(150)]
    answers = []
    for compiled in (False, True):
        rng, engine, live = random.Random(5), Engine(rows, compiled=compiled), []  # type: ignore[var-annotated]
        said = []
        for key in range(2_500):
            if live and rng.random() < 0.42:
                engine.release(live.pop(rng.randrange(len(live))))
                continue
            memory = rng.choice([1_000, 20_000, 50_000, 90_000, 150_000])
            asked = Request(key, rng.choice([2_000, 8_000]), memory, 1, rng.choice([250, 500, 810, 1000]))
            said.append(engine.place(asked))
            if said[-1] is not None:
                live.append(key)
        answers.append(said)

    assert answers[0] == answers[1]
    assert None in answers[0]


@pytest.mark.parametrize(
    "rows",
    [
        [("a", 1, 1, 1, "T4"), ("a", 2, 2, 1, "T4")],
        [("a", -1, 1, 1, "T4")],
        [("a", 1, 1, 63, "T4")],
        [("a", 1 << 41, 1, 1, "T4")],
        [(f"n{i}", 1, 1, 1, f"model {i}") for i in range(63)],
    ],
)
def test_a_pool_that_cannot_be_is_refused(rows: Any) -> None:
    with pytest.raises(ValueError):
        Engine(rows)


@pytest.mark.parametrize("compiled", BOTH)
@pytest.mark.parametrize("rows", [[], [("cpu", 8_000, 8_000, 0, "none")]])
def test_a_pool_without_nodes_or_gpus_learns_and_refuses(rows: Any, compiled: bool) -> None:
    engine = Engine(rows, compiled=compiled)
    for key in range(150):
        assert engine.place(Request(key, 1, 1, 1, 500, ("T4",) if key % 2 else ())) is None
    assert (engine.place(Request("cpu", 1, 1)) is not None) is bool(rows)
