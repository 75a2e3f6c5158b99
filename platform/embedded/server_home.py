"""Where a server of the embedded stack keeps its files, and as whom it runs.

PostgreSQL refuses to run as root, and a broker has no need to. As root, servers therefore run as an unprivileged
account, which must be able to reach its files: where the state folder (or the installed wheel) lies under a folder
that this account may not enter, such as /root, the home is made in a place of its own and the programs are copied.
"""

import os
import pwd
import secrets
import shutil
import stat
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ACCOUNTS = ("postgres", "nobody")  # the first that this machine has
PLACES_FOR_HOMES = (Path("/var/lib/gpuyard"), Path(tempfile.gettempdir()))


@dataclass(frozen=True)
class Account:
    """An unprivileged account of this machine."""

    name: str
    uid: int
    gid: int


def unprivileged_account() -> Account | None:
    """Return the account that servers run as, or None where we are not root and they run as ourselves."""
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name: entry for entry in pwd.getpwall()}
    for name in ACCOUNTS:
        if name in known:
            return Account(name, known[name].pw_uid, known[name].pw_gid)
    raise RuntimeError(f"As root, servers need one of these accounts to run as: {', '.join(ACCOUNTS)}.")


def popen_arguments(account: Account | None) -> dict[str, Any]:
    """Return what makes `subprocess` run a program as `account`, in a session of its own and a plain environment."""
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"}
    common: dict[str, Any] = {"env": environment, "cwd": "/", "start_new_session": True}
    if account is None:
        return common
    return common | {"user": account.uid, "group": account.gid, "extra_groups": []}


def may_enter(path: Path, account: Account | None) -> bool:
    """Say whether `account` can reach `path` and pass through (a folder) or run it (a file), by owner and mode."""
    if account is None:
        return os.access(path, os.X_OK)
    path = path.resolve()
    return all(_has_execute_bit(part.stat(), account) for part in (path, *path.parents))


def _has_execute_bit(status: os.stat_result, account: Account) -> bool:
    if status.st_uid == account.uid:
        return bool(status.st_mode & stat.S_IXUSR)
    if status.st_gid == account.gid:
        return bool(status.st_mode & stat.S_IXGRP)
    return bool(status.st_mode & stat.S_IXOTH)


def make_state_dir(path: Path) -> Path:
    """Make the folder of the whole stack: only we can read it. As root others may pass through, not list it."""
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(0o711 if os.geteuid() == 0 else 0o700)
    return path.resolve()


def home_of(state_dir: Path, name: str) -> Path | None:
    """Return the home that server `name` already has, if it has one."""
    home = state_dir / name
    pointer = state_dir / f"{name}.home"
    if pointer.exists():
        home = Path(pointer.read_text().strip())
    return home if home.is_dir() else None


def make_home(state_dir: Path, name: str, account: Account | None) -> Path:
    """Return the folder of server `name`, 0700 and owned by whom it runs as, where that account can reach it."""
    existing = home_of(state_dir, name)
    if existing is not None:
        return existing
    home = state_dir / name
    if account is not None and not may_enter(state_dir, account):
        home = _reachable_home(name, account)
        (state_dir / f"{name}.home").write_text(f"{home}\n")
    home.mkdir(mode=0o700, exist_ok=True)
    home.chmod(0o700)
    give(home, account)
    return home


def _reachable_home(name: str, account: Account) -> Path:
    for place in PLACES_FOR_HOMES:
        try:
            place.mkdir(mode=0o755, parents=True, exist_ok=True)
        except OSError:
            continue  # a read-only file system: the next place
        if may_enter(place, account):
            return Path(tempfile.mkdtemp(prefix=f"gpuyard-{name}-", dir=place))
    raise RuntimeError(f"{account.name} can enter none of {', '.join(map(str, PLACES_FOR_HOMES))}.")


def owner_of(home: Path) -> Account | None:
    """Return the account that `home` was made for, so that a cluster keeps its owner when accounts come and go."""
    if os.geteuid() != 0:
        return None
    status = home.stat()
    return Account(pwd.getpwuid(status.st_uid).pw_name, status.st_uid, status.st_gid)


def give(path: Path, account: Account | None) -> None:
    if account is not None:
        os.chown(path, account.uid, account.gid)


def write_private(path: Path, text: str, account: Account | None) -> None:
    """Write a file that only `account` (and root) can read, complete or not at all."""
    draft = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    give(draft, account)
    draft.rename(path)


def wheel_folder(module: str) -> Path:
    """Return where a wheel's package lies, without importing it: theirs have opinions about the environment."""
    found = find_spec(module)
    if found is None or found.origin is None:
        raise RuntimeError(f"{module} is not installed: pip install 'gpuyard[server,embedded]'")
    return Path(found.origin).resolve().parent


def reachable_copy(
    source: Path, *, version: str, programs: tuple[str, ...], siblings: tuple[Path, ...], home: Path
) -> Path:
    """Return `source`, or a copy of it in `home` if the owner of `home` cannot run the `programs` where they are.

    source: a wheel's folder in site-packages, of `version`; programs: paths in it; siblings: folders beside it that
    its programs link to. A copy is made once per version.
    """
    account = owner_of(home)
    if all(may_enter(source / program, account) for program in programs):
        return source
    copies = home / f"programs-{version}"
    if not copies.exists():
        draft = Path(tempfile.mkdtemp(prefix="programs-", dir=home))
        for folder in (source, *siblings):
            shutil.copytree(folder, draft / folder.name)
        for path in (draft, *draft.rglob("*")):
            executable = path.is_dir() or bool(path.stat().st_mode & stat.S_IXUSR)
            path.chmod(0o755 if executable else 0o644)
        draft.rename(copies)  # last: its presence says that the copy is whole
    return copies / source.name
