"""The engine on random streams: lawful, deterministic, the same in numpy and numba, blind to names and order."""

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.placement import kernels
from scheduler.placement.engine import Engine, Placed, Request, Turnover
from scheduler.placement.recount import Recount

SHAPES = [
    (3_152, 8_000, 1, 810, ()),
    (11_300, 30_000, 1, 1000, ()),
    (11_908, 20_000, 1, 470, ()),
    (12_500, 10_000, 0, 1000, ()),
    (4_000, 4_000, 1, 320, ()),
    (64_000, 260_000, 8, 1000, ()),
    (30_000, 130_000, 4, 1000, ("G2",)),
    (8_000, 16_000, 1, 1000, ("T4", "P100")),
    (16_000, 60_000, 2, 1000, ()),
]


def nodes(count: int) -> list[tuple[str, int, int, int, str]]:
    kinds = [
        (96_000, 393_216, 8, "G2"),
        (104_000, 524_288, 2, "T4"),
        (16_000, 122_880, 2, "P100"),
        (96_000, 380_000, 4, "T4"),
    ]
    return [(f"n{i}", *kinds[i % len(kinds)]) for i in range(count)]


def request(key: int, kind: int) -> Request:
    cpu, memory, gpus, milli, models = SHAPES[kind % len(SHAPES)]
    return Request(key, cpu, memory, gpus, milli, models)


def drive(engine: Engine, recount: Recount, events: list[tuple[str, int]], *, refuses: bool = False) -> list[Any]:
    """Play ("place", kind) and ("release", nth) events, judged step by step; return what was answered."""
    answers: list[Any] = []
    live: list[int] = []
    for key, (what, number) in enumerate(events):
        if what == "place":
            asked = request(key, number)
            answer = engine.place(asked)
            answers.append(answer)
            if answer is None:
                assert refuses or not recount.has_room(asked)
                continue
            book(recount, asked, answer)
            live.append(key)
        elif live:
            gone = live.pop(number % len(live))
            engine.release(gone)
            recount.released(gone)
    return answers


def book(recount: Recount, asked: Request, answer: Placed) -> None:
    requests = {move.key: recount.held[move.key][0] for move in answer.moves}
    for move in answer.moves:
        assert recount.held[move.key][1] == move.from_node
        recount.released(move.key)
    recount.placed(asked, answer.node, answer.gpus)
    for move in answer.moves:
        recount.placed(requests[move.key], move.to_node, move.gpus)


events = st.lists(
    st.one_of(
        st.tuples(st.just("place"), st.integers(0, 8)),
        st.tuples(st.just("place"), st.integers(0, 8)),
        st.tuples(st.just("release"), st.integers(0, 10_000)),
    ),
    max_size=120,
)


@given(events, st.integers(1, 9))
@settings(max_examples=40, deadline=None)
def test_every_answer_of_a_random_stream_survives_the_recount(stream: list[tuple[str, int]], count: int) -> None:
    drive(Engine(nodes(count), compiled=False), Recount(nodes(count)), stream)


def long_stream(seed: int, length: int) -> list[tuple[str, int]]:
    rng = random.Random(seed)
    return [("place" if rng.random() < 0.55 else "release", rng.randrange(10_000)) for _ in range(length)]


@pytest.mark.skipif(not kernels.AVAILABLE, reason="the extra numba is not installed")
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_numba_and_numpy_give_the_same_placements(seed: int) -> None:
    stream = long_stream(seed, 2_500)
    options: dict[str, Any] = {"may_refuse": seed == 2, "moves": 8 if seed == 3 else 0, "moves_allowance_bp": 500}
    both = [
        drive(Engine(nodes(37), compiled=compiled, **options), Recount(nodes(37)), stream, refuses=seed == 2)
        for compiled in (False, True)
    ]

    assert both[0] == both[1]
    assert any(answer is None for answer in both[0])


def test_the_order_and_the_names_of_nodes_change_no_result() -> None:
    stream = long_stream(5, 1_500)
    results = []
    for seed in range(4):
        rows = nodes(40)
        random.Random(seed).shuffle(rows)
        renamed = [(f"x{index}", *row[1:]) for index, row in enumerate(rows)]
        answers = drive(Engine(renamed, compiled=False), Recount(renamed), stream)
        model = {row[0]: row[4] for row in renamed}
        results.append([answer and (model[answer.node], len(answer.gpus)) for answer in answers])

    assert results[0] == results[1] == results[2] == results[3]


def test_moving_a_small_lease_makes_room_for_a_large_one() -> None:
    rows = [("a", 96_000, 400_000, 8, "G2"), ("b", 96_000, 400_000, 8, "G2")]
    engine, recount = Engine(rows, compiled=False, moves=8, moves_allowance_bp=10_000), Recount(rows)
    for key in range(9):  # eight fill one host, the ninth opens the other
        asked = Request(key, 1_000, 1_000, 1)
        answer = engine.place(asked)
        assert answer is not None
        book(recount, asked, answer)
    keep = [recount.held[key][1] for key in range(9)]
    full = Counter(keep).most_common(1)[0][0]
    gone = next(key for key in range(9) if keep[key] == full)
    engine.release(gone)
    recount.released(gone)

    large = Request("large", 8_000, 8_000, 8)
    answer = engine.place(large)

    assert answer is not None
    assert len(answer.moves) == 1
    book(recount, large, answer)
    assert engine.moved_milli == 1_000


def test_moves_change_nothing_where_one_of_them_has_nowhere_to_go() -> None:
    rows = [("a", 96_000, 400_000, 8, "G2"), ("b", 96_000, 400_000, 8, "G2")]
    engine = Engine(rows, compiled=False, moves=8, moves_allowance_bp=10_000)
    places = [engine.place(Request(key, 1_000, 1_000, 1)) for key in range(16)]
    engine.release(0)

    assert engine.place(Request("large", 8_000, 8_000, 8)) is None
    assert engine.moved_milli == 0
    again = engine.place(Request("again", 1_000, 1_000, 1))
    assert again is not None
    assert places[0] is not None
    assert (again.node, again.gpus) == (places[0].node, places[0].gpus)


def test_empty_hosts_are_kept_for_large_requests_only_where_refusing_is_allowed() -> None:
    rows = [(f"n{i}", 96_000, 400_000, 8, "G2") for i in range(12)]
    for may_refuse in (False, True):
        engine = Engine(rows, compiled=False, may_refuse=may_refuse)
        for key in range(10):
            assert engine.place(Request(("large", key), 1_000, 1_000, 8)) is not None
        small = [engine.place(Request(("small", key), 1_000, 1_000, 1)) for key in range(2)]

        assert (small[0] is None) is may_refuse
        assert engine.place(Request("one more", 1_000, 1_000, 8)) is not None


def test_turnover_is_seen_when_a_quarter_of_what_comes_has_left() -> None:
    turnover = Turnover()
    changes = [turnover.offered(1_000) for _ in range(1_024)]
    assert not any(changes)
    for _ in range(256):
        turnover.released(1_000)
    changes = [turnover.offered(1_000) for _ in range(1_024)]

    assert changes[-1]
    assert turnover.steady


@pytest.mark.parametrize(
    "asked",
    [
        Request("a", -1, 0, 1),
        Request("a", 0, 0, 2, 500),
        Request("a", 0, 0, 1, 0),
        Request("a", 0, 0, 1, 1_001),
        Request("a", 0, -1, 0),
    ],
)
def test_numbers_that_mean_nothing_are_refused(asked: Request) -> None:
    with pytest.raises(ValueError, match="cannot be placed"):
        Engine(nodes(2), compiled=False).place(asked)


def test_a_key_is_placed_once_and_released_once() -> None:
    engine = Engine(nodes(2), compiled=False)
    engine.place(request(1, 1))
    with pytest.raises(ValueError, match="cannot be placed"):
        engine.place(request(1, 1))
    engine.release(1)
    with pytest.raises(KeyError):
        engine.release(1)


def test_a_model_nobody_has_is_placed_nowhere() -> None:
    assert Engine(nodes(4), compiled=False).place(Request("a", 1, 1, 1, 1000, ("B200",))) is None
