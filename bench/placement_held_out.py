"""Our engine and FGD on streams that nobody has tuned for: other seeds, and other mixes made of the traces.

    python bench/placement_held_out.py [--seeds 10] [--first 1000] [--data PATH]

The benchmark's seeds are 42-51 and 1-3, the search for weights uses 11-19; here they begin at 1000. A mix of two
traces takes each request from either by turns of a coin, so that its histogram is neither's. Both policies see the same
streams and are given the same histogram. Each run is recounted. Writes bench/out/placement-held-out.json.
"""

import argparse
import json
import os
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

import numpy as np  # noqa: E402
import placement_runs as runs  # noqa: E402
from placement_trace import Trace, read_nodes, read_trace  # noqa: E402

from scheduler.placement.pool import NodeRow  # noqa: E402

TRACES = ("default", "cpu250", "gpushare100", "gpuspec33", "multigpu50")
MIXES = (("default", "multigpu50"), ("gpushare100", "multigpu50"), ("gpuspec33", "gpushare60"))
CHURN = (("default", 0.95), ("default", 0.97), ("multigpu30", 0.93))
WINDOW = (3, 3)


def mixed(one: Trace, other: Trace, seed: int) -> Trace:
    """Return as many requests as `one` has, each drawn from either trace with equal chance."""
    assert one.names == other.names, "masks of models mean the same"
    rng, size = np.random.default_rng(seed), len(one.cpu)
    from_other, where = rng.random(size) < 0.5, rng.integers(0, len(other.cpu), size)
    columns = ("cpu", "memory", "milli", "gpus", "models")
    taken = {name: np.where(from_other, getattr(other, name)[where], getattr(one, name)) for name in columns}
    return replace(one, name=f"{one.name} + {other.name}", **taken)


def compare(trace: Trace, nodes: list[NodeRow], seeds: list[int]) -> dict[str, float]:
    """Return means over seeds of the inflation test, % allocated, and the least lead of a seed."""
    ours = [runs.ours_inflation(trace, nodes, seed) for seed in seeds]
    fgd = [runs.control_inflation("fgd", trace, nodes, seed) for seed in seeds]
    leads = np.array(ours) - np.array(fgd)
    return {"ours": float(np.mean(ours)), "fgd": float(np.mean(fgd)), "least_lead": float(leads.min())}


def compare_churn(trace: Trace, nodes: list[NodeRow], load: float, seeds: list[int]) -> dict[str, float]:
    """Return means over seeds of what is lost under churn, % of GPU and % of the requests for eight."""
    ours = [runs.ours_churn(trace, nodes, load, *WINDOW, seed, may_refuse=True) for seed in seeds]
    fgd = [runs.control_churn("fgd", trace, nodes, load, *WINDOW, seed) for seed in seeds]
    return {
        f"{policy}_{name}": float(np.mean([one[name] for one in figures]))
        for policy, figures in (("ours", ours), ("fgd", fgd))
        for name in ("lost", "lost8")
    }


def main() -> int:
    """Run all, print a line for each, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, default=10, help="of the inflation test; churn takes three of them")
    parser.add_argument("--first", type=int, default=1000)
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared/data")
    options = parser.parse_args()
    if not (options.data / "openb").is_dir():
        print(f"SKIPPED: no traces under {options.data} (give --data PATH); nothing was run", file=sys.stderr)
        return 0
    nodes = read_nodes(options.data)
    seeds = list(range(options.first, options.first + options.seeds))
    named = {name: read_trace(options.data, name, nodes) for name in {*TRACES, *sum(MIXES, ()), *dict(CHURN)}}
    found: dict[str, Any] = {"seeds": seeds, "churn_seeds": seeds[:3], "inflation": {}, "churn": {}}
    streams = {name: named[name] for name in TRACES}
    streams |= {f"{a} + {b}": mixed(named[a], named[b], options.first) for a, b in MIXES}
    for name, trace in streams.items():
        found["inflation"][name] = row = compare(trace, nodes, seeds)
        print(f"{name:28} ours {row['ours']:.2f} fgd {row['fgd']:.2f} least lead {row['least_lead']:+.2f}", flush=True)
    for name, load in CHURN:
        found["churn"][f"{name} {load:.2f}"] = row = compare_churn(named[name], nodes, load, seeds[:3])
        ours, fgd = (f"{row[f'{p}_lost']:.2f} / {row[f'{p}_lost8']:.1f}" for p in ("ours", "fgd"))
        print(f"churn {name} {load:.2f}".ljust(28) + f" ours {ours} fgd {fgd}", flush=True)
    found |= {"at": datetime.now(UTC).isoformat(timespec="seconds"), "load_average": os.getloadavg()}
    out = ROOT / "bench/out/placement-held-out.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(found, indent=2) + "\n")
    print(f"written: {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
