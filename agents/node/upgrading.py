"""The agent replaces itself: a signed release is fetched, checked, unpacked, tried, and kept or left.

Containers are not touched: the release adopts them as any restarted agent does. gpuyard-root stays the installed one:
no release that the agent's user can write runs with root's rights. Imported when it is wished for: it takes memory.
"""

import hashlib
import io
import shutil
import sys
import threading
import time
import zipfile
from collections.abc import Callable
from datetime import UTC, datetime
from importlib import metadata
from pathlib import PurePosixPath
from typing import Any

from agents.node.identity import Identity
from agents.node.slots import FAILURES_MOST, Chosen, Slots
from agents.node.wire import NoContact, Refused, Wire
from agents.release_text import NotGood, Release, numbers, read

UNPACKED_MOST = 64 * 1024 * 1024
VERDICT_WITHIN_S, LOOK_EVERY_S = 180.0, 0.5  # longer than a trial takes
PATH = "/agent/v1/releases/{sha256}"

_one_at_once = threading.Lock()
type Say = Callable[..., None]  # kind, detail, **facts


class Upgrading:
    """Takes the wish to upgrade. restart: called when a release is staged."""

    def __init__(self, *, slots: Slots, identity: Identity, own: str, event: Say, restart: Callable[[], None]) -> None:
        self._slots, self._identity, self._own = slots, identity, own
        self._event, self._restart = event, restart

    def take(self, wish: dict[str, Any]) -> None:
        """Do what the wish asks: {verb "upgrade", id, version, release}. What stands against it is told by an event."""
        if wish.get("version") == self._own:  # it is wished for until the server has heard that it proved itself
            if self._slots.on_trial() is None:
                self._event("upgraded", f"{self._own} runs", id=wish.get("id"), version=self._own)
            return
        if not _one_at_once.acquire(blocking=False):
            return
        try:
            release = self._good(wish.get("release"))
            self._await_verdict()
            slot = self._slots.free()
            unpack(self._fetch(release), self._slots, slot)
            self._slots.stage(Chosen(slot, release.version))
        except (NotGood, NoContact, Refused, OSError, zipfile.BadZipFile) as fault:
            version = str(wish.get("version", ""))[:32]
            self._event("upgrade_failed", str(fault)[:300], id=wish.get("id"), version=version)
            return
        finally:
            _one_at_once.release()
        self._event("upgrade_begun", f"{self._own} to {release.version}", id=wish.get("id"), version=release.version)
        self._restart()

    def _await_verdict(self) -> None:
        """Wait while a release is on trial: it may be the one that runs, in the slot that is free until it is kept."""
        until = time.monotonic() + VERDICT_WITHIN_S
        while self._slots.on_trial() is not None and time.monotonic() < until:
            time.sleep(LOOK_EVERY_S)

    def _good(self, document: Any) -> Release:
        if not self._identity.release_key:
            raise NotGood("this host pinned no release key when it enrolled: its owner updates the package")
        release = read(document, root_key=self._identity.release_key, at=datetime.now(UTC))
        if numbers(release.version) <= numbers(self._own):
            raise NotGood(f"{release.version} is not newer than {self._own}, which runs")
        if self._slots.failures(release.version) >= FAILURES_MOST:
            raise NotGood(f"{release.version} was tried {FAILURES_MOST} times and did not prove itself here")
        if sys.version_info[: len(release.python)] < release.python:
            raise NotGood(f"{release.version} needs Python {'.'.join(map(str, release.python))} or newer")
        for package, least in release.needs.items():
            if not _has(package, least):
                raise NotGood(f"{release.version} needs {package} {least} or newer: its owner updates the package")
        return release

    def _fetch(self, release: Release) -> bytes:
        wheel = self._fetch_bytes(release)
        if len(wheel) != release.size or hashlib.sha256(wheel).hexdigest() != release.sha256:
            raise NotGood(f"what was fetched is not {release.version} as its manifest names it")
        return wheel

    def _fetch_bytes(self, release: Release) -> bytes:
        return Wire(self._identity.server).fetch(PATH.format(sha256=release.sha256), most=release.size)


def _has(package: str, least: str) -> bool:
    try:
        found = metadata.version(package)
        return numbers(found) >= numbers(least)
    except (metadata.PackageNotFoundError, NotGood):
        return False


def unpack(wheel: bytes, slots: Slots, slot: str) -> None:
    """Unpack a wheel into a slot, whole or not at all. Raises NotGood for one that would write elsewhere."""
    beside = slots.folder / f"{slot}.new"
    shutil.rmtree(beside, ignore_errors=True)
    with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
        rows = archive.infolist()
        if sum(row.file_size for row in rows) > UNPACKED_MOST:
            raise NotGood("the release is larger than an agent can be")
        for row in rows:
            name = PurePosixPath(row.filename)
            if name.is_absolute() or ".." in name.parts or "\\" in row.filename:
                raise NotGood(f"the release has a file {row.filename!r:.80}")
        beside.mkdir(mode=0o700, parents=True)
        archive.extractall(beside)  # its names were looked at, and its signature before
    slots.clear(slot)
    beside.rename(slots.path(slot))
