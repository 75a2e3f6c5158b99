"""The probe starts from compiled modules: to compile the GPU library's binding at each start costs half a second of CPU
and leaves 13 MB behind in a process that is to stay below 20.

An installer that compiled it has done all there is to do. Where none has, the place of installation cannot be written
(systemd's ProtectSystem keeps us from it): a child that only imports keeps the compiled modules in the agent's own
folder. Python itself sees when one of them is out of date.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

MODULE, BINDING = "agents.node.probe", "pynvml"
COMPILE_WITHIN_S = 60.0


def environment(folder: Path | None) -> dict[str, str]:
    """Return what a child's environment needs, on top of ours, to find compiled modules. Compiles at most once."""
    if folder is None or _is_compiled():
        return {}
    wanted = {"PYTHONPYCACHEPREFIX": str(folder), "PYTHONDONTWRITEBYTECODE": ""}
    if any(folder.rglob(f"{BINDING}.*.pyc")):
        return wanted
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        subprocess.run(
            [sys.executable, "-c", f"import {MODULE}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **wanted},
            timeout=COMPILE_WITHIN_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return {}  # it works without, only larger
    return wanted


def _is_compiled() -> bool:
    spec = importlib.util.find_spec(BINDING)
    return spec is None or (spec.cached is not None and Path(spec.cached).exists())
