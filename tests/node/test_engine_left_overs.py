"""An engine whose run was killed is cleared by the next run: no process, mount, network or folder stays."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import engine_left_overs
from tests.engines import why_no_dockerd
from tests.node.conftest import ROOT, until

pytestmark = [pytest.mark.engine, pytest.mark.root]
RUN = """
import json, sys, time
from tests.engines import IMAGE, private_dockerd
with private_dockerd() as engine:
    body = json.dumps({"Image": IMAGE, "Cmd": ["sleep", "600"]}).encode()
    made = json.loads(engine.call("POST", "/containers/create", body)[1])["Id"]
    assert engine.call("POST", f"/containers/{made}/start")[0] == 204
    print(engine.folder, made, flush=True)
    time.sleep(600)
"""


def _of(container: str) -> list[str]:
    found = []
    for group in Path("/proc").glob("[0-9]*/cgroup"):
        try:
            is_dead = (group.parent / "stat").read_text().rpartition(")")[2].split()[0] in ("Z", "X")
            if container in group.read_text() and not is_dead:
                found.append(group.parent.name)
        except OSError:
            continue
    return found


def test_an_engine_whose_run_was_killed_is_cleared_by_the_next_run() -> None:
    reason = why_no_dockerd()
    if reason is not None:
        pytest.skip(reason)
    with subprocess.Popen([sys.executable, "-c", RUN], cwd=ROOT, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        folder, container = run.stdout.readline().split()
        engine_left_overs.clear_dead()
        assert Path(folder).exists(), "a living run's engine was cleared"
        assert _of(container)
        os.kill(run.pid, signal.SIGKILL)
    engine_left_overs.clear_dead()

    def is_clear() -> bool:  # a run beside this one may be about it already
        network = Path("/run/netns") / Path(folder).name
        there = Path(folder).exists() or network.exists() or folder in Path("/proc/mounts").read_text()
        return not there and not _of(container)

    until(is_clear, within_s=30, what="the end of all that was left")
