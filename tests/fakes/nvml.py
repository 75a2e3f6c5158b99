"""Builds the fake libnvidia-ml.so.1 and writes its control file: the real pynvml runs on it."""

import json
import os
import shutil
import subprocess
from importlib import resources
from pathlib import Path

SOURCE = Path(__file__).with_name("nvml.c")


def why_no_compiler() -> str | None:
    return None if shutil.which("cc") else "no C compiler (Debian: apt-get install gcc libc6-dev)"


def build(folder: Path) -> Path:
    """Compile the library into `folder`; return that folder, for LD_LIBRARY_PATH."""
    command = [
        "cc",
        "-shared",
        "-fPIC",
        "-O1",
        "-Wall",
        "-Werror",
        "-o",
        str(folder / "libnvidia-ml.so.1"),
        str(SOURCE),
    ]
    subprocess.run(command, check=True)
    return folder


class FakeNvml:
    """One fake driver: `say` replaces the control file at once."""

    def __init__(self, library: Path, folder: Path) -> None:
        self.library, self._control, self._calls = library, folder / "control", folder / "calls"
        self.say()

    def say(self, *lines: str) -> None:
        """Set the whole control file. "model 0-3 A100_80G" takes its figures from the catalogue."""
        beside = self._control.with_suffix(".new")
        beside.write_text("".join(f"{_whole(line)}\n" for line in lines))
        beside.replace(self._control)

    @property
    def environment(self) -> dict[str, str]:
        found = f"{self.library}:{os.environ.get('LD_LIBRARY_PATH', '')}".rstrip(":")
        return {"LD_LIBRARY_PATH": found, "FAKE_NVML_CTL": str(self._control), "FAKE_NVML_CALLS": str(self._calls)}

    def calls(self, function: str) -> int:
        """Return how often a function was called, by all processes."""
        if not self._calls.exists():
            return 0
        return sum(line.split()[0] == function for line in self._calls.read_text().splitlines())

    @staticmethod
    def uuid(gpu: int) -> str:
        return f"GPU-fa4e0000-0000-4000-8000-{gpu:012d}"


def _whole(line: str) -> str:
    words = line.split()
    if words[0] != "model" or len(words) != 3:
        return line
    models = json.loads(resources.files("agents.node").joinpath("data/sim_models.json").read_text())
    row = models[words[2]]
    vendor, device = row["pci_device_id"].split(":")
    return f"model {words[1]} {device}{vendor} {row['memory_mib']} {row['compute_capability']} {row['name']}"
