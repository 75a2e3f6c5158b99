"""The benchmark itself: its book catches cheats, its controls choose as published, and it says loudly when it skips."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "bench"))

from placement_recount import Book, judge  # type: ignore[import-not-found]  # noqa: E402
from placement_trace import (  # type: ignore[import-not-found]  # noqa: E402
    Trace,
    churn,
    inflation,
    inflation_figure,
)

NODES = [("big", 96_000, 400_000, 8, "G2"), ("small", 64_000, 400_000, 2, "T4")]


def trace(*pods: tuple[int, int, int, int]) -> Trace:
    """Pods of (cpu, memory, milli, gpus) that may go anywhere."""
    cpu, memory, milli, gpus = (np.array(column, np.int64) for column in zip(*pods, strict=True))
    return Trace("test", ("G2", "T4"), cpu, memory, milli, gpus, np.full(len(pods), -1, np.int64))


def test_the_book_refuses_a_gpu_that_is_let_twice() -> None:
    book = Book(trace((1, 1, 600, 1)), NODES)
    book.book(0, 0, (3,), 1)

    with pytest.raises(AssertionError, match="a GPU is let twice"):
        book.book(0, 0, (3,), 1)


def test_the_judge_finds_a_refusal_that_was_not_needed() -> None:
    pods = trace((1, 1, 1000, 8))
    one = np.zeros(1, np.int64)

    with pytest.raises(AssertionError, match="refused although"):
        judge(pods, NODES, one, np.zeros(1, np.bool_), one, np.array([-1]), one)


def test_inflation_offers_a_third_more_than_there_is_and_no_pod_too_many() -> None:
    pods = trace((1, 1, 1000, 1), (1, 1, 500, 1), (1, 1, 1000, 2))
    offered = inflation(pods, 11, 10_000)

    total = int(pods.demand[offered].sum())
    assert 13_000 - 2_000 <= total <= 13_000 + 1_000
    asked = pods.demand[offered]
    assert inflation_figure(np.array([13_000]), np.array([True]), 10_000) == 130.0
    assert len(asked) == len(offered)


def test_departures_come_before_arrivals_and_each_at_its_time() -> None:
    stream = churn(trace((1, 1, 1000, 1)), 0.9, 1, 2, 11, 100_000)
    seen: set[int] = set()
    for is_departure, who in stream.events():
        assert is_departure == (who in seen)
        seen ^= {who}
    assert 0.3 < stream.measured.mean() < 0.9


@pytest.mark.parametrize(("policy", "expected"), [("bestfit", 1), ("fgd", 0)])
def test_controls_choose_as_published(policy: str, expected: int) -> None:
    """BestFit takes the fuller node. FGD takes the first row where no class gets fragmented either way."""
    controls = pytest.importorskip("placement_controls")
    pods = trace((1_000, 1, 1000, 1))
    one = np.zeros(1, np.int64)

    went, masks = controls.run(policy, pods, NODES, one, np.zeros(1, np.bool_), one)

    assert went.tolist() == [expected]
    assert masks.tolist() == [1]


def test_fgd_prefers_the_gpu_that_a_fraction_fills() -> None:
    controls = pytest.importorskip("placement_controls")
    pods = trace((1_000, 1, 500, 1), (1_000, 1, 1000, 1))
    stream = np.array([0, 0], np.int64)

    _, masks = controls.run("fgd", pods, NODES, stream, np.zeros(2, np.bool_), np.arange(2))

    assert masks[0] == masks[1]


def test_without_data_the_benchmark_says_that_it_skipped(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "bench/placement.py"), "--data", str(tmp_path), "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)

    assert "SKIPPED" in done.stderr
    assert not (tmp_path / "placement.json").exists()
