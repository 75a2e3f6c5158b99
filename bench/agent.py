"""What an agent costs its owner, beside a monitor that polls: memory, CPU, and how fast an Xid reaches the server.

    python bench/agent.py [--idle-s 60] [--xids 30]

Writes bench/out/agent.json. The agent is a real process with a real probe and the real pynvml on the tests' fake driver
library (eight GPUs): the driver's own time is not in it. The baseline polls the same figures of the same fake once a
second, as a terminal monitor does. `agents` and `sync_p99_s` belong to the control plane: bench/agent_scale.py adds
them.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "platform")]

from tests.fakes.control_plane import FakeControlPlane  # noqa: E402
from tests.fakes.nvml import FakeNvml, build  # noqa: E402

GPUS = 8
SETTLE_S = 10
MONITOR = """
import time, pynvml
from agents.node.probe import Probe
pynvml.nvmlInit()
probe = Probe(print)
probe.inventory()
while True:
    probe.sample(time.monotonic())
    time.sleep(1)
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--idle-s", type=int, default=60)
    parser.add_argument("--xids", type=int, default=30)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(Path(folder), idle_s=options.idle_s, xids=options.xids)
    out = ROOT / "bench" / "out" / "agent.json"
    out.parent.mkdir(exist_ok=True)
    kept = json.loads(out.read_text()) if out.exists() else {"agents": None, "sync_p99_s": None}
    out.write_text(json.dumps(kept | figures, indent=1) + "\n")
    for name, value in figures.items():
        print(f"{name:24} {value}")
    return 0


def measure(folder: Path, *, idle_s: int, xids: int) -> dict[str, Any]:
    """Return the figures of one agent beside one monitor, idle for `idle_s`, then with `xids` Xids one by one."""
    nvml = FakeNvml(build(folder), folder)
    nvml.say(f"model 0-{GPUS - 1} H100_80G")
    env = {**os.environ, **nvml.environment, "FAKE_NVML_STEP_MS": "1000", "PYTHONPATH": str(ROOT)}
    env.pop("FAKE_NVML_CALLS")
    log = folder / "kmsg"
    os.mkfifo(log)
    writer = os.open(log, os.O_RDWR)
    plane = FakeControlPlane(hold_s=5)
    plane.start()
    command = [sys.executable, "-m", "agents.node.main", "run", "--state-dir", str(folder / "state")]
    command += ["--server", plane.url, "--token", "one-time", "--driver", "nvidia", "--engine", "process"]
    agent = subprocess.Popen([*command, "--kernel-log", str(log)], env=env, stdout=subprocess.DEVNULL, cwd=ROOT)
    monitor = subprocess.Popen([sys.executable, "-c", MONITOR], env=env, cwd=ROOT)
    try:
        until(lambda: plane.requests and any(row["state"] == "ok" for row in plane.requests[-1].devices))
        time.sleep(SETTLE_S)  # what is measured is the resting state
        probe = children(agent.pid)[0]
        before, began = [cpu_s(pid) for pid in (agent.pid, probe, monitor.pid)], time.monotonic()
        sent = len(plane.requests)
        time.sleep(idle_s)
        took, syncs = time.monotonic() - began, len(plane.requests) - sent
        core, probed, polled = (
            (cpu_s(pid) - was) / took * 1000 for pid, was in zip((agent.pid, probe, monitor.pid), before, strict=True)
        )
        latencies = [one_xid(plane, writer, number) for number in range(xids)]
        return {
            "core_rss_mb": rss_mb(agent.pid),
            "probe_rss_mb": rss_mb(probe),
            "idle_millicores": round(core + probed, 2),
            "core_millicores": round(core, 2),
            "probe_millicores": round(probed, 2),
            "baseline_millicores": round(polled, 2),
            "idle_syncs_per_minute": round(syncs / took * 60, 1),
            "xid_to_server_p50_s": round(statistics.median(latencies), 4),
            "xid_to_server_p99_s": round(sorted(latencies)[min(len(latencies) - 1, len(latencies) * 99 // 100)], 4),
            "gpus": GPUS,
            "machine": f"{os.cpu_count()} CPUs, {platform.machine()}, Python {platform.python_version()}",
            "date": time.strftime("%Y-%m-%d"),
        }
    finally:
        agent.terminate()
        monitor.kill()
        agent.wait(20)
        plane.stop()
        os.close(writer)


def one_xid(plane: FakeControlPlane, writer: int, number: int) -> float:
    """Write one Xid into the kernel log; return after how many seconds the control plane had it."""
    line, seen = f"NVRM: Xid (PCI:0000:01:00): {500 + number}, text", 500 + number
    began = time.monotonic()
    os.write(writer, f"4,{number},5,-;{line}\n".encode())
    until(lambda: any(seen in row["xids"] for request in plane.requests[-5:] for row in request.devices))
    return time.monotonic() - began


def until(condition: Callable[[], object], within_s: float = 30) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("the agent did not get there")
        time.sleep(0.002)


def children(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += [int(child) for child in (task / "children").read_text().split()]
    return found


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 1_000_000, 1)


if __name__ == "__main__":
    sys.exit(main())
