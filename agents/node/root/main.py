"""`gpuyard-root --state-dir DIR`: the loop. It sleeps until the next deadline it knows, or LOOK_EVERY_S at most."""

import argparse
import os
import sys
import threading
from pathlib import Path

from agents.node import clocks, ending, watchdog
from agents.node.engine_of import engine_of
from agents.node.for_root import told_at
from agents.node.identity import StateError, StateFolder
from agents.node.private_files import NoMemoryFolder
from agents.node.root import egress, orders
from agents.node.root.overdue import Overdue

DEFAULT_STATE = "/var/lib/gpuyard-agent"
LOOK_EVERY_S = 5.0


def main(argv: list[str] | None = None) -> int:
    top = argparse.ArgumentParser(prog="gpuyard-root", description=__doc__)
    top.add_argument("--state-dir", type=Path, default=Path(os.environ.get("GPUYARD_STATE_DIR", DEFAULT_STATE)))
    top.add_argument("--no-egress-rules", action="store_true", help="leave the owner's firewall alone")
    options = top.parse_args(argv)
    if not options.state_dir.is_dir():
        print(f"gpuyard-root: {options.state_dir} is not there: enrol this machine first", file=sys.stderr)
        return 1
    try:
        Root(options.state_dir, with_egress=not options.no_egress_rules).run()
    except (StateError, NoMemoryFolder) as fault:
        print(f"gpuyard-root: {fault}", file=sys.stderr)
        return 1
    return 0


class Root:
    """The running helper. `run` returns after SIGTERM; what runs, runs on, and the rules stay."""

    def __init__(self, state: Path, *, with_egress: bool) -> None:
        folder = StateFolder(state)
        settings = folder.settings()
        self._told = told_at(state, wanted=settings.get("run_dir"))
        self._overdue = Overdue(engine_of(settings, folder), say=said)
        self._with_egress = with_egress and settings.get("engine", "docker") != "process"
        self._rules, self._fault = "", ""
        self._ended = threading.Event()

    def run(self) -> None:
        ending.on_signals(self._ended.set)
        said(f"looks after the workloads of {self._told.name}")
        watchdog.tell("READY=1")
        while not self._ended.is_set():
            wait_s = self.look()
            watchdog.tell("WATCHDOG=1")
            self._ended.wait(min(LOOK_EVERY_S, wait_s))

    def look(self) -> float:
        """Look once; return after how many seconds to look again."""
        told = orders.read(self._told)
        if self._with_egress:
            self._keep_rules(told)
        return self._overdue.look(told)

    def _keep_rules(self, told: orders.Orders) -> None:
        script = egress.rules(told, name_servers=egress.name_servers())
        if script == self._rules:
            return
        try:
            egress.put(script)
        except egress.NoRules as fault:
            if str(fault) != self._fault:
                said(f"tenants' containers may reach this machine's network: {fault}")
            self._fault = str(fault)
            return
        self._rules, self._fault = script, ""


def said(text: str) -> None:
    print(f"{clocks.wall_iso()} gpuyard-root: {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
