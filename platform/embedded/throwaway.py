"""A PostgreSQL server for one run of the tests: no durability, gone afterwards."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from embedded import postgres, server_home


@contextmanager
def postgres_server() -> Iterator[postgres.Server]:
    """Run a server in a temporary folder. It ends (and, with a live caller, leaves no file) however the caller ends."""
    account = server_home.unprivileged_account()
    with tempfile.TemporaryDirectory(prefix="gpuyard-tests-", ignore_cleanup_errors=True) as folder:
        state_dir = server_home.make_state_dir(Path(folder))
        home = server_home.make_home(state_dir, postgres.NAME, account)
        server = postgres.Server(home, settings=postgres.THROW_AWAY, die_with_parent=True)
        try:
            yield server.start()
        finally:
            server.stop()
            shutil.rmtree(home, ignore_errors=True)  # it may lie elsewhere, where the account can reach it
