"""A PostgreSQL server for one run of the tests: no durability, gone afterwards."""

import fcntl
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from embedded import postgres, server_home

PREFIX = "gpuyard-tests-"


@contextmanager
def postgres_server() -> Iterator[postgres.Postgres]:
    """Run a server in a temporary folder. It ends however the caller ends; files of a killed caller go next time."""
    _remove_what_killed_runs_left()
    account = server_home.unprivileged_account()
    with (
        tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True) as folder,
        (Path(folder) / "in-use").open("w") as in_use,
    ):
        fcntl.flock(in_use, fcntl.LOCK_EX)
        state_dir = server_home.make_state_dir(Path(folder))
        home = server_home.make_home(state_dir, postgres.Postgres.name, account)
        server = postgres.Postgres(home, settings=postgres.THROW_AWAY, die_with_parent=True)
        try:
            yield server.start()
        finally:
            server.stop()
            shutil.rmtree(home, ignore_errors=True)  # it may lie elsewhere, where the account can reach it


def _remove_what_killed_runs_left() -> None:
    for in_use in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/in-use"):
        with suppress(OSError), in_use.open("w") as lock:  # OSError: it runs, or is another person's
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(in_use.parent, ignore_errors=True)
