"""Benchmark of the placement engine beside Random, BestFit and FGD on public traces: the protocol of the design's page.

    python bench/placement.py [--data ../shared/data] [--quick] [--cpu-minutes N] [--out bench/out]

Writes placement.json and placement.txt (a table). All of it takes some 45 minutes of CPU; runs that were finished
before with the same code are remembered, so it can be stopped at any time and done in slices (--cpu-minutes), several
processes at once. --quick takes fewer seeds and traces, two minutes, and says so in the file. Ties: lowest row first
for the controls; ours looks at what is left, then at a keyed hash. FGD and BestFit here are our own re-implementations.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "platform"), str(ROOT / "bench")]

import placement_table  # noqa: E402
from placement_jobs import OURS, Remembered, digest, pool, trace  # noqa: E402
from placement_plan import QUICK, Plan, Report  # noqa: E402
from placement_speed import speeds  # noqa: E402

from scheduler.placement import kernels  # noqa: E402
from scheduler.placement.score import load_policy  # noqa: E402

CONDITIONS = {
    "inflation": "mean over seeds, % allocated at 130 % asked for; nothing with room is refused; ours and FGD are given"
    " the trace's histogram",
    "churn": "lost: % of GPU milli; lost8: % of eight-GPU requests; moved: % of GPU milli offered; ours with"
    " may_refuse: it may refuse small requests to keep empty hosts; mean over seeds",
    "ties": "controls: lowest row first; ours: least GPU, CPU, memory left, then the host's state, then a keyed hash",
    "controls": "Random, BestFit and FGD re-implemented here, run on the same streams in one process and recounted",
    "one_policy": "one weights file for every row; its two sets are chosen by the turnover that the engine sees",
    "speed": "one request per Python call, one core, cold classes included; per CPU second of the process; median",
}


def conditions(plan: Plan, *, quick: bool) -> dict[str, Any]:
    """Return under which conditions the figures were measured."""
    return {
        "quick": quick,
        "numba": kernels.AVAILABLE,
        "machine": f"{platform.machine()}, Python {platform.python_version()}, {os.cpu_count()} cores",
        "load_average": list(os.getloadavg()),
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "weights_version": load_policy().version,
        "engine_digest": digest(OURS)[:16],
        "conditions": CONDITIONS | {"seeds": {"inflation": plan.seeds, "churn": plan.churn_seeds}},
    }


def one_policy(result: dict[str, Any]) -> dict[str, float]:
    """All rows come from one weights file: put the two that pull apart side by side."""
    mean, churn, published = result["inflation_mean17"], result["churn"].get("0.95"), result["inflation_published_fgd"]
    if mean["ours"] is None or churn is None:
        return {}
    anchor = sum(published[name] for name in result["inflation"]["ours"]) / len(result["inflation"]["ours"])
    over = {} if mean["fgd"] is None else {"inflation_over_fgd": mean["ours"] - mean["fgd"]}
    return {
        "inflation_mean": mean["ours"],
        **over,
        "inflation_over_published_fgd": mean["ours"] - anchor,
        "churn_short_lost": churn["lost"],
        "churn_short_lost8": churn["lost8"],
    }


def durable(out: Path, *, quick: bool) -> str:
    """Measure durable leases per second by the script beside this one, which adds them to the JSON; or say why not."""
    script = ROOT / "bench/placement_durable.py"
    if quick or out.resolve() != ROOT / "bench/out":
        return "not measured with --quick or --out"
    if not script.exists():
        return "bench/placement_durable.py is not there"
    try:
        done = subprocess.run([sys.executable, str(script)], timeout=900, capture_output=True, text=True)
    except subprocess.TimeoutExpired:
        return "bench/placement_durable.py took more than 15 minutes"
    return "" if done.returncode == 0 else f"bench/placement_durable.py failed: {done.stderr[-300:]}"


def main() -> int:
    """Run what is missing and write the figures; 0 also where the data is missing, which is said loudly."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared/data")
    parser.add_argument("--out", type=Path, default=ROOT / "bench/out")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--cpu-minutes", type=float, default=1e9, help="stop after so much; go on by another call")
    parser.add_argument("--policies", default="ours,fgd,bestfit,random", help="run only the missing runs of these")
    options = parser.parse_args()
    if not (options.data / "openb").is_dir():
        print(f"SKIPPED: no traces under {options.data} (give --data PATH); nothing was measured", file=sys.stderr)
        return 0
    plan = QUICK if options.quick else Plan()
    remembered, jobs = Remembered(options.out), plan.jobs()
    missing = sum(remembered.get(job) is None for job in jobs)
    print(f"{len(jobs)} runs, {missing} of them to do" + ("" if options.quick else " (all take some 45 CPU minutes)"))
    chosen = [job for job in jobs if job.policy in options.policies.split(",")]
    for job, done in remembered.run_missing(chosen, options.data, 60 * options.cpu_minutes):
        print(placement_table.line(job, done), flush=True)
    figures = {job: done for job in jobs if (done := remembered.get(job)) is not None}
    missing = len(jobs) - len(figures)
    if missing:
        print(f"{missing} runs are still missing: their figures are left out of what is written. Call again.")
    result = conditions(plan, quick=options.quick) | Report(plan, figures).result()
    result |= {"complete": not missing, "runs_missing": missing}
    result["one_policy"] = one_policy(result)
    speed = speeds(trace(options.data, "default"), pool(options.data), numba=kernels.AVAILABLE, quick=options.quick)
    result["decisions_per_s"] = {key: row["per_cpu_s"] for key, row in speed.items()}
    result["p99_ms"] = {key: row["p99_ms"] for key, row in speed.items() if "p99_ms" in row}
    result |= {"speed": speed, "durable_leases_per_s": None}
    written = options.out / "placement.json"
    written.write_text(json.dumps(result, indent=2) + "\n")
    note = durable(options.out, quick=options.quick)
    result = json.loads(written.read_text()) | ({"durable_leases_per_s_note": note} if note else {})
    written.write_text(json.dumps(result, indent=2) + "\n")
    table = placement_table.table(result)
    (options.out / "placement.txt").write_text(table)
    print(table + f"written: {written}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
