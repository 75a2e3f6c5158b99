"""Benchmark of the placement engine beside Random, BestFit and FGD on public traces: the protocol of the design's page.

    python bench/placement.py [--data ../shared/data] [--quick] [--only inflation,churn,...] [--out bench/out]

Writes placement.json and prints a table. --quick takes fewer seeds and traces, and says so in the file. Ties: lowest
row first for the controls; ours looks at what is left, then at a keyed hash. FGD here is our own re-implementation.
"""

import argparse
import json
import platform
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

import numpy as np  # noqa: E402
import placement_runs as runs  # noqa: E402
from placement_trace import TRACES, Trace, read_nodes, read_trace  # noqa: E402

from scheduler.placement import kernels  # noqa: E402
from scheduler.placement.pool import NodeRow  # noqa: E402

PUBLISHED_FGD = {
    "default": 95.39, "cpu050": 95.21, "cpu100": 95.35, "cpu200": 95.04, "cpu250": 93.41, "gpushare40": 94.15,
    "gpushare60": 91.40, "gpushare80": 89.30, "gpushare100": 86.90, "gpuspec10": 94.95, "gpuspec20": 94.84,
    "gpuspec25": 94.74, "gpuspec33": 94.55, "multigpu20": 95.65, "multigpu30": 96.46, "multigpu40": 96.99,
    "multigpu50": 97.18,
}  # fmt: skip
QUICK_TRACES = ("default", "cpu250", "gpuspec33", "multigpu50")
CHURN_TRACES = ("default", "multigpu30", "gpushare60", "gpuspec33")
LOADS = (0.90, 0.95, 1.00)
SHORT, LONG = (3, 3), (6, 12)
NOT_MEASURED_HERE = "durable leases per second go through the database and are measured by bench/api.py"


class Bench:
    """All rows over one folder of data; `result` grows as they run."""

    def __init__(self, data: Path, *, quick: bool, seeds: int, traces: Sequence[str]) -> None:
        self.data, self.quick = data, quick
        self.nodes: list[NodeRow] = read_nodes(data)
        self.traces = traces
        self.seeds = range(42, 42 + seeds)
        self.churn_seeds = (1,) if quick else (1, 2, 3)
        self.result: dict[str, Any] = {
            "quick": quick,
            "numba": kernels.AVAILABLE,
            "machine": f"{platform.machine()} {platform.system()}, Python {platform.python_version()}",
            "conditions": {
                "inflation": "mean over seeds; nothing with room is refused; histogram of the trace given, as to FGD",
                "churn": "lost: % of GPU milli; lost8: % of eight-GPU requests; moved: % of GPU milli offered",
                "controls": "re-implemented here; the lowest row first among equals",
                "one_policy": "one weights file for every row; its two sets are chosen by observed turnover",
                "seeds": {"inflation": list(self.seeds), "churn": list(self.churn_seeds)},
            },
            "durable_leases_per_s": None,
            "durable_leases_per_s_note": NOT_MEASURED_HERE,
        }

    def trace(self, name: str) -> Trace:
        return read_trace(self.data, name, self.nodes)

    def inflation(self) -> None:
        """The 17 traces: ours and the controls, mean over the seeds."""
        table: dict[str, dict[str, float]] = {"ours": {}, "fgd": {}, "bestfit": {}, "random": {}}
        spread: dict[str, float] = {}
        for name in self.traces:
            trace = self.trace(name)
            ours = [runs.ours_inflation(trace, self.nodes, seed) for seed in self.seeds]
            table["ours"][name], spread[name] = float(np.mean(ours)), float(np.std(ours))
            for policy in ("fgd", "bestfit", "random"):
                figures = [runs.control_inflation(policy, trace, self.nodes, seed) for seed in self.seeds]
                table[policy][name] = float(np.mean(figures))
            say(f"inflation {name:12s}", table["ours"][name], table["fgd"][name], PUBLISHED_FGD[name])
        learning = [runs.ours_inflation(self.trace("default"), self.nodes, seed, learn=True) for seed in self.seeds]
        self.result |= {
            "inflation_traces": len(table["ours"]),
            "inflation": table,
            "inflation_published_fgd": PUBLISHED_FGD,
            "inflation_sd": spread,
            "inflation_learning_default": float(np.mean(learning)),
            "inflation_mean17": {policy: float(np.mean(list(row.values()))) for policy, row in table.items()},
            "fgd_within_0_3_of_published": abs(table["fgd"]["default"] - PUBLISHED_FGD["default"]) <= 0.3,
        }

    def order(self) -> None:
        """Node orders: what the result owes to names and rows."""
        self.result["order_spread"], self.result["order_figures"] = {}, {}
        for name in ("default",) if self.quick else ("default", "cpu250"):
            trace, orders = self.trace(name), runs.node_orders(self.nodes)
            chosen = list(orders)[:3] if self.quick else list(orders)
            ours = {order: runs.ours_inflation(trace, orders[order], 42) for order in chosen}
            fgd = {order: runs.control_inflation("fgd", trace, orders[order], 42) for order in chosen}
            self.result["order_figures"][name] = {"ours": ours, "fgd": fgd}
            self.result["order_spread"][name] = {
                k: max(v.values()) - min(v.values()) for k, v in (("ours", ours), ("fgd", fgd))
            }
            say(
                f"order spread {name}",
                self.result["order_spread"][name]["ours"],
                self.result["order_spread"][name]["fgd"],
            )

    def churn(self) -> None:
        """Short and long windows, all loads, without moves and with at most eight."""
        rows = {
            "churn": ("default", SHORT, 0),
            "churn_long": ("default", LONG, 0),
            "churn_moves": ("default", SHORT, 8),
        }
        for key, (name, window, most) in rows.items():
            self.result[key] = self._loads(name, window, most)
        self.result["churn_moves_long"] = self._loads("default", LONG, 8)
        others = ("gpuspec33",) if self.quick else CHURN_TRACES[1:]
        self.result["churn_traces"] = {
            name: {"short": self._loads(name, SHORT, 0), "long": {} if self.quick else self._loads(name, LONG, 0)}
            for name in others
        }

    def _loads(self, name: str, window: tuple[int, int], most: int) -> dict[str, Any]:
        trace, table = self.trace(name), {}
        for load in (0.95,) if self.quick else LOADS:
            options: dict[str, Any] = {"may_refuse": True}
            if most:
                options |= {"moves": most, "moves_allowance_bp": 55 if window == SHORT else 65}
            ours = [runs.ours_churn(trace, self.nodes, load, *window, s, **options) for s in self.churn_seeds]
            table[f"{load:.2f}"] = runs.mean(ours)
            if not most:
                for policy in ("fgd", "bestfit"):
                    control = [
                        runs.control_churn(policy, trace, self.nodes, load, *window, s) for s in self.churn_seeds
                    ]
                    table[f"{load:.2f}"][policy] = runs.mean(control)
            figure = table[f"{load:.2f}"]
            say(f"churn {name} {window} K={most} load {load}", *[v for k, v in figure.items() if isinstance(v, float)])
        return table

    def tiles(self) -> None:
        """Fractions rounded up to what tiles."""
        trace = self.trace("default").tiled()
        self.result["tiles"] = {
            "ours": float(np.mean([runs.ours_inflation(trace, self.nodes, seed) for seed in self.seeds])),
            "fgd": float(np.mean([runs.control_inflation("fgd", trace, self.nodes, seed) for seed in self.seeds])),
        }
        say("tiles", self.result["tiles"]["ours"], self.result["tiles"]["fgd"])

    def speed(self) -> None:
        """Decisions per CPU second, one call each, cold classes included."""
        trace, limit = self.trace("default"), 20_000 if self.quick else 1 << 30
        rows = {"numpy_6k": (1, False), "numpy_12k": (2, False), "numpy_99k": (16, False)}
        if kernels.AVAILABLE:
            runs.throughput(trace, self.nodes, 1, 42, compiled=True, limit=50)  # the compiler's time is not ours
            rows |= {"numba_6k": (1, True), "numba_12k": (2, True), "numba_99k": (16, True)}
        detail = {}
        for key, (times, compiled) in rows.items():
            most = limit if compiled else min(limit, 5_000 if self.quick else 30_000)
            detail[key] = runs.throughput(trace, self.nodes, times, 42, compiled=compiled, limit=most)
            say(key, detail[key]["per_cpu_s"], detail[key]["p99_ms"], detail[key]["max_ms"])
        detail["churn_numba" if kernels.AVAILABLE else "churn_numpy"] = runs.throughput_churn(
            trace, self.nodes, compiled=kernels.AVAILABLE, limit=limit
        )
        self.result["decisions_per_s"] = {key: row["per_cpu_s"] for key, row in detail.items()}
        self.result["p99_ms"] = {key: row["p99_ms"] for key, row in detail.items() if "p99_ms" in row}
        self.result["speed"] = detail

    def one_policy(self) -> None:
        """All rows come from one weights file: put the two that pull apart side by side."""
        if {"inflation_mean17", "churn"} <= self.result.keys():
            ours, fgd = self.result["inflation_mean17"]["ours"], self.result["inflation_mean17"]["fgd"]
            self.result["one_policy"] = {
                "inflation_mean": ours,
                "inflation_over_fgd": ours - fgd,
                "churn_short_lost": self.result["churn"]["0.95"]["lost"],
                "churn_short_lost8": self.result["churn"]["0.95"]["lost8"],
            }


def say(what: str, *figures: float) -> None:
    """Print one row."""
    print(f"{what:44s}" + "".join(f"{figure:12.3f}" for figure in figures), flush=True)


def main() -> int:
    """Run what was asked for; 0 also where the data is missing, which is said loudly."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared/data")
    parser.add_argument("--out", type=Path, default=ROOT / "bench/out")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seeds", type=int, default=None, help="inflation: so many from 42 on (10; --quick: 2)")
    parser.add_argument("--traces", default=None, help="inflation: names with commas (all 17; --quick: 4)")
    parser.add_argument("--only", default="inflation,order,churn,tiles,speed")
    options = parser.parse_args()
    if not (options.data / "openb").is_dir():
        print(f"SKIPPED: no traces under {options.data} (give --data PATH); nothing was measured", file=sys.stderr)
        return 0
    traces = options.traces.split(",") if options.traces else QUICK_TRACES if options.quick else TRACES
    seeds = options.seeds or (2 if options.quick else 10)
    bench = Bench(options.data, quick=options.quick, seeds=seeds, traces=traces)
    print(f"{'row':44s}{'ours':>12s}{'control':>12s}{'published':>12s}")
    for part in options.only.split(","):
        row: Callable[[], None] = getattr(bench, part)
        row()
    bench.one_policy()
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "placement.json").write_text(json.dumps(bench.result, indent=2) + "\n")
    print(f"written: {options.out / 'placement.json'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
