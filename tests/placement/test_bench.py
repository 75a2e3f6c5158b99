"""The benchmark itself: its book catches cheats, its controls choose as published, and it says loudly when it skips."""

import json
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


def test_the_search_finds_the_least_of_a_bowl() -> None:
    tune = pytest.importorskip("placement_tune")
    goal = np.array([300.0, -200.0, 50.0])

    found = tune.evolve(lambda vector, _: float(((vector - goal) ** 2).sum()), np.zeros(3), 60, seed=3)

    assert np.abs(found - goal).max() < 30


def test_a_finished_run_is_remembered_until_the_code_that_decides_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = pytest.importorskip("placement_jobs")
    job, ran = jobs.Job("inflation", "ours", "default", 11), []
    monkeypatch.setattr(jobs, "run", lambda job, data: ran.append(job) or {"allocated": 95.0})

    for _ in range(2):
        list(jobs.Remembered(tmp_path).run_missing([job], tmp_path, 10))
    assert len(ran) == 1
    assert jobs.Remembered(tmp_path).get(job) == {"allocated": 95.0}

    monkeypatch.setattr(jobs, "digest", lambda paths: "changed")
    assert jobs.Remembered(tmp_path).get(job) is None


def test_a_run_that_another_process_is_at_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = pytest.importorskip("placement_jobs")
    job = jobs.Job("inflation", "ours", "default", 11)
    remembered = jobs.Remembered(tmp_path)
    second: list[object] = []

    def at_it(job: object, data: Path) -> dict[str, float]:
        second.extend(jobs.Remembered(tmp_path).run_missing([job], tmp_path, 10))
        return {"allocated": 95.0}

    monkeypatch.setattr(jobs, "run", at_it)
    assert len(list(remembered.run_missing([job], tmp_path, 10))) == 1
    assert second == []


def test_a_mean_of_which_a_run_is_missing_is_left_out() -> None:
    plan = pytest.importorskip("placement_plan")
    small = plan.QUICK
    figures = {job: {"allocated": 90.0, "lost": 1.0, "lost8": 2.0, "moved": 0.0} for job in small.jobs()}
    whole = plan.Report(small, figures).result()
    missing = small.inflation("fgd", "cpu250")[0]
    part = plan.Report(small, {job: row for job, row in figures.items() if job != missing}).result()

    assert whole["inflation"]["fgd"]["cpu250"] == 90.0
    assert whole["inflation_mean17"]["fgd"] == 90.0
    assert "cpu250" not in part["inflation"]["fgd"]
    assert part["inflation_mean17"]["fgd"] is None
    assert part["inflation_mean17"]["ours"] == 90.0
    row = {"lost": 1.0, "lost8": 2.0, "moved": 0.0}
    assert whole["churn"] == {"0.95": {**row, "fgd": row, "bestfit": row}}


SPEED = {"per_cpu_s": 9.0, "per_cpu_s_least": 8.0, "per_cpu_s_most": 9.5, "p99_ms": 1.0, "max_ms": 2.0}


def small_benchmark(out: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str, durable: object = None) -> int:
    """Call the command's main on runs that take no time; durable: what its script writes, None = it fails."""
    bench, jobs = pytest.importorskip("placement"), pytest.importorskip("placement_jobs")
    (out / "openb").mkdir(exist_ok=True)
    row = {"allocated": 90.0, "lost": 1.0, "lost8": 2.0, "moved": 0.0}
    monkeypatch.setattr(jobs, "run", lambda job, data: row)
    monkeypatch.setattr(bench, "trace", lambda data, name: None)
    monkeypatch.setattr(bench, "pool", lambda data: None)
    monkeypatch.setattr(bench, "speeds", lambda *ignored, **also: {"numpy_12k": SPEED})

    def script(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        written = Path(command[command.index("--out") + 1])
        if durable is None:
            return subprocess.CompletedProcess(command, 1, "", "no server")
        how = {"gpus": 480, "placed": 120, "cpus": 2, "at": "now", "load_average": [0.1, 0.1, 0.1]}
        written.write_text(
            json.dumps(json.loads(written.read_text()) | {"durable_leases_per_s": durable, "durable": how})
        )
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(bench.subprocess, "run", script)
    monkeypatch.setattr(sys, "argv", ["placement.py", "--data", str(out), "--out", str(out), "--quick", *arguments])
    return int(bench.main())


NAMES = (
    "inflation", "inflation_mean17", "order_spread", "churn", "churn_moves", "one_policy", "decisions_per_s", "p99_ms",
    "durable_leases_per_s",
)  # fmt: skip


def test_one_command_writes_every_name_and_says_what_was_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert small_benchmark(tmp_path, monkeypatch, "--policies", "ours", durable=500.0) == 0
    first = (tmp_path / "placement.txt").read_text()
    assert small_benchmark(tmp_path, monkeypatch, durable=600.0) == 0
    result, second = json.loads((tmp_path / "placement.json").read_text()), (tmp_path / "placement.txt").read_text()

    assert [name for name in NAMES if not result.get(name)] == []
    assert result["durable_leases_per_s"] == 600.0
    assert "INCOMPLETE" in first
    assert "INCOMPLETE" not in second
    assert " 0 remembered" in first
    made = int(first.split(" made now")[0].split()[-1])
    assert f"{made} remembered, of this very code, since 20" in second


def test_speeds_can_be_measured_anew_without_the_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_benchmark(tmp_path, monkeypatch, durable=500.0)
    before = json.loads((tmp_path / "placement.json").read_text())
    monkeypatch.setitem(SPEED, "per_cpu_s", 10.0)

    small_benchmark(tmp_path, monkeypatch, "--only", "speed")
    after = json.loads((tmp_path / "placement.json").read_text())

    assert after["decisions_per_s"] == {"numpy_12k": 10.0}
    assert {name: after[name] for name in before if "speed" not in name and name != "decisions_per_s"} == {
        name: before[name] for name in before if "speed" not in name and name != "decisions_per_s"
    }


def test_durable_leases_that_cannot_be_measured_are_said_so_and_fail_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert small_benchmark(tmp_path, monkeypatch) == 1

    assert json.loads((tmp_path / "placement.json").read_text())["durable_leases_per_s"] is None
    assert "no server" in (tmp_path / "placement.txt").read_text()
