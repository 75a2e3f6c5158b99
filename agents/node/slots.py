"""Where releases of the agent stand on a host: two folders beside its state, and which of them runs.

    releases/a, releases/b   unpacked wheels
    releases/chosen.json     {current: {slot, version} | null, trial: {slot, version, starts} | null,
                              failures: {version: n}, untold: [{version, reason}]}

The installed agent is the one that starts, always: it reads this and becomes the chosen release (`go_on`). A release is
on trial until it was heard and has seen its engine's list; what is not kept after TRIAL_STARTS starts is left.
"""

import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from agents.node import durable
from agents.release_text import numbers

FOLDER, CHOSEN = "releases", "chosen.json"
SLOTS = ("a", "b")
SLOT_VARIABLE = "GPUYARD_AGENT_SLOT"
TRIAL_STARTS = 3
FAILURES_MOST = 3  # of one version: then it is not tried again
RESTART = 75  # exit status: systemd starts the agent again


@dataclass(frozen=True)
class Chosen:
    slot: str
    version: str


class Slots:
    """The releases of one state folder."""

    def __init__(self, state: Path) -> None:
        self.folder = state / FOLDER

    def path(self, slot: str) -> Path:
        return self.folder / slot

    def current(self) -> Chosen | None:
        row = self._read()["current"]
        return None if row is None else Chosen(row["slot"], row["version"])

    def on_trial(self) -> Chosen | None:
        row = self._read()["trial"]
        return None if row is None else Chosen(row["slot"], row["version"])

    def failures(self, version: str) -> int:
        return int(self._read()["failures"].get(version, 0))

    def free(self) -> str:
        """Return the slot that a new release may overwrite."""
        current = self.current()
        return next(slot for slot in SLOTS if current is None or slot != current.slot)

    def stage(self, chosen: Chosen) -> None:
        """Put a release on trial, from the next start on."""
        with self._changed() as state:
            state["trial"] = {"slot": chosen.slot, "version": chosen.version, "starts": 0}

    def keep(self, tried: Chosen | None = None) -> None:
        """The release on trial has proved itself; nothing changes if that is not `tried` any more."""
        with self._changed() as state:
            trial = state["trial"]
            if trial is None or not _is(trial, tried):
                return
            state["current"], state["trial"] = {"slot": trial["slot"], "version": trial["version"]}, None
            state["failures"].pop(trial["version"], None)

    def leave(self, reason: str, tried: Chosen | None = None) -> None:
        """It has not: the one before it is the chosen one again; nothing changes if it is not `tried` any more."""
        with self._changed() as state:
            if state["trial"] is not None and _is(state["trial"], tried):
                _leave(state, reason)

    def untold(self) -> list[dict[str, str]]:
        """Return the failures of which the server has not been told, and forget them: the caller tells."""
        rows = list(self._read()["untold"])
        if rows:
            with self._changed() as state:
                state["untold"] = []
        return rows

    def choose(self, *, installed: str) -> Chosen | None:
        """Return what is to run now, counting a start of what is on trial; None: the installed agent.

        An installed agent that is as new as a release goes before it: its owner has updated the package.
        """
        state = self._read()
        if state["trial"] is not None:
            with self._changed() as state:
                state["trial"]["starts"] += 1
                if state["trial"]["starts"] > TRIAL_STARTS or not self._is_there(state["trial"]["slot"]):
                    _leave(state, f"it did not prove itself in {TRIAL_STARTS} starts")
        for row in (state["trial"], state["current"]):
            if row is not None and self._is_there(row["slot"]) and numbers(row["version"]) > numbers(installed):
                return Chosen(row["slot"], row["version"])
        return None

    def clear(self, slot: str) -> None:
        shutil.rmtree(self.path(slot), ignore_errors=True)

    def _is_there(self, slot: str) -> bool:
        return (self.path(slot) / "agents" / "node" / "main.py").is_file()

    def _read(self) -> dict[str, Any]:
        state: dict[str, Any] = {"current": None, "trial": None, "failures": {}, "untold": []}
        try:
            kept = json.loads((self.folder / CHOSEN).read_text())
            for row in (kept["current"], kept["trial"]):
                if row is not None:
                    numbers(row["version"])
                    SLOTS.index(row["slot"])
            return {**state, **kept}
        except FileNotFoundError:
            return state
        except (OSError, ValueError, KeyError, TypeError):
            return state  # what cannot be read chooses nothing: the installed agent runs

    @contextmanager
    def _changed(self) -> Iterator[dict[str, Any]]:
        state = self._read()
        yield state
        self.folder.mkdir(mode=0o700, exist_ok=True)
        durable.write(self.folder / CHOSEN, json.dumps(state, indent=1))


def _is(row: dict[str, Any], tried: Chosen | None) -> bool:
    return tried is None or (row["slot"], row["version"]) == (tried.slot, tried.version)


def _leave(state: dict[str, Any], reason: str) -> None:
    trial, state["trial"] = state["trial"], None
    if trial is not None:
        version = trial["version"]
        state["failures"][version] = state["failures"].get(version, 0) + 1
        state["untold"].append({"version": version, "reason": reason[:300]})


def go_on(state: Path, *, installed: str) -> None:
    """Become the chosen release, if it is not this one: same process, same arguments. Returns where there is none."""
    if os.environ.get(SLOT_VARIABLE):
        return
    chosen = Slots(state).choose(installed=installed)
    if chosen is not None:
        _become(Slots(state).path(chosen.slot), chosen)


def _become(path: Path, chosen: Chosen) -> NoReturn:
    environment = {**os.environ, SLOT_VARIABLE: chosen.slot, "PYTHONPATH": str(path.resolve())}
    # -P: the folder we stand in must not come before the release.
    os.execve(sys.executable, [sys.executable, "-P", "-m", "agents.node.main", *sys.argv[1:]], environment)  # noqa: S606
