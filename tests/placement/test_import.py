"""What a process of the product pays for the engine that only benchmarks and foreign harnesses use: nothing."""

import subprocess
import sys

import scheduler.placement
from scheduler.placement import engine


def test_the_decider_loads_no_compiler() -> None:
    program = "import sys, scheduler.placement; print({'numba', 'scheduler.placement.engine'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "set()"


def test_the_engine_is_there_when_it_is_asked_for() -> None:
    assert scheduler.placement.Engine is engine.Engine
    assert scheduler.placement.Request is engine.Request
