"""What the engines promise by themselves: ports that are nobody else's, and whether a container's program has begun."""

import subprocess
import sys
from pathlib import Path

import pytest

from agents.node.engines import LABEL_HOST, LABEL_SPEC, EngineError, Plan
from agents.node.engines.container_processes import has_begun
from agents.node.engines.process import ProcessEngine
from tests.node.conftest import until

# An init forks, and its child is a copy of it until it has become the program.
INIT = """
import os, sys
if os.fork() == 0:
    sys.stdin.readline()
    os.execvp("sleep", ["sleep", "60"])
os.wait()
"""


def plan(name: str, *, ports: int = 1) -> Plan:
    labels = {LABEL_HOST: "host_1", LABEL_SPEC: "s"}
    return Plan(name=name, image="x", labels=labels, env={}, devices=[], ports=list(range(ports)),
                port_range=(29_990, 29_993))  # fmt: skip


def test_workloads_that_do_not_listen_yet_are_not_given_one_port(tmp_path: Path) -> None:
    engine = ProcessEngine(tmp_path / "workloads")

    for name in ("one", "two"):
        engine.create(plan(name))
    given = [engine.ports(name)["0"] for name in ("one", "two")]

    assert len(set(given)) == 2
    with pytest.raises(EngineError, match="no port of the owner's range is free"):
        engine.create(plan("three", ports=2))


def test_a_container_has_begun_when_its_init_s_child_has_become_the_program() -> None:
    with subprocess.Popen(["docker-init", "-c", INIT], executable=sys.executable, stdin=subprocess.PIPE) as init:
        try:
            children = Path(f"/proc/{init.pid}/task/{init.pid}/children")
            until(lambda: children.read_text().split(), what="its child")
            assert not has_begun(init.pid)

            assert init.stdin is not None
            init.stdin.write(b"go\n")
            init.stdin.flush()
            until(lambda: has_begun(init.pid), what="its program")
        finally:
            subprocess.run(["kill", "-9", *children.read_text().split()], check=False)


def test_a_container_without_an_init_has_begun_as_soon_as_it_runs() -> None:
    with subprocess.Popen(["sleep", "60"]) as program:
        assert has_begun(program.pid)
        program.kill()
    assert has_begun(None)
