"""The folder of one embedded stack: its servers' homes, secrets, logs, agents and what it says about itself."""

import base64
import fcntl
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from embedded import processes, server_home

CHECKOUT = Path(__file__).resolve().parents[2]


class AlreadyRuns(Exception):
    """Another supervisor holds this folder."""


def default_path() -> Path:
    """Return `var/embedded` of the checkout, or the state folder of the person where gpuyard is installed."""
    if "GPUYARD_EMBEDDED_DIR" in os.environ:
        return Path(os.environ["GPUYARD_EMBEDDED_DIR"])
    if (CHECKOUT / "manage.py").exists():
        return CHECKOUT / "var" / "embedded"
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "gpuyard" / "embedded"


class StackFolder:
    """Paths and small documents of the stack at `path`, which is made if it is not there."""

    def __init__(self, path: Path) -> None:
        self.path = server_home.make_state_dir(path)
        for name, mode in (("log", 0o700), ("held", 0o700), ("beat", 0o700), ("agents", 0o711)):
            (self.path / name).mkdir(mode=mode, exist_ok=True)

    def agent(self, name: str) -> Path:
        return self.path / "agents" / name

    def log(self, name: str) -> Path:
        return self.path / "log" / f"{name}.log"

    @contextmanager
    def held_by_supervisor(self) -> Iterator[None]:
        """Be the only supervisor of this folder for a while. Raises AlreadyRuns."""
        with (self.path / "supervisor.lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise AlreadyRuns(f"A stack runs on {self.path} already.") from None
            yield

    def is_held(self) -> bool:
        try:
            with self.held_by_supervisor():
                return False
        except AlreadyRuns:
            return True

    # A process that is held is ended and stays so until it is released: a host that is down, for a demonstration.
    def hold(self, name: str) -> None:
        (self.path / "held" / name).touch()

    def release(self, name: str) -> None:
        (self.path / "held" / name).unlink(missing_ok=True)

    def is_process_held(self, name: str) -> bool:
        return (self.path / "held" / name).exists()

    def read(self, name: str) -> dict[str, Any]:
        """Return the document `name`, {} if there is none."""
        try:
            document = json.loads((self.path / f"{name}.json").read_text())
        except FileNotFoundError:
            return {}
        assert isinstance(document, dict)
        return document

    def write(self, name: str, document: Mapping[str, Any]) -> None:
        server_home.write_private(self.path / f"{name}.json", json.dumps(document, indent=1) + "\n", None)

    def secrets(self) -> dict[str, str]:
        """Return the settings that must be secret and stay the same, made at the first call."""
        kept = self.read("secrets")
        made = {
            "SECRET_KEY": secrets.token_urlsafe(48),
            "CONTROL_SIGNING_KEY": secrets.token_hex(32),
            "SEALING_KEYS": f"first:{base64.b64encode(secrets.token_bytes(32)).decode()}",
        }
        if made.keys() - kept.keys():
            kept = made | kept
            self.write("secrets", kept)
        return kept

    def ports(self, *names: str) -> dict[str, int]:
        """Return a loopback port for each name: the one of last time, for agents remember where their server is."""
        kept = self.read("ports")
        for name in names:
            while name not in kept:
                port = processes.free_port()
                if port not in kept.values():
                    kept[name] = port
        self.write("ports", kept)
        return {name: int(kept[name]) for name in names}
