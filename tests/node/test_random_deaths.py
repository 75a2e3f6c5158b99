"""kill -9 of core, probe and engine at random moments of random orders, on two hosts at once.

One host has a real dockerd (killed too; its containers live on) and simulated GPUs; the other has the real probe on a
fake driver library and the process sandbox. 300 steps, and more with `--deaths N`. Whatever dies: never two running
containers on a device, nothing unwanted older than a minute in which there was an engine to ask, and receipts that tell
each second once.
"""

import contextlib
import hashlib
import itertools
import os
import random
import shutil
import signal
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from agents import protocol
from agents.node.private_files import folder_in_memory
from tests.engine_evidence import write_evidence
from tests.engines import IMAGE, Dockerd, private_dockerd, why_no_dockerd
from tests.fakes.control_plane import FakeControlPlane
from tests.fakes.nvml import FakeNvml, build, why_no_compiler
from tests.node.conftest import Agent, until

pytestmark = [pytest.mark.slow, pytest.mark.engine, pytest.mark.root, pytest.mark.timeout(3600)]
ORPHAN_S = 60
# A dockerd that was begun, and killed and begun again meanwhile, answers for a moment within this, or never will.
AWAY_S = 90
# A second that both sides tell of may differ by as long as an agent can be dead or starting.
OUTAGE_S = 15
SMI = '#!/bin/sh\necho "GPU 0: Fake (UUID: $TEST_DEVICE)"\n'
AFTER_READY = ("stopping", "cleaning", "gone", "exited")
Key = tuple[str, int, int]
RUN = uuid4().hex  # another run of this test beside this one has containers of the same names


@dataclass
class Host:
    """One agent with its control plane, and what is wanted on each of its devices."""

    plane: FakeControlPlane
    agent: Agent
    engine: Dockerd | None = None
    spec: dict[str, Any] = field(default_factory=dict)
    wanted: dict[str, Key] = field(default_factory=dict)  # by device
    epochs: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    devices: list[str] = field(default_factory=list)
    # By `able_s`: the seconds so far in which there was an engine. Without one nobody can stop a container.
    unwanted_at: dict[Key, float] = field(default_factory=dict)
    able_s: float = 0.0
    looked_s: float = field(default_factory=time.monotonic)
    was_able: bool = True
    able_at_s: float = field(default_factory=time.monotonic)

    def start_engine(self) -> None:
        if self.engine is not None:
            self.engine.begin()

    def look(self) -> None:
        """Count the time since the last look, if the engine answered then and answers now."""
        is_able = self.engine is None or self.engine.answers(within_s=1)
        now = time.monotonic()
        if is_able and self.was_able:
            self.able_s += now - self.looked_s
        self.was_able, self.looked_s = is_able, now
        if is_able:
            self.able_at_s = now
        away_s = now - self.able_at_s
        if self.engine is not None and away_s > AWAY_S:
            evidence = write_evidence(self.engine, self.agent.folder.parent / "engine-evidence.txt")
            raise AssertionError(f"the engine stays away for {away_s:.0f} s: {evidence}")

    def probe_pids(self) -> list[int]:
        """Return the probe processes of the agent."""
        assert self.agent.process is not None
        try:
            text = Path(f"/proc/{self.agent.process.pid}/task/{self.agent.process.pid}/children").read_text()
        except FileNotFoundError:
            return []
        return [int(pid) for pid in text.split() if "agents.node.probe" in _read(int(pid), "cmdline")]


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[list[Host]]:
    for reason in (why_no_dockerd(), why_no_compiler()):
        if reason is not None:
            pytest.skip(reason)
    planes = [FakeControlPlane(hold_s=1), FakeControlPlane(hold_s=1)]
    for plane in planes:
        plane.start()
    nvml = FakeNvml(build(tmp_path), tmp_path)
    nvml.say("model 0-1 A100_80G")
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "nvidia-smi").write_text(SMI)
    (tools / "nvidia-smi").chmod(0o755)
    for folder in (tmp_path, *tmp_path.parents):
        if str(folder).startswith("/tmp/"):
            folder.chmod(0o755)
    with private_dockerd() as engine:
        docker = ("--driver", "sim", "--sim", "A100_80G x2", "--engine", "docker")
        sandbox = ("--driver", "nvidia", "--engine", "process", "--kernel-log", str(tmp_path / "no-log"))
        path = f"{tools}:/usr/local/bin:/usr/bin:/bin"
        made = [
            Host(
                planes[0],
                Agent(planes[0], tmp_path / "docker", *docker, "--engine-socket", str(engine.socket)),
                engine,
                {"image": IMAGE, "command": ["sleep", "900"]},
            ),
            Host(
                planes[1],
                Agent(planes[1], tmp_path / "probe", *sandbox, environment=nvml.environment),
                None,
                {"command": ["sleep", "900"], "env": {"PATH": path}},
            ),
        ]
        for host in made:
            host.agent.start()
            host.devices = host.agent.devices
        yield made
        for host in made:
            host.agent.kill()
            shutil.rmtree(folder_in_memory(host.agent.folder), ignore_errors=True)
        for pids in _running().values():
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        engine.begin()
        until(engine.answers, within_s=60, what="the engine at the end")
    for plane in planes:
        plane.stop()


def _read(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes().replace(b"\0", b"\n").decode(errors="replace")
    except OSError:
        return ""


def _running() -> dict[tuple[str, str], list[int]]:
    """Return the live processes of containers by (device, "lease/member/epoch"), by what was put into them."""
    found: dict[tuple[str, str], list[int]] = defaultdict(list)
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        lines = dict(line.partition("=")[::2] for line in _read(pid, "environ").splitlines())
        if lines.get("TEST_RUN") == RUN and _read(pid, "stat").rpartition(")")[2].split()[:1] not in ([], ["Z"], ["X"]):
            found[lines["TEST_DEVICE"], lines["TEST_KEY"]].append(pid)
    return found


def _want(host: Host, device: str) -> None:
    lease = f"lease_{host.devices.index(device)}"
    host.epochs[lease] += 1
    key = (lease, 0, host.epochs[lease])
    env = {**host.spec.get("env", {}), "TEST_RUN": RUN, "TEST_DEVICE": device, "TEST_KEY": protocol.workload_key(*key)}
    spec = {**host.spec, "env": env}
    host.wanted[device] = host.plane.want(lease=lease, epoch=key[2], devices=[device], grace_s=1, **spec)


def _unwant(host: Host, device: str) -> None:
    key = host.wanted.pop(device)
    host.unwanted_at[key] = host.able_s
    host.plane.unwant(key)


def _step(host: Host, chance: random.Random) -> None:
    device = chance.choice(host.devices)
    act = chance.choices(["want", "unwant", "next", "core", "probe", "engine"], [30, 18, 12, 22, 10, 8])[0]
    if act == "want" and device not in host.wanted:
        _want(host, device)
    elif act == "unwant" and device in host.wanted:
        _unwant(host, device)
    elif act == "next" and device in host.wanted:
        _unwant(host, device)
        _want(host, device)
    elif act == "core":
        host.agent.kill()
        host.agent.begin()
    elif act == "probe":
        for pid in host.probe_pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    elif act == "engine" and host.engine is not None and host.engine.process is not None:
        if host.engine.process.poll() is None:
            host.engine.kill()
        host.engine.begin()
    time.sleep(chance.random() * 0.15)  # the moment of death is what is tried here


def _check(hosts: list[Host], step: int) -> None:
    holders: dict[str, set[str]] = defaultdict(set)
    for device, text in _running():
        holders[device].add(text)
    for device, keys in holders.items():
        assert len(keys) <= 1, f"step {step}: {device} has {sorted(keys)}"
    for host in hosts:
        host.look()
        # Of its own devices only: another host has leases of the same names.
        there = {text for device in host.devices for text in holders.get(device, ())}
        for key, since in host.unwanted_at.items():
            if host.able_s - since > ORPHAN_S and protocol.workload_key(*key) in there:
                raise AssertionError(f"step {step}: {key} is still there; {_all_say(hosts, host)}")


def test_random_deaths_of_core_probe_and_engine(hosts: list[Host], request: pytest.FixtureRequest) -> None:
    steps, seed = request.config.getoption("--deaths"), request.config.getoption("--deaths-seed")
    chance = random.Random(seed)
    for step in range(steps):
        _step(chance.choice(hosts), chance)
        hosts[0].start_engine()  # as its own keeper would, if it could not start after a death
        _check(hosts, step)
    hosts[0].start_engine()
    _settle(hosts)
    _check(hosts, steps)
    for host in hosts:
        for device in list(host.wanted):
            _unwant(host, device)
    until(lambda: not _running(), within_s=60, what="the end of all")
    for host in hosts:
        until(lambda host=host: _has_no_more_to_tell(host), within_s=60, what="the last word")
        _receipts_tell_each_second_once(host)


def _has_no_more_to_tell(host: Host) -> bool:
    host.start_engine()  # as its own keeper would: without an engine nobody can say that a container is gone
    return not host.plane.requests[-1].workloads


def _settle(hosts: list[Host]) -> None:
    """Wait until exactly what is wanted runs. What has ended with its engine is wanted again, as the server would."""
    deadline = time.monotonic() + ORPHAN_S + 60
    while True:
        for host in hosts:
            host.start_engine()  # as its own keeper would, if it could not start after a death
            host.look()
            for device, key in list(host.wanted.items()):
                if host.plane.step(key) == "exited":
                    _unwant(host, device)
                    _want(host, device)
        wanted = {(d, protocol.workload_key(*key)) for host in hosts for d, key in host.wanted.items()}
        ready = all(host.plane.step(key) == "ready" for host in hosts for key in host.wanted.values())
        there = set(_running())
        if ready and there == wanted:
            return
        late = time.monotonic() > deadline
        assert not late, f"too much: {there - wanted}; too little: {wanted - there}; {_engine_says(hosts)}"
        time.sleep(0.2)


def _all_say(hosts: list[Host], host: Host) -> str:
    """Return what is known of a host that keeps what nobody wants: its agent's words and threads, its engine's list."""
    process = host.agent.process
    assert process is not None
    if process.poll() is None:
        process.send_signal(signal.SIGUSR1)  # it writes where every thread is
        time.sleep(0.5)
    told = host.plane.requests[-1].workloads if host.plane.requests else None
    listed = host.engine.call("GET", "/containers/json?all=1") if host.engine and host.engine.answers() else None
    said = host.agent.said()[-6000:]
    return f"{host.agent.folder.name}: told {told}; engine lists {listed}; {_running()}; {_engine_says(hosts)}; {said}"


def _engine_says(hosts: list[Host]) -> str:
    engine = hosts[0].engine
    assert engine is not None
    lines = (engine.folder / "log").read_text(errors="replace").splitlines()
    return f"engine answers: {engine.answers()}, says: {lines[-6:]}"


def _receipts_tell_each_second_once(host: Host) -> None:
    """Each chain is whole, starts once and stops once; no two workloads tell of the same second of a device; and what
    the server counted from what it heard is what the receipts say, but for the time in which the agent was dead."""
    chains: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for n in sorted(host.plane.receipts):
        row = host.plane.receipts[n]
        chains[protocol.workload_key(row["lease"], row["member"], row["epoch"])].append(row)
    used: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for key, rows in chains.items():
        assert [row["kind"] for row in rows if row["kind"] != "beat"] == ["start", "stop"], (key, rows)
        previous = ""
        for row in rows:
            assert row["prev"] == previous, f"{key}: the chain is broken"
            previous = hashlib.sha256(protocol.canonical_json(row)).hexdigest()
        first_s, last_s = rows[0]["t_boot_s"], rows[-1]["t_boot_s"]
        assert first_s <= last_s
        used[rows[0]["devices"][0]].append((first_s, last_s))
        _as_heard(host, key, last_s - first_s)
    ready = {key for (key, step) in host.plane.heard_at if step == "ready"}
    assert ready <= set(chains), "what the server heard to be ready has no receipt"
    for spans in used.values():
        spans.sort()
        for (_, end), (begin, _) in itertools.pairwise(spans):
            assert begin >= end, f"a second is told twice: {spans}"


def _as_heard(host: Host, key: str, told_s: int) -> None:
    heard = host.plane.heard_at
    if (key, "ready") not in heard:
        return  # it was over before the server heard of it: nothing is charged
    after = [
        at for (other, step), at in heard.items() if other == key and step in ("stopping", "cleaning", "gone", "exited")
    ]
    counted_s = min(after) - heard[key, "ready"]
    assert abs(counted_s - told_s) <= OUTAGE_S, f"{key}: the server counts {counted_s:.1f} s, the receipts {told_s} s"
