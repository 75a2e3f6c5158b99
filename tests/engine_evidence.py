"""What an engine that stays away says of itself: goroutines of its daemons and shims, its processes, its last words."""

import os
import re
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from tests.engines import Dockerd

LAST_LINES = 4000


def write_evidence(engine: Dockerd, path: Path) -> str:
    """Write all that can be had to a file; return the few lines that say most."""
    pids = sorted(processes(engine))
    before = set((engine.folder / "exec").glob("goroutine-stacks-*.log"))
    for pid in pids:
        # Each of them writes its goroutines then; another program would end.
        if _command(pid).split(" ")[0].rpartition("/")[2] in ("dockerd", "containerd", "containerd-shim-runc-v2"):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGUSR1)
    time.sleep(2)
    dumps = sorted(set((engine.folder / "exec").glob("goroutine-stacks-*.log")) - before)
    parts = ["# processes", *(_process(pid) for pid in pids)]
    parts += ["# open pipes of the shims", *(line for pid in pids for line in _pipes(engine, pid))]
    for stacks in (Path(tempfile.gettempdir()) / f"containerd.{pid}.stacks.log" for pid in pids):
        if stacks.exists():
            parts += [f"# {stacks.name}", stacks.read_text(errors="replace")]
            stacks.unlink()
    for log in ("log", "containerd.log"):
        with suppress(OSError):
            parts += [f"# {log}", *(engine.folder / log).read_text(errors="replace").splitlines()[-LAST_LINES:]]
    texts = [dump.read_text(errors="replace") for dump in dumps]
    for dump, text in zip(dumps, texts, strict=True):
        parts += [f"# {dump.name}", text]
    path.write_text("\n".join(parts))
    panics = [line for line in parts if line.startswith("panic:")]
    waits = Counter(where for text in texts for where in _waits(text))
    waiting = f"goroutines of dockerd that load containers: {waits.most_common(6)}"
    return f"{path}: {len(pids)} processes; {len(panics)} panics, the last {panics[-1:]}; {waiting}"


def processes(engine: Dockerd) -> Iterator[int]:
    """Return the processes whose command names the engine's folder, and their children."""
    parents = {}
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        stat = _read(pid, "stat").rpartition(")")[2].split()
        if len(stat) > 1:
            parents[pid] = int(stat[1])
    ours = {pid for pid in parents if str(engine.folder) in _command(pid)}
    while more := {pid for pid, parent in parents.items() if parent in ours} - ours:
        ours |= more
    yield from ours - {os.getpid()}


def _waits(text: str) -> Iterator[str]:
    """Return, for each goroutine inside the loading of containers, its state and its topmost call that is not Go's."""
    for block in text.split("\n\n"):
        if "restore" in block.lower():
            head, *calls = block.splitlines()
            state = re.sub(r"goroutine \d+ ", "", head)
            yield f"{state} {' < '.join(call.partition('(0x')[0] for call in calls[:14:2])}"


def _process(pid: int) -> str:
    state = _read(pid, "stat").rpartition(")")[2].split()[:2]
    return f"{pid} {state} {_read(pid, 'wchan')} {_command(pid)[:300]}"


def _pipes(engine: Dockerd, pid: int) -> Iterator[str]:
    for link in Path(f"/proc/{pid}/fd").glob("*"):
        with suppress(OSError):
            target = os.readlink(link)
            if str(engine.folder) in target or "fifo" in target:
                yield f"{pid} {link.name} -> {target}"


def _command(pid: int) -> str:
    return _read(pid, "cmdline").replace("\0", " ").strip()


def _read(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text(errors="replace")
    except OSError:
        return ""
