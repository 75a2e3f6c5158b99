"""Search for the weights of the placement engine, on seeds 11-19 only (those of the benchmark are never looked at).

    python bench/placement_tune.py --regime filling|steady [--generations 20] [--traces default,...] [--data PATH]

A separable evolution strategy (diagonal CMA-ES) around the weights in use. Candidates of one generation are judged on
the same seeds, which change from generation to generation, so that nothing is fitted to one stream. The result is the
mean of the last generation, rounded to thousandths, written to a file of its own beside the figures before and after;
whoever puts it into scheduler/placement/weights.json raises its version.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

import numpy as np  # noqa: E402
import placement_runs as runs  # noqa: E402
from placement_trace import Floats, Trace, read_nodes, read_trace  # noqa: E402

from scheduler.placement.pool import NodeRow  # noqa: E402
from scheduler.placement.score import TERMS, Policy, Weights, load_policy  # noqa: E402

SEEDS = tuple(range(11, 20))
FILLING = ("default", "cpu250", "gpuspec33", "gpushare100", "multigpu50")
STEADY = ("default", "multigpu30", "gpushare60", "gpuspec33")
STEP = 0.15  # of a weight, or of 100 thousandths where it is small


class Search:
    """One regime's weights as a vector of two times TERMS, and its cost on given seeds (lower is better)."""

    def __init__(self, regime: str, data: Path, traces: str | None = None) -> None:
        self.regime = regime
        self.policy = load_policy()
        self.nodes: list[NodeRow] = read_nodes(data)
        names = traces.split(",") if traces else FILLING if regime == "filling" else STEADY
        self.traces: list[Trace] = [read_trace(data, name, self.nodes) for name in names]

    def start(self) -> Floats:
        weights: Weights = getattr(self.policy, self.regime)
        return np.concatenate((weights.gpu, weights.cpu_only)).astype(np.float64)

    def with_vector(self, vector: Floats) -> Policy:
        gpu, cpu_only = np.rint(vector).astype(np.int64).reshape(2, len(TERMS))
        weights = Weights(gpu, cpu_only)
        return (
            replace(self.policy, filling=weights) if self.regime == "filling" else replace(self.policy, steady=weights)
        )

    def cost(self, vector: Floats, seeds: tuple[int, ...]) -> float:
        policy = self.with_vector(vector)
        if self.regime == "filling":
            figures = [runs.ours_inflation(t, self.nodes, s, policy=policy) for t in self.traces for s in seeds]
            return -float(np.mean(figures))
        losses = [
            runs.ours_churn(trace, self.nodes, 0.95, 2, 3, seed, policy=policy, may_refuse=True)
            for trace in self.traces
            for seed in seeds
        ]
        return float(np.mean([loss["lost"] + 0.05 * loss["lost8"] for loss in losses]))


def evolve(cost: Callable[[Floats, tuple[int, ...]], float], start: Floats, generations: int, seed: int) -> Floats:
    """Return the mean after so many generations of a separable CMA-ES with cumulative step length."""
    rng, size = np.random.default_rng(seed), len(start)
    population = 4 + int(3 * np.log(size))
    parents = population // 2
    share = np.log(parents + 0.5) - np.log(np.arange(1, parents + 1))
    share /= share.sum()
    effective = 1 / (share**2).sum()
    path_rate = (effective + 2) / (size + effective + 5)
    rank_rate = min(1.0, (2 * (effective - 2 + 1 / effective)) / ((size + 2) ** 2 + effective) * (size + 2) / 3)
    mean, spread, step = start.copy(), STEP * np.maximum(np.abs(start), 100.0), 1.0
    path, expected = np.zeros(size), np.sqrt(size) * (1 - 1 / (4 * size) + 1 / (21 * size**2))
    for generation in range(generations):
        began = time.monotonic()
        seeds = (SEEDS[generation % len(SEEDS)],)
        draws = rng.standard_normal((population, size))
        costs = np.array([cost(mean + step * spread * draw, seeds) for draw in draws])
        best = draws[np.argsort(costs)[:parents]]
        mean = mean + step * spread * (share @ best)
        path = (1 - path_rate) * path + np.sqrt(path_rate * (2 - path_rate) * effective) * (share @ best)
        spread = np.sqrt((1 - rank_rate) * spread**2 + rank_rate * spread**2 * (share @ best**2))
        step *= float(np.exp(path_rate / (1 + path_rate) * (np.linalg.norm(path) / expected - 1)))
        seconds = time.monotonic() - began
        print(
            f"generation {generation}: best {costs.min():.4f} mean {costs.mean():.4f} step {step:.3f} {seconds:.0f} s",
            flush=True,
        )
    return mean


def as_json(vector: Floats) -> dict[str, Any]:
    """Return the vector in the form of weights.json."""
    gpu, cpu_only = np.rint(vector).astype(int).reshape(2, len(TERMS)).tolist()
    return {"gpu": dict(zip(TERMS, gpu, strict=True)), "cpu_only": dict(zip(TERMS, cpu_only, strict=True))}


def main() -> int:
    """Search, and write what was found with its figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--regime", choices=("filling", "steady"), required=True)
    parser.add_argument("--generations", type=int, default=20)
    parser.add_argument("--traces", default=None, help="judge on these only, with commas")
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared/data")
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    if not (options.data / "openb").is_dir():
        print(f"SKIPPED: no traces under {options.data} (give --data PATH); nothing was searched", file=sys.stderr)
        return 0
    search = Search(options.regime, options.data, options.traces)
    start = search.start()
    found = evolve(search.cost, start, options.generations, seed=7)
    judged_on = SEEDS[:3]
    result = {
        "regime": options.regime,
        "weights_version_before": search.policy.version,
        "seeds": list(SEEDS),
        "cost_before": search.cost(start, judged_on),
        "cost_after": search.cost(found, judged_on),
        "weights": as_json(found),
    }
    out = options.out or ROOT / f"bench/out/weights-{options.regime}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
