"""Which runs make up the placement benchmark, the most important first, and how their figures become the JSON."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from placement_jobs import Figures, Job
from placement_trace import TRACES

PUBLISHED_FGD = {
    "default": 95.39, "cpu050": 95.21, "cpu100": 95.35, "cpu200": 95.04, "cpu250": 93.41, "gpushare40": 94.15,
    "gpushare60": 91.40, "gpushare80": 89.30, "gpushare100": 86.90, "gpuspec10": 94.95, "gpuspec20": 94.84,
    "gpuspec25": 94.74, "gpuspec33": 94.55, "multigpu20": 95.65, "multigpu30": 96.46, "multigpu40": 96.99,
    "multigpu50": 97.18,
}  # fmt: skip
POLICIES = ("ours", "fgd", "bestfit", "random")
QUICK_TRACES = ("default", "cpu250", "gpuspec33", "multigpu50")
CHURN_TRACES = ("default", "multigpu30", "gpushare60", "gpuspec33")
SHORT, LONG = (3, 3), (6, 12)
MOVES = 8
ALLOWANCE_BP = {SHORT: 55, LONG: 65}  # so that what is moved stays below 0.60 % and 0.75 % of what is offered
ORDERS = (
    *(f"random {number}" for number in range(8)),
    "cores per GPU up", "cores per GPU down", "GPUs up", "GPUs down",
)  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """The size of a benchmark: which traces, seeds and loads."""

    traces: tuple[str, ...] = TRACES
    seeds: tuple[int, ...] = tuple(range(42, 52))
    churn_traces: tuple[str, ...] = CHURN_TRACES
    churn_seeds: tuple[int, ...] = (1, 2, 3)
    loads: tuple[float, ...] = (0.90, 0.95, 1.00)
    windows: tuple[tuple[int, int], ...] = (SHORT, LONG)
    order_traces: tuple[str, ...] = ("default", "cpu250")
    orders: tuple[str, ...] = ORDERS

    def inflation(self, policy: str, trace: str) -> list[Job]:
        """Return the inflation runs of one policy on one trace."""
        return [Job("inflation", policy, trace, seed) for seed in self.seeds]

    def order(self, policy: str, trace: str) -> list[Job]:
        """Return the inflation run of seed 42 for every order of the nodes."""
        return [Job("inflation", policy, trace, 42, order=order) for order in self.orders]

    def churn(self, policy: str, trace: str, load: float, window: tuple[int, int], moves: int = 0) -> list[Job]:
        """Return the churn runs of one policy on one trace."""
        allowance = ALLOWANCE_BP[window] if moves else 0
        return [Job("churn", policy, trace, seed, load, window, moves, allowance) for seed in self.churn_seeds]

    def jobs(self) -> list[Job]:
        """Return all runs, each once, the most important first."""
        jobs: list[Job] = []
        for policy in ("ours", "fgd", "bestfit"):
            jobs += self.inflation(policy, "default")
        for policy in POLICIES:
            jobs += [job for trace in self.traces for job in self.inflation(policy, trace)]
        jobs += [job for trace in self.order_traces for policy in ("ours", "fgd") for job in self.order(policy, trace)]
        jobs += self._special()
        for load in sorted(self.loads, key=lambda load: load != 0.95):
            for window in self.windows:
                for trace in self.churn_traces:
                    for policy, moves in (("ours", 0), ("ours", MOVES), ("fgd", 0), ("bestfit", 0)):
                        jobs += self.churn(policy, trace, load, window, moves)
        return list(dict.fromkeys(jobs))

    def _special(self) -> list[Job]:
        learning = [replace(job, learn=True) for job in self.inflation("ours", "default")]
        tiles = [replace(job, tiled=True) for policy in POLICIES[:3] for job in self.inflation(policy, "default")]
        return learning + tiles


QUICK = Plan(QUICK_TRACES, (42, 43), ("default", "gpuspec33"), (1,), (0.95,), (SHORT,), ("default",), ORDERS[:3])


class Report:
    """Figures of finished runs, put together under the names that others read."""

    def __init__(self, plan: Plan, figures: dict[Job, Figures]) -> None:
        self._plan, self._figures = plan, figures

    def result(self) -> dict[str, Any]:
        """Return all that the runs say."""
        plan = self._plan
        table = {policy: self._inflation(policy) for policy in POLICIES}
        result: dict[str, Any] = {
            "inflation": table,
            "inflation_mean17": {policy: _mean(row.values()) for policy, row in table.items()},
            "inflation_traces": len(plan.traces),
            "inflation_published_fgd": PUBLISHED_FGD,
            "inflation_sd": {trace: self._spread(plan.inflation("ours", trace)) for trace in plan.traces},
            "fgd_within_0_3_of_published": abs(table["fgd"]["default"] - PUBLISHED_FGD["default"]) <= 0.3,
            "inflation_learning_default": self._mean(
                [replace(job, learn=True) for job in plan.inflation("ours", "default")], "allocated"
            ),
            "tiles": {
                policy: self._mean([replace(j, tiled=True) for j in plan.inflation(policy, "default")], "allocated")
                for policy in POLICIES[:3]
            },
        }
        return result | self._orders() | self._churn()

    def _inflation(self, policy: str) -> dict[str, float]:
        return {trace: self._mean(self._plan.inflation(policy, trace), "allocated") for trace in self._plan.traces}

    def _orders(self) -> dict[str, Any]:
        figures = {
            trace: {
                policy: {job.order: self._figures[job]["allocated"] for job in self._plan.order(policy, trace)}
                for policy in ("ours", "fgd")
            }
            for trace in self._plan.order_traces
        }
        spread = {
            trace: {policy: max(row.values()) - min(row.values()) for policy, row in by.items()}
            for trace, by in figures.items()
        }
        return {"order_spread": spread, "order_figures": figures}

    def _churn(self) -> dict[str, Any]:
        names = {SHORT: ("churn", "churn_moves"), LONG: ("churn_long", "churn_moves_long")}
        result: dict[str, Any] = {"churn_traces": {}}
        for window in self._plan.windows:
            for name, moves in zip(names[window], (0, MOVES), strict=True):
                for trace in self._plan.churn_traces:
                    row = {f"{load:.2f}": self._load(trace, load, window, moves) for load in self._plan.loads}
                    if trace == "default":
                        result[name] = row
                    result["churn_traces"].setdefault(trace, {})[name] = row
        return result

    def _load(self, trace: str, load: float, window: tuple[int, int], moves: int) -> dict[str, Any]:
        row: dict[str, Any] = self._means(self._plan.churn("ours", trace, load, window, moves))
        if not moves:
            row |= {p: self._means(self._plan.churn(p, trace, load, window)) for p in ("fgd", "bestfit")}
        return row

    def _means(self, jobs: Sequence[Job]) -> Figures:
        return {name: self._mean(jobs, name) for name in ("lost", "lost8", "moved")}

    def _mean(self, jobs: Iterable[Job], name: str) -> float:
        return _mean(self._figures[job][name] for job in jobs)

    def _spread(self, jobs: Iterable[Job]) -> float:
        return float(np.std([self._figures[job]["allocated"] for job in jobs]))


def _mean(figures: Iterable[float]) -> float:
    return float(np.mean(list(figures)))
