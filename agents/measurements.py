"""What the GPUs of a workload measured over time, from the readings that agents send.

An agent reads its GPUs every 15 s and sends the last readings, with their age, in each sync. A sample is taken in once,
into the row of its workload and minute: sums, so that any step can be averaged from them. What the driver does not say
is not counted, and shows as unmeasured: never as 0. Of a card that several share nothing is kept, since its readings
are also the others'. Rows live for METRICS_KEPT_S.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import connection

from agents.models import Workload

FIGURES = {  # name of the reading -> what is believed of it
    "utilization_percent": (0, 100),
    "memory_used_mib": (0, 16 * 1024 * 1024),
    "power_mw": (0, 10_000_000),
    "temperature_c": (-50, 200),
}
SAMPLED_EVERY_S = 15  # by agents
STALE_S = 60  # readings that are older say nothing of now
FORGOTTEN_AT_ONCE = 50_000

_ADD = """
INSERT INTO agents_measuredminute AS kept (workload_id, minute, counts, sums, peaks) VALUES {rows}
ON CONFLICT (workload_id, minute) DO UPDATE SET
  counts = (SELECT array_agg(a + b ORDER BY n) FROM unnest(kept.counts, excluded.counts) WITH ORDINALITY u(a, b, n)),
  sums = (SELECT array_agg(a + b ORDER BY n) FROM unnest(kept.sums, excluded.sums) WITH ORDINALITY u(a, b, n)),
  peaks = (SELECT array_agg(greatest(a, b) ORDER BY n)
           FROM unnest(kept.peaks, excluded.peaks) WITH ORDINALITY u(a, b, n))
"""
_STEPS = """
SELECT kept.workload_id, date_bin(%(step)s, kept.minute, %(since)s) AS start, u.n, sum(u.count), sum(u.sum), max(u.peak)
FROM agents_measuredminute kept, unnest(kept.counts, kept.sums, kept.peaks) WITH ORDINALITY u(count, sum, peak, n)
WHERE kept.workload_id = ANY(%(workloads)s) AND kept.minute >= %(since)s AND kept.minute < %(until)s AND u.count > 0
GROUP BY 1, 2, 3
"""
_FORGET = """
DELETE FROM agents_measuredminute WHERE ctid = ANY(ARRAY(
  SELECT ctid FROM agents_measuredminute WHERE minute < %s ORDER BY minute LIMIT %s))
"""


@dataclass(frozen=True)
class Step:
    """A figure of one GPU over one step: how many samples said it, their mean and the highest of them."""

    count: int
    mean: int
    peak: int


def record(workloads: Sequence[Workload], measured: Mapping[str, Mapping[str, Any]], *, at: datetime) -> None:
    """Add new readings, by the UUID of their GPU, to the minute `at` of those workloads that use it alone."""
    rows = [(workload, _summed(workload, measured)) for workload in workloads if _is_used(workload)]
    values: list[Any] = []
    for workload, (counts, sums, peaks) in rows:
        if any(counts):
            values += [workload.pk, at.replace(second=0, microsecond=0), counts, sums, peaks]
    if values:
        row = "(%s, %s, %s::smallint[], %s::bigint[], %s::integer[])"
        with connection.cursor() as cursor:
            cursor.execute(_ADD.format(rows=", ".join([row] * (len(values) // 5))), values)


def steps(
    workloads: Sequence[Workload], *, since: datetime, until: datetime, step: timedelta
) -> dict[tuple[UUID, str, str], dict[datetime, Step]]:
    """Return what was measured from `since` on, in steps that begin there: by workload, GPU and figure."""
    uuids = {workload.pk: workload.spec.get("devices", []) for workload in workloads}
    names = list(FIGURES)
    asked: dict[str, Any] = {"workloads": list(uuids), "since": since, "until": until, "step": step}
    found: dict[tuple[UUID, str, str], dict[datetime, Step]] = {}
    with connection.cursor() as cursor:
        cursor.execute(_STEPS, asked)
        for workload, start, place, count, total, peak in cursor.fetchall():
            gpu, figure = divmod(place - 1, len(names))
            key = (workload, uuids[workload][gpu], names[figure])
            found.setdefault(key, {})[start] = Step(count, round(total / count), peak)
    return found


def forget(*, at: datetime, limit: int = FORGOTTEN_AT_ONCE) -> int:
    """Delete minutes that are older than METRICS_KEPT_S, at most `limit`, the oldest first; return how many."""
    with connection.cursor() as cursor:
        cursor.execute(_FORGET, [at - timedelta(seconds=settings.METRICS_KEPT_S), limit])
        deleted: int = cursor.rowcount
    return deleted


def _is_used(workload: Workload) -> bool:
    return workload.ready_at is not None and workload.exited_at is None


def _summed(
    workload: Workload, measured: Mapping[str, Mapping[str, Any]]
) -> tuple[list[int], list[int], list[int | None]]:
    shared = workload.spec.get("units", {})
    counts: list[int] = []
    sums: list[int] = []
    peaks: list[int | None] = []
    for uuid in workload.spec.get("devices", []):
        readings = {} if uuid in shared else measured.get(uuid, {})
        for name, (lowest, highest) in FIGURES.items():
            figure = _believed(readings.get(name), lowest, highest)
            counts.append(0 if figure is None else 1)
            sums.append(figure or 0)
            peaks.append(figure)
    return counts, sums, peaks


def _believed(value: Any, lowest: int, highest: int) -> int | None:
    """Return a figure that can be one, as a whole number; None of anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not lowest <= value <= highest:
        return None
    return round(value)
