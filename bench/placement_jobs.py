"""The runs that the placement benchmark is made of: each a job, done once and remembered, so that it can stop anywhere.

A finished run is a line of JSON in bench/out/placement-runs.jsonl under a key made of the job and of a digest of the
code that decides it: the engine's sources and weights for ours, the controls' for a control. Comments, docstrings and
layout do not count. Several processes may work at once: a lock on a file of its own is the claim to a job.
"""

import ast
import fcntl
import hashlib
import json
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path

import placement_runs as runs
from placement_trace import Trace, node_orders, read_nodes, read_trace

from scheduler.placement.pool import NodeRow

ROOT = Path(__file__).resolve().parent.parent
ENGINE = ("demand", "engine", "live", "moves", "pool", "cache", "kernels", "rating", "tables", "score")
SHARED = ("bench/placement_runs.py", "bench/placement_trace.py", "bench/placement_recount.py")
OURS = (*(f"scheduler/placement/{name}.py" for name in ENGINE), "scheduler/placement/weights.json", *SHARED)
CONTROLS = ("bench/placement_controls.py", *SHARED)
Figures = dict[str, float]


@dataclass(frozen=True)
class Job:
    """One run. kind: inflation or churn; policy: ours or a control; window: warm-up and measured mean lifetimes.

    allowance_bp: 1/10,000 of the GPUs offered that may be moved, for at most `moves` leases at a refusal. order: one
    of `node_orders`, empty = as in the file. learn: no histogram is given. tiled: fractions are rounded up to tiles.
    """

    kind: str
    policy: str
    trace: str
    seed: int
    load: float = 0.0
    window: tuple[int, int] = (0, 0)
    moves: int = 0
    allowance_bp: int = 0
    order: str = ""
    learn: bool = False
    tiled: bool = False

    @property
    def key(self) -> str:
        """Name the job together with the code that decides it."""
        told = json.dumps([asdict(self), digest(OURS if self.policy == "ours" else CONTROLS)], sort_keys=True)
        return hashlib.sha256(told.encode()).hexdigest()[:24]


class Remembered:
    """Finished runs, in a file that several processes append to."""

    def __init__(self, folder: Path) -> None:
        self._file, self._claims = folder / "placement-runs.jsonl", folder / "claims"
        self._claims.mkdir(parents=True, exist_ok=True)
        self._figures: dict[str, Figures] = {}
        self._at: dict[str, str] = {}
        self._read_until = 0

    def get(self, job: Job) -> Figures | None:
        """Return the figures of a job, or None if it has not been run with this code."""
        if self._file.exists() and self._file.stat().st_size > self._read_until:
            with self._file.open() as file:
                file.seek(self._read_until)
                for line in iter(file.readline, ""):
                    if not line.endswith("\n"):
                        break  # somebody is at writing it
                    row = json.loads(line)
                    self._figures[row["key"]], self._at[row["key"]] = row["figures"], row.get("at", "")
                    self._read_until = file.tell()
        return self._figures.get(job.key)

    def put(self, job: Job, figures: Figures, cpu_s: float) -> None:
        """Remember a finished run. One write of one line: lines of several processes do not mix."""
        at = datetime.now(UTC).isoformat(timespec="seconds")
        row = {"key": job.key, "job": asdict(job), "figures": figures, "cpu_s": round(cpu_s, 2), "at": at}
        with self._file.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.write(json.dumps(row) + "\n")

    def oldest(self, jobs: Iterable[Job]) -> str | None:
        """Return when the first of these finished runs was made; None if that was not noted for one of them."""
        moments = [self._at.get(job.key, "") for job in jobs]
        return min(moments, default="") or None

    def run_missing(self, jobs: Sequence[Job], data: Path, cpu_limit_s: float) -> Iterator[tuple[Job, Figures]]:
        """Run what is missing, in order, until so much CPU time is spent; leave alone what another process is at."""
        began = time.process_time()
        for job in jobs:
            if time.process_time() - began > cpu_limit_s:
                return
            with (self._claims / job.key).open("w") as claim:
                try:
                    fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    continue
                if self.get(job) is None:
                    start = time.process_time()
                    figures = run(job, data)
                    self.put(job, figures, time.process_time() - start)
                    yield job, figures
            (self._claims / job.key).unlink(missing_ok=True)


@lru_cache(maxsize=4)
def digest(paths: tuple[str, ...]) -> str:
    """Return a digest of what the sources do."""
    return hashlib.sha256(
        "".join(_meaning(ROOT / path) for path in paths if (ROOT / path).exists()).encode()
    ).hexdigest()


def _meaning(path: Path) -> str:
    if path.suffix != ".py":
        return path.read_text()
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if (
            isinstance(body, list)
            and body
            and isinstance(body[0], ast.Expr)
            and isinstance(body[0].value, ast.Constant)
        ):
            body.pop(0)
    return ast.dump(tree)


@lru_cache(maxsize=1)
def pool(data: Path) -> list[NodeRow]:
    """Return the pool of the traces."""
    return read_nodes(data)


@lru_cache(maxsize=4)
def trace(data: Path, name: str) -> Trace:
    """Return a trace."""
    return read_trace(data, name, pool(data))


def run(job: Job, data: Path) -> Figures:
    """Run a job, recounted; return its figures."""
    nodes = node_orders(pool(data))[job.order] if job.order else pool(data)
    pods = trace(data, job.trace).tiled() if job.tiled else trace(data, job.trace)
    if job.kind == "inflation":
        if job.policy == "ours":
            return {"allocated": runs.ours_inflation(pods, nodes, job.seed, learn=job.learn)}
        return {"allocated": runs.control_inflation(job.policy, pods, nodes, job.seed)}
    if job.policy == "ours":
        moving = {"moves": job.moves, "moves_allowance_bp": job.allowance_bp} if job.moves else {}
        return runs.ours_churn(pods, nodes, job.load, *job.window, job.seed, may_refuse=True, **moving)
    return runs.control_churn(job.policy, pods, nodes, job.load, *job.window, job.seed)
