"""The process sandbox: each workload is a small real process of its own session, where there is no container engine.

It is no isolation boundary, and says so: same kernel, same network, no image is fetched. What is real is the life of
the workload: a pid, output, an exit code, SIGTERM before SIGKILL, and being found again after the agent's own death.

A folder per workload holds `meta.json` (what it is), `pid` (written by the launcher, before the workload starts), `log`
and `exit`.
"""

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agents.node import clocks, durable
from agents.node.engines import (
    LABEL_HOST,
    Container,
    EngineError,
    Login,
    NoSuchContainer,
    Plan,
    Progress,
    Ran,
    sandbox_running,
)
from agents.node.engines import sandbox_processes as processes
from agents.node.engines.sandbox_programs import DEMO, LAUNCHER
from agents.node.engines.sandbox_scratch import SandboxScratch

KILL_WAIT_S = 60


class ProcessEngine(SandboxScratch):
    """The Engine of the process sandbox, in the folder `root`."""

    name = "process"
    mounts = False
    disk_quota: bool | None = False

    def __init__(self, root: Path) -> None:
        root = root.resolve()
        self._root, self._scratch = root, root.parent / "scratch"
        root.mkdir(mode=0o711, parents=True, exist_ok=True)
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._ring: Callable[[], None] | None = None
        self._creating = threading.Lock()  # so that two at once are not given one port

    def version(self) -> str:
        return "sandbox"

    def image_digest(self, image: str) -> str | None:
        """Any reference stands for a program of the sandbox: nothing is fetched, and the digest says so."""
        return f"process:{image}"

    def pull(self, image: str, progress: Progress, *, login: Login | None = None) -> str:
        """Nothing is fetched, with or without a login: see `image_digest`."""
        return f"process:{image}"

    def remove_images(self, repository: str) -> None:
        """There are none."""

    def create(self, plan: Plan) -> str:
        if plan.scratch is not None:
            self.make_scratch(plan)
        for volume in plan.volumes:
            self.make_volume(volume, host=plan.labels.get(LABEL_HOST, ""))
        with self._creating:
            return self._create(plan)

    def _create(self, plan: Plan) -> str:
        folder = self._root / plan.name
        if (folder / "meta.json").exists():
            kept = self._meta(folder)
            if kept["labels"] != plan.labels:
                raise EngineError("engine_error", f"{plan.name} exists already, made from something else")
            return plan.name
        folder.mkdir(mode=0o700, exist_ok=True)
        ports = {str(port): outside for port, outside in plan.fixed_ports.items()}
        for port in plan.ports:
            ports[str(port)] = self._free_port(plan.port_range, but=set(ports.values()))
        published = {f"GPUYARD_PORT_{port}": str(host_port) for port, host_port in ports.items()}
        env = {
            "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
            "HOME": str(folder),
            **plan.env,
            **published,
            processes.MARK: plan.name,
            processes.PLACE: str(folder),
            "GPUYARD_IMAGE": plan.image,
        }
        argv = plan.command or ["/bin/sh", "-c", DEMO, "demo"]
        meta = {"labels": plan.labels, "env": env, "argv": argv, "ports": ports, "started": False}
        durable.write(folder / "meta.json", json.dumps(meta))
        return plan.name

    def _free_port(self, port_range: tuple[int, int] | None, *, but: set[int]) -> int:
        """Return a port that nobody listens on and no other workload of this sandbox was given; those that were made
        and not started yet do not listen. Where two sandboxes share a range, each begins elsewhere in it."""
        given = but.union(*(self._meta(folder)["ports"].values() for folder in self._folders()))
        candidates = list(range(*port_range)) if port_range else [0] * 100
        random.shuffle(candidates)
        for port in candidates:
            with socket.socket() as probe, contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                found = int(probe.getsockname()[1])
                if found not in given:
                    return found
        raise EngineError("port_exhausted", "no port of the owner's range is free")

    def start(self, container: str) -> None:
        folder = self._folder(container)
        meta = self._meta(folder)
        if meta["started"]:
            return
        # Intent first: if we die right after the start, the list still looks for the process.
        durable.write(folder / "meta.json", json.dumps({**meta, "started": True, "boot_id": clocks.boot_id()}))
        as_nobody = os.geteuid() == 0
        if as_nobody:
            os.chown(folder, sandbox_running.NOBODY, sandbox_running.NOBODY)
        try:
            with open(folder / "log", "ab") as log:
                child = subprocess.Popen(
                    ["/bin/sh", "-c", LAUNCHER, "gpuyard-launcher", *meta["argv"]],
                    cwd=folder,
                    env=meta["env"],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    user=sandbox_running.NOBODY if as_nobody else None,
                    group=sandbox_running.NOBODY if as_nobody else None,
                    extra_groups=[] if as_nobody else None,
                )
        except OSError as fault:
            raise EngineError("engine_error", f"the process could not be started: {fault}") from None
        self._children[container] = child
        self._watch_pid(child.pid)

    def containers(self, host: str) -> list[Container]:
        return [self.inspect(f.name) for f in self._folders() if self._meta(f)["labels"].get(LABEL_HOST) == host]

    def inspect(self, container: str) -> Container:
        folder = self._folder(container)
        meta = self._meta(folder)
        pid = self._pid(folder, meta)
        exit_code = None
        if meta["started"] and pid is None:
            text = processes.read_text(folder / "exit")
            exit_code = int(text) if text else None
        return Container(
            id=container,
            name=container,
            labels=meta["labels"],
            running=pid is not None,
            exit_code=exit_code,
            pid=pid,
            detail="" if meta["started"] else "created",
        )

    def exec(self, container: str, argv: list[str], *, timeout_s: float) -> tuple[int, str]:
        pid = self.inspect(container).pid
        if pid is None:
            raise NoSuchContainer(f"{container} does not run")
        inside = processes.environment_of(processes.workload_pid(pid))  # as the kernel has it, not as we meant it
        if not inside:
            return 126, ""
        try:
            done = subprocess.run(
                argv, env=inside, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s, check=False
            )
        except FileNotFoundError:
            return 127, ""
        except subprocess.TimeoutExpired:
            raise EngineError("engine_error", f"{argv[0]} did not end within {timeout_s:.0f} s") from None
        return done.returncode, done.stdout.decode(errors="replace")

    def run_inside(self, container: str, argv: list[str], *, timeout_s: float, limit: int) -> Ran:
        pid = self.inspect(container).pid
        inside = processes.environment_of(processes.workload_pid(pid)) if pid is not None else {}
        if not inside:
            raise NoSuchContainer(f"{container} does not run")
        return sandbox_running.run(argv, env=inside, folder=self._folder(container), timeout_s=timeout_s, limit=limit)

    def stop(self, container: str, *, grace_s: int) -> bool:
        try:
            folder = self._folder(container)
        except NoSuchContainer:
            return True
        for number, wait_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, KILL_WAIT_S)):
            pids = self._pids(container)
            if not pids:
                break
            if number == signal.SIGTERM and pids:
                processes.send(number, [self._pid(folder, self._meta(folder)) or pids[0]], group=True)
            else:
                processes.send(number, pids, group=False)
            self._await_end(container, wait_s)
        self._reap(container)
        return not self._pids(container)

    def remove(self, container: str) -> None:
        if self._pids(container):
            raise EngineError("engine_error", f"{container} still runs")
        self._reap(container)
        shutil.rmtree(self._root / container, ignore_errors=True)

    def logs(self, container: str, *, offset: int, limit: int) -> bytes:
        try:
            with open(self._folder(container) / "log", "rb") as log:
                log.seek(offset)
                return log.read(limit)
        except FileNotFoundError:
            return b""

    def ports(self, container: str) -> dict[str, int]:
        return dict(self._meta(self._folder(container))["ports"])

    def address(self, container: str, port: int) -> tuple[str, int]:
        return "127.0.0.1", self.ports(container).get(str(port), port)

    def networks(self, host: str) -> list[str]:
        """There are none: every workload is on the machine's own network."""
        return []

    def remove_network(self, name: str) -> None:
        """There is none."""

    def watch(self, ring: Callable[[], None]) -> None:
        """Ring when a workload's process ends; those that run already are watched from now on."""
        self._ring = ring
        for folder in self._folders():
            pid = self._pid(folder, self._meta(folder))
            if pid is not None:
                self._watch_pid(pid)

    def close(self) -> None:
        """Workloads run on; the next agent finds them."""

    def _watch_pid(self, pid: int) -> None:
        ring = self._ring
        if ring is None:
            return
        try:
            handle = os.pidfd_open(pid)
        except OSError:
            ring()
            return
        threading.Thread(target=processes.ring_at_end, args=(handle, ring), name=f"watch-{pid}", daemon=True).start()

    def _folders(self) -> list[Path]:
        return sorted(folder for folder in self._root.iterdir() if (folder / "meta.json").exists())

    def _folder(self, container: str) -> Path:
        folder = self._root / container
        if "/" in container or not (folder / "meta.json").exists():
            raise NoSuchContainer(f"no workload {container}")
        return folder

    @staticmethod
    def _meta(folder: Path) -> dict[str, Any]:
        return dict(json.loads((folder / "meta.json").read_text()))

    def _pid(self, folder: Path, meta: dict[str, Any]) -> int | None:
        """Return the launcher's pid while it lives."""
        if not meta["started"] or meta.get("boot_id") != clocks.boot_id():
            return None
        self._reap(folder.name)
        text = processes.read_text(folder / "pid")
        if text:
            return int(text) if processes.is_of(int(text), folder) else None
        return next(iter(self._pids(folder.name)), None)

    def _pids(self, container: str) -> list[int]:
        return processes.pids_of(self._root / container)

    def _reap(self, container: str) -> None:
        child = self._children.get(container)
        if child is not None and child.poll() is not None:
            self._children.pop(container, None)

    def _await_end(self, container: str, wait_s: float) -> None:
        """Return when nothing of the workload runs any more, or after `wait_s`."""
        deadline = time.monotonic() + wait_s
        while (pids := self._pids(container)) and (left_s := deadline - time.monotonic()) > 0:
            processes.await_one(pids, min(left_s, 1.0))
            self._reap(container)
