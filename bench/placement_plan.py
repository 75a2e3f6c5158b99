"""Which runs make up the placement benchmark, the most important first, and how their figures become the JSON."""

from collections.abc import Sequence
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
        rows = [(load, window, trace) for load in self.loads for window in self.windows for trace in self.churn_traces]
        for load, window, trace in sorted(rows, key=lambda row: (row[0] != 0.95) + 2 * (row[2] != "default")):
            for policy, moves in (("ours", 0), ("ours", MOVES), ("fgd", 0), ("bestfit", 0)):
                jobs += self.churn(policy, trace, load, window, moves)
        return list(dict.fromkeys(jobs))

    def _special(self) -> list[Job]:
        learning = [replace(job, learn=True) for job in self.inflation("ours", "default")]
        tiles = [replace(job, tiled=True) for policy in POLICIES[:3] for job in self.inflation(policy, "default")]
        return learning + tiles


QUICK = Plan(QUICK_TRACES, (42, 43), ("default", "gpuspec33"), (1,), (0.95,), (SHORT,), ("default",), ORDERS[:3])


class Report:
    """Figures of finished runs, put together under the names that others read.

    A mean of which a run is missing is left out (None where the name must be there), never taken over fewer seeds.
    """

    def __init__(self, plan: Plan, figures: dict[Job, Figures]) -> None:
        self._plan, self._figures = plan, figures

    def result(self) -> dict[str, Any]:
        """Return all that the runs say."""
        plan = self._plan
        table = {policy: self._inflation(policy) for policy in POLICIES}
        fgd = table["fgd"].get("default")
        learning = [replace(job, learn=True) for job in plan.inflation("ours", "default")]
        tiles = {p: [replace(j, tiled=True) for j in plan.inflation(p, "default")] for p in POLICIES[:3]}
        result: dict[str, Any] = {
            "inflation": table,
            "inflation_mean17": {p: self._mean_of_all(row) for p, row in table.items()},
            "inflation_traces": len(plan.traces),
            "inflation_published_fgd": PUBLISHED_FGD,
            "inflation_sd": {trace: self._spread(plan.inflation("ours", trace)) for trace in table["ours"]},
            "fgd_within_0_3_of_published": fgd is not None and abs(fgd - PUBLISHED_FGD["default"]) <= 0.3,
            "inflation_learning_default": self._mean(learning, "allocated"),
            "tiles": {policy: self._mean(jobs, "allocated") for policy, jobs in tiles.items()},
        }
        return result | self._orders() | self._churn()

    def _inflation(self, policy: str) -> dict[str, float]:
        means = {name: self._mean(self._plan.inflation(policy, name), "allocated") for name in self._plan.traces}
        return {name: mean for name, mean in means.items() if mean is not None}

    def _mean_of_all(self, row: dict[str, float]) -> float | None:
        return float(np.mean(list(row.values()))) if len(row) == len(self._plan.traces) else None

    def _orders(self) -> dict[str, Any]:
        figures: dict[str, Any] = {}
        for trace in self._plan.order_traces:
            for policy in ("ours", "fgd"):
                jobs = self._plan.order(policy, trace)
                if all(job in self._figures for job in jobs):
                    by_order = {job.order: self._figures[job]["allocated"] for job in jobs}
                    figures.setdefault(trace, {})[policy] = by_order
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
                    loads = {f"{load:.2f}": self._load(trace, load, window, moves) for load in self._plan.loads}
                    row = {load: figures for load, figures in loads.items() if figures}
                    result["churn_traces"].setdefault(trace, {})[name] = row
                    if trace == "default":
                        result[name] = row
        return result

    def _load(self, trace: str, load: float, window: tuple[int, int], moves: int) -> dict[str, Any]:
        row: dict[str, Any] = self._means(self._plan.churn("ours", trace, load, window, moves))
        if row and not moves:
            controls = {p: self._means(self._plan.churn(p, trace, load, window)) for p in ("fgd", "bestfit")}
            row |= {policy: means for policy, means in controls.items() if means}
        return row

    def _means(self, jobs: Sequence[Job]) -> Figures:
        means = {name: self._mean(jobs, name) for name in ("lost", "lost8", "moved")}
        return {name: mean for name, mean in means.items() if mean is not None}

    def _mean(self, jobs: Sequence[Job], name: str) -> float | None:
        if any(job not in self._figures for job in jobs):
            return None
        return float(np.mean([self._figures[job][name] for job in jobs]))

    def _spread(self, jobs: Sequence[Job]) -> float:
        return float(np.std([self._figures[job]["allocated"] for job in jobs]))
