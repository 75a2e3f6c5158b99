"""Benchmark of the placement engine beside Random, BestFit and FGD on public traces: the protocol of the design's page.

    python bench/placement.py [--data ../shared/data] [--quick] [--only speed,durable] [--cpu-minutes N] [--out PATH]

Writes placement.json and placement.txt (a table). All of it takes some 45 minutes of CPU; runs that were finished
before with the same code are remembered, so it can be stopped at any time and done in slices (--cpu-minutes), several
processes at once; the file and the table say how many were remembered, and since when. Speeds are never remembered:
--only speed, or durable, measures them anew into the file that is there. --quick takes fewer seeds and traces and a
small database, two minutes, and says so in the file. Ties: lowest row first for the controls; ours looks at what is
left, then at a keyed hash. FGD and BestFit here are our own re-implementations. Exit status 1: a part failed.
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
    "speed": "one request per Python call, one core, cold classes included; per CPU second of the process; median;"
    " yardstick: small calls of numpy per CPU second, right before and after; a busy machine lowers both",
    "durable": "of waiting leases to bound ones by the placer of the product, PostgreSQL with fsync; per second of wall"
    " time, so whatever else runs lowers it",
}
PARTS = ("runs", "speed", "durable")
DURABLE = ("durable_leases_per_s", "durable", "durable_mixed_leases_per_s", "durable_mixed")
SMALL = ("--hosts", "60", "--leases", "120")  # of the database, with --quick


def moment() -> dict[str, Any]:
    """Return when this is, and how busy the machine has been in the last 1, 5 and 15 minutes."""
    return {"at": datetime.now(UTC).isoformat(timespec="seconds"), "load_average": list(os.getloadavg())}


def conditions(plan: Plan, *, quick: bool) -> dict[str, Any]:
    """Return under which conditions the figures were measured."""
    return {
        "quick": quick,
        "numba": kernels.AVAILABLE,
        "machine": f"{platform.machine()}, Python {platform.python_version()}, {os.cpu_count()} cores",
        **moment(),
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


def runs(options: argparse.Namespace, plan: Plan) -> dict[str, Any]:
    """Do the runs that are missing; return all that the finished ones say."""
    remembered, jobs = Remembered(options.out), plan.jobs()
    before = sum(remembered.get(job) is not None for job in jobs)
    print(f"{len(jobs)} runs, {len(jobs) - before} of them to do", flush=True)
    chosen = [job for job in jobs if job.policy in options.policies.split(",")]
    for job, done in remembered.run_missing(chosen, options.data, 60 * options.cpu_minutes):
        print(placement_table.line(job, done), flush=True)
    figures = {job: done for job in jobs if (done := remembered.get(job)) is not None}
    result = conditions(plan, quick=options.quick) | Report(plan, figures).result()
    result["one_policy"] = one_policy(result)
    return result | {
        "complete": len(figures) == len(jobs),
        "runs": len(jobs),
        "runs_missing": len(jobs) - len(figures),
        "runs_remembered": before,
        "runs_oldest": remembered.oldest(figures),
    }


def speed(options: argparse.Namespace) -> dict[str, Any]:
    """Measure the speeds of the engine, always anew."""
    nodes = pool(options.data)
    rows = speeds(trace(options.data, "default"), nodes, numba=kernels.AVAILABLE, quick=options.quick)
    return {
        "decisions_per_s": {key: row["per_cpu_s"] for key, row in rows.items()},
        "p99_ms": {key: row["p99_ms"] for key, row in rows.items() if "p99_ms" in row},
        "speed": rows,
        "speed_conditions": moment() | {"quick": options.quick},
    }


def durable(written: Path, *, quick: bool) -> str:
    """Measure durable leases per second by the script beside this one, which adds them to the JSON; or say why not."""
    for load in ("plain", "mixed"):
        command = [sys.executable, str(ROOT / "bench/placement_durable.py"), "--load", load, "--out", str(written)]
        try:
            done = subprocess.run([*command, *(SMALL * quick)], timeout=900, capture_output=True, text=True)
        except subprocess.TimeoutExpired:
            return "not measured: bench/placement_durable.py took more than 15 minutes"
        if done.returncode != 0:
            return f"not measured: bench/placement_durable.py failed: {done.stderr[-300:]}"
    return ""


def read(written: Path) -> dict[str, Any]:
    """Return what an earlier call wrote."""
    result: dict[str, Any] = json.loads(written.read_text()) if written.exists() else {}
    return result


def write(written: Path, result: dict[str, Any]) -> None:
    """Write the figures whole or not at all."""
    new = written.with_suffix(".new")
    new.write_text(json.dumps(result, indent=2) + "\n")
    new.replace(written)


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared/data")
    parser.add_argument("--out", type=Path, default=ROOT / "bench/out")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default=",".join(PARTS), help="of runs, speed, durable; the others stay as they were")
    parser.add_argument("--cpu-minutes", type=float, default=1e9, help="stop after so much; go on by another call")
    parser.add_argument("--policies", default="ours,fgd,bestfit,random", help="run only the missing runs of these")
    options = parser.parse_args()
    if unknown := set(options.only.split(",")) - set(PARTS):
        parser.error(f"--only takes {', '.join(PARTS)}, not {', '.join(sorted(unknown))}")
    return options


def main() -> int:
    """Run what is missing and write the figures; 0 also where the data is missing, which is said loudly."""
    options = parse()
    if not (options.data / "openb").is_dir():
        print(f"SKIPPED: no traces under {options.data} (give --data PATH); nothing was measured", file=sys.stderr)
        return 0
    parts, written = options.only.split(","), options.out / "placement.json"
    options.out.mkdir(parents=True, exist_ok=True)
    if "runs" not in parts and not written.exists():
        options.cpu_minutes = -1.0  # what is remembered, and no run more
    if "runs" in parts or not written.exists():
        done = runs(options, QUICK if options.quick else Plan())
        kept = ("decisions_per_s", "p99_ms", "speed", "speed_conditions", *DURABLE)
        write(written, {name: value for name, value in read(written).items() if name in kept} | done)
    if "speed" in parts:
        write(written, read(written) | speed(options))
    note = durable(written, quick=options.quick) if "durable" in parts else ""
    result = {"durable_leases_per_s": None, "decisions_per_s": {}, "p99_ms": {}, "speed": {}} | read(written)
    if note:
        result |= {"durable_leases_per_s": None, "durable": {"note": note}}
    write(written, result)
    table = placement_table.table(result)
    (options.out / "placement.txt").write_text(table)
    print(table + f"written: {written}")
    return 1 if note else 0


if __name__ == "__main__":
    sys.exit(main())
