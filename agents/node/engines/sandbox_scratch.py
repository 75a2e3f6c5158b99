"""Part of the process sandbox: a lease's scratch, a folder that it keeps over restarts on the same host."""

import contextlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

from agents.node import durable
from agents.node.engines import LABEL_HOST, LABEL_LEASE, LABEL_VOLUME_OF, Plan, VolumeMount

MIB = 1024 * 1024


class SandboxScratch:
    _scratch: Path

    def make_scratch(self, plan: Plan) -> None:
        folder = self._scratch / str(plan.scratch)
        folder.mkdir(mode=0o711, parents=True, exist_ok=True)
        durable.write(folder / "meta.json", json.dumps({"labels": plan.labels}))
        (folder / "data").mkdir(exist_ok=True)
        (folder / "data").chmod(0o1777)

    def make_volume(self, volume: VolumeMount, *, host: str) -> None:
        folder = self._scratch / volume.place
        folder.mkdir(mode=0o711, parents=True, exist_ok=True)
        if not (folder / "meta.json").exists():
            durable.write(folder / "meta.json", json.dumps({"labels": {LABEL_VOLUME_OF: host}}))
        (folder / "data").mkdir(exist_ok=True)
        (folder / "data").chmod(0o1777)

    def sizes_mib(self, places: set[str]) -> dict[str, int]:
        there = [place for place in places if (self._scratch / place / "data").is_dir()]
        return {place: -(-_bytes_below(self._scratch / place / "data") // MIB) for place in there}

    def scratch_inside(self, name: str) -> str:
        return str(self._scratch / name / "data")

    def scratches(self, host: str) -> dict[str, str]:
        if not self._scratch.is_dir():
            return {}
        labels = {f.name: _labels(f) for f in self._scratch.iterdir() if (f / "meta.json").exists()}
        return {name: str(of[LABEL_LEASE]) for name, of in labels.items() if of.get(LABEL_HOST) == host}

    def remove_scratch(self, name: str) -> None:
        shutil.rmtree(self._scratch / name, ignore_errors=True)


def _bytes_below(folder: Path) -> int:
    """Return the bytes of all files below a folder; what goes while we look counts for nothing."""
    found = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                found += os.lstat(os.path.join(place, name)).st_size
    return found


def _labels(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "meta.json").read_text())["labels"])
