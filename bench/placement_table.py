"""The placement benchmark's figures as text for people."""

from typing import Any

from placement_jobs import Figures, Job


def line(job: Job, figures: Figures) -> str:
    """Return one finished run as a line."""
    what = f"{job.kind} {job.policy} {job.trace} seed {job.seed}"
    if job.kind == "churn":
        what += f" load {job.load:.2f} window {job.window[0]}+{job.window[1]} K={job.moves}"
    what += f" [{job.order}]" * bool(job.order) + " learning" * job.learn + " tiled" * job.tiled
    return f"{what:64s}" + "  ".join(f"{name} {value:.3f}" for name, value in figures.items())


def table(result: dict[str, Any]) -> str:
    """Return the whole result as a table."""
    return "\n".join([*_made_of(result), "", *_inflation(result), "", *_churn(result), "", *_rest(result)]) + "\n"


def _made_of(result: dict[str, Any]) -> list[str]:
    """Say what the figures are made of: which runs are new, which were remembered, which are missing."""
    old, missing, runs = result["runs_remembered"], result["runs_missing"], result["runs"]
    since = f", of this very code, since {result['runs_oldest'] or 'a time that was not noted'}" if old else ""
    first = f"engine {result['engine_digest']}, weights {result['weights_version']}; {result['machine']}"
    rows = [first + "; QUICK: fewer seeds and traces" * result["quick"]]
    rows.append(f"{runs} runs by {result['at']}: {runs - old - missing} made now, {old} remembered{since}")
    if missing:
        rows.append(f"INCOMPLETE: {missing} runs are missing; means in which one is are left out. Call again.")
    return rows


def _inflation(result: dict[str, Any]) -> list[str]:
    policies, published = ("ours", "fgd", "bestfit", "random"), result["inflation_published_fgd"]
    table, means = result["inflation"], result["inflation_mean17"]
    rows = [f"{'inflation, % allocated':24s}" + "".join(f"{p:>10s}" for p in policies) + f"{'published FGD':>15s}"]
    for name in dict.fromkeys(name for policy in policies for name in table[policy]):
        cells = "".join(_cell(table[policy].get(name)) for policy in policies)
        rows.append(f"{name:24s}{cells}{published[name]:15.2f}")
    rows.append(f"{'mean':24s}" + "".join(_cell(means[policy]) for policy in policies))
    rows.append(f"{'default, learning':24s}{_cell(result['inflation_learning_default'])}")
    rows.append(f"{'default, tiled':24s}" + "".join(_cell(value) for value in result["tiles"].values()))
    for name, by in result["order_spread"].items():
        rows.append(f"{'order spread ' + name:24s}" + "".join(_cell(by.get(policy), 3) for policy in ("ours", "fgd")))
    return rows


def _cell(value: float | None, places: int = 2) -> str:
    return f"{'-':>10s}" if value is None else f"{value:10.{places}f}"


def _churn(result: dict[str, Any]) -> list[str]:
    rows = [f"{'churn: % GPU / % 8-GPU lost (% moved)':44s}{'ours':>22s}{'fgd':>16s}{'bestfit':>16s}"]
    for trace, windows in result["churn_traces"].items():
        for name, loads in windows.items():
            for load, row in loads.items():
                ours = f"{row['lost']:.2f} / {row['lost8']:.1f} ({row['moved']:.2f})"
                others = [
                    f"{row[p]['lost']:.2f} / {row[p]['lost8']:.1f}" if p in row else "-" for p in ("fgd", "bestfit")
                ]
                rows.append(f"{f'{trace} {name} {load}':44s}{ours:>22s}" + "".join(f"{cell:>16s}" for cell in others))
    return rows


def _rest(result: dict[str, Any]) -> list[str]:
    rows = [
        f"{'speed':24s}{'per CPU s':>10s}{'least':>10s}{'most':>10s}{'p99 ms':>10s}{'max ms':>10s}"
        f"{'numpy calls/decision':>22s}"
    ]
    for name, row in result["speed"].items():
        last = "".join(f"{row[key]:10.2f}" for key in ("p99_ms", "max_ms") if key in row)
        last += f"{row['yards_per_decision']:22.1f}" if "yards_per_decision" in row else ""
        rows.append(
            f"{name:24s}{row['per_cpu_s']:10.0f}{row['per_cpu_s_least']:10.0f}{row['per_cpu_s_most']:10.0f}{last}"
        )
    rows.append(f"{'speed was measured':24s}{_when(result.get('speed_conditions'))}")
    leases, how = result["durable_leases_per_s"], result.get("durable", {})
    rows.append(f"{'durable leases per s':24s}{how.get('note', '-') if leases is None else leases}")
    if leases is not None:
        size = f"{how['gpus']} GPUs, {how['placed']} leases, {how['cpus']} cores; {_when(how)}"
        rows.append(f"{'':24s}{size}")
    if mixed := result.get("durable_mixed_leases_per_s"):
        how = result["durable_mixed"]
        rows.append(f"{'the same, mixed asks':24s}{mixed}")
        rows.append(f"{'':24s}{how['engine_decisions']} decisions for {how['placed']} leases; {_when(how)}")
    rows.append("one policy              " + "  ".join(f"{k} {v:.3f}" for k, v in result["one_policy"].items()))
    return rows


def _when(conditions: dict[str, Any] | None) -> str:
    if not conditions:
        return "not"
    load = conditions["load_average"][0]
    busy = f": other work took part of the machine (load {load:.1f})" if load > 1.5 else f" (load {load:.1f})"
    return f"{conditions['at']}{busy}" + ", quick: too short to be a figure" * conditions.get("quick", False)
