"""gpuyard lease metrics: what the GPUs of a lease measured."""

from __future__ import annotations

from typing import Any

import click

from gpuyard.cli import inputs, naming
from gpuyard.cli.lease_verbs import lease
from gpuyard.cli.session import session
from gpuyard.cli.tables import Column
from gpuyard.cli.values import badge, member, plain

__all__ = ["lease"]  # with the verb of this file

_BARS = "▁▂▃▄▅▆▇█"
_NARROW = 30  # bars of a trend
Row = dict[str, Any]


@lease.command()
@naming.lease_argument
@click.option("--member", type=click.IntRange(min=0), help="Only this rank of a gang.")
@click.option("--since", type=inputs.Past(), help="From then on: 30m, 2d, or an instant (1h).")
@click.option("--until", type=inputs.Past(), help="Until then: 10m, or an instant (now).")
@click.option("--step", type=inputs.Duration(), help="1m, 5m, 15m, 1h, 6h or 1d; by the range if not said.")
@click.option("--by", type=click.Choice(["gpu", "step"]), default="gpu", show_default=True)
def metrics(lease_id: str, member: int | None, since: str | None, until: str | None, step: int | None, by: str) -> None:
    """Show what the GPUs of a lease measured: use, memory, power, temperature. What no driver says stays empty."""
    here = session()
    found = here.client.leases.metrics(lease_id, member=member, since=since, until=until, step_s=step)
    here.show(found, lambda data: [("measured", f"{data['from']} – {data['to']}{badge(data)}")])
    if here.output not in ("table", "wide"):
        return
    data = found.to_dict()
    rows = [gpu for gpu in data["series"] if any(_said(gpu, name) for name in _FIGURES)]
    if by == "step":
        here.show_table(_steps(data["at"], rows), BY_STEP)
    else:
        here.show_table(rows, BY_GPU)


_FIGURES = ("utilization_percent", "memory_used_mib", "power_mw", "temperature_c")


def _said(gpu: Row, figure: str, of: str = "mean") -> list[int]:
    return [value for value in gpu[figure][of] if value is not None]


def _summary(figure: str, unit: str, per: int = 1) -> Any:
    """Return a reader of a figure's mean and of its highest value."""

    def read(gpu: Row) -> str:
        means = _said(gpu, figure)
        if not means:
            return ""
        return f"{round(sum(means) / len(means) / per)}, max {round(max(_said(gpu, figure, 'max')) / per)} {unit}"

    return read


def _memory(gpu: Row) -> str:
    used = _said(gpu, "memory_used_mib", "max")
    total = gpu.get("memory_total_mib")
    if not used:
        return ""
    return f"max {max(used) / 1024:.1f}" + (f" of {total / 1024:.0f} GiB" if total else " GiB")


def _trend(gpu: Row) -> str:
    """Return the mean use over time as bars, a space where nothing was measured, the last steps where it is long."""
    means = gpu["utilization_percent"]["mean"][-_NARROW:]
    return "".join(" " if mean is None else _BARS[min(mean * len(_BARS) // 100, len(_BARS) - 1)] for mean in means)


def _steps(starts: list[str], rows: list[Row]) -> list[Row]:
    """Return a row for each step and GPU of which anything was measured."""
    found = []
    for place, start in enumerate(starts):
        for gpu in rows:
            means = {figure: gpu[figure]["mean"][place] for figure in _FIGURES}
            if any(mean is not None for mean in means.values()):
                found.append({**gpu, **means, "at": start})
    return found


def _in(figure: str, unit: str, per: int = 1) -> Any:
    return lambda row: "" if row[figure] is None else f"{round(row[figure] / per)} {unit}"


def _gpu(row: Row) -> str:
    return plain(row.get("gpu_model") or row.get("gpu")) + badge(row)


BY_GPU = (
    Column("MEMBER", member("member"), right=True),
    Column("GPU", _gpu),
    Column("USE", _summary("utilization_percent", "%"), right=True),
    Column("TREND", _trend, rank=3),
    Column("MEMORY", _memory, rank=1, right=True),
    Column("POWER", _summary("power_mw", "W", 1000), rank=2, right=True),
    Column("HEAT", _summary("temperature_c", "°C"), rank=4, right=True),
    Column("UUID", member("gpu"), rank=5, wide=True),
)
BY_STEP = (
    Column("AT", member("at")),
    Column("MEMBER", member("member"), right=True),
    Column("GPU", _gpu, rank=4),
    Column("USE", _in("utilization_percent", "%"), right=True),
    Column("MEMORY", _in("memory_used_mib", "MiB"), rank=1, right=True),
    Column("POWER", _in("power_mw", "W", 1000), rank=2, right=True),
    Column("HEAT", _in("temperature_c", "°C"), rank=3, right=True),
    Column("UUID", member("gpu"), rank=5, wide=True),
)
