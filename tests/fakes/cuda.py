"""Builds the fake libcuda.so.1, on which the device work of the agent runs without a GPU."""

import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("cuda.c")


def build(folder: Path) -> Path:
    """Compile the library into `folder`; return that folder, for LD_LIBRARY_PATH."""
    target = folder / "libcuda.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-o", target, SOURCE], check=True)
    return folder
