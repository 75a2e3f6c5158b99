"""What the agent must still know after a power cut: workloads and intents, fences, remembered stops, unsent events.

SQLite, WAL, `synchronous=FULL`: when a method returns, its change is on the disk. One lock: several threads write.
"""

import json
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agents.node.workload import Key, Workload

SCHEMA = """
CREATE TABLE IF NOT EXISTS workload (
    lease TEXT NOT NULL, member INTEGER NOT NULL, epoch INTEGER NOT NULL,
    body TEXT NOT NULL, boot_id TEXT NOT NULL,
    PRIMARY KEY (lease, member, epoch)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS fence (
    lease TEXT NOT NULL, device TEXT NOT NULL, epoch INTEGER NOT NULL,
    PRIMARY KEY (lease, device)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS stopped (
    lease TEXT NOT NULL, member INTEGER NOT NULL, epoch INTEGER NOT NULL,
    PRIMARY KEY (lease, member)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS outbox (
    kind TEXT NOT NULL, n INTEGER NOT NULL, body TEXT NOT NULL,
    PRIMARY KEY (kind, n)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS counter (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS chain (
    lease TEXT NOT NULL, member INTEGER NOT NULL, epoch INTEGER NOT NULL, digest TEXT NOT NULL,
    PRIMARY KEY (lease, member, epoch)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS log_tail (
    lease TEXT NOT NULL, member INTEGER NOT NULL, epoch INTEGER NOT NULL,
    first INTEGER NOT NULL, text BLOB NOT NULL,
    PRIMARY KEY (lease, member, epoch)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS receipt_kind (
    lease TEXT NOT NULL, member INTEGER NOT NULL, epoch INTEGER NOT NULL, kind TEXT NOT NULL,
    PRIMARY KEY (lease, member, epoch)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS private_image (
    repository TEXT NOT NULL, lease TEXT NOT NULL,
    PRIMARY KEY (repository, lease)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS begun (n INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE);
"""
# A control plane that is away for weeks must not fill the owner's disk; the oldest go first.
OUTBOX_LIMIT = 20_000
BEGUN_LIMIT = 2_000
_FIELDS = (
    "lease", "member", "epoch", "spec_hash", "spec", "valid_for_s", "stop_grace_s", "wanted", "step", "detail",
    "failure", "exit_code", "container", "image_digest", "visible", "ports", "unusable", "deadline_s", "log_offset",
    "idle_mib", "handover",
)  # fmt: skip


class Journal:
    """The journal of one state folder."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.RLock()
        self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")
        self._db.execute("PRAGMA cache_size=-256")
        self._db.executescript(SCHEMA)

    def close(self) -> None:
        with self._lock:
            self._db.close()

    @contextmanager
    def _write(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")

    def begin_once(self, name: str) -> bool:
        """Keep that something is about to be done; return False if it was begun before, also by an agent before us."""
        with self._write() as db:
            is_new = db.execute("INSERT OR IGNORE INTO begun (id) VALUES (?)", (name,)).rowcount == 1
            db.execute("DELETE FROM begun WHERE n <= (SELECT max(n) FROM begun) - ?", (BEGUN_LIMIT,))
        return is_new

    # Workloads and fences

    def save(self, workload: Workload, *, boot_id: str) -> None:
        """Keep the workload as it is now; its epoch becomes the lease's highest on each of its devices."""
        self.save_all([workload], boot_id=boot_id)

    def save_all(self, workloads: list[Workload], *, boot_id: str) -> None:
        """Keep several as `save` does, in one write."""
        with self._write() as db:
            for workload in workloads:
                body = json.dumps({name: getattr(workload, name) for name in _FIELDS})
                db.execute("INSERT OR REPLACE INTO workload VALUES (?, ?, ?, ?, ?)", (*workload.key, body, boot_id))
                for device in [f"member:{workload.member}", *workload.devices]:
                    db.execute(
                        "INSERT INTO fence VALUES (?, ?, ?) ON CONFLICT (lease, device) DO UPDATE"
                        " SET epoch = max(epoch, excluded.epoch) WHERE excluded.epoch > epoch",
                        (workload.lease, device, workload.epoch),
                    )
        for workload in workloads:
            workload.saved_deadline_s = workload.deadline_s

    def workloads(self, *, boot_id: str) -> list[Workload]:
        """Return all that are kept. A deadline of another boot says nothing now and is left out."""
        with self._lock:
            rows = self._db.execute("SELECT body, boot_id FROM workload ORDER BY lease, member, epoch").fetchall()
        found = []
        for body, saved_boot in rows:
            workload = Workload(**json.loads(body))
            if saved_boot != boot_id:
                workload.deadline_s = None
            found.append(workload)
        return found

    def forget(self, key: Key) -> None:
        """Drop a workload that is gone, when the server knows. Its fence and its stop stay."""
        with self._write() as db:
            db.execute("DELETE FROM workload WHERE lease = ? AND member = ? AND epoch = ?", key)
            db.execute("DELETE FROM chain WHERE lease = ? AND member = ? AND epoch = ?", key)
            db.execute("DELETE FROM receipt_kind WHERE lease = ? AND member = ? AND epoch = ?", key)

    def highest_epoch(self, *, lease: str, member: int, devices: list[str]) -> int:
        """Return the highest epoch seen of this lease, for the member or on any of the devices; 0 if none was."""
        names = [f"member:{member}", *devices]
        marks = ",".join("?" * len(names))
        with self._lock:
            row = self._db.execute(
                f"SELECT max(epoch) FROM fence WHERE lease = ? AND device IN ({marks})",  # noqa: S608 -- marks only
                (lease, *names),
            ).fetchone()
        return int(row[0] or 0)

    def remember_stop(self, *, lease: str, member: int, epoch: int) -> None:
        """Never start this epoch or a lower one of the lease's member again."""
        with self._write() as db:
            db.execute(
                "INSERT INTO stopped VALUES (?, ?, ?) ON CONFLICT (lease, member) DO UPDATE"
                " SET epoch = max(epoch, excluded.epoch)",
                (lease, member, epoch),
            )

    def stopped_epoch(self, *, lease: str, member: int) -> int:
        """Return the highest epoch that was stopped; 0 if none was."""
        with self._lock:
            row = self._db.execute(
                "SELECT epoch FROM stopped WHERE lease = ? AND member = ?", (lease, member)
            ).fetchone()
        return int(row[0]) if row else 0

    # Events and receipts: numbered, kept until the server acknowledges the number

    def put(self, kind: str, body: dict[str, Any]) -> int:
        """Number `body`, keep it for sending, and return its number. kind: "event" or "receipt"."""
        with self._write() as db:
            return self._put(db, kind, body)

    def put_receipt(self, key: Key, seal: Any) -> int:
        """Keep a receipt: `seal(n, prev)` makes it, given its number and the digest of the one before it in the chain;
        it returns the receipt and its own digest."""
        with self._write() as db:
            row = db.execute("SELECT digest FROM chain WHERE lease = ? AND member = ? AND epoch = ?", key).fetchone()
            n = self._next(db, "receipt")
            receipt, digest = seal(n, row[0] if row else "")
            db.execute("INSERT OR REPLACE INTO chain VALUES (?, ?, ?, ?)", (*key, digest))
            db.execute("INSERT OR REPLACE INTO receipt_kind VALUES (?, ?, ?, ?)", (*key, receipt["kind"]))
            self._keep(db, "receipt", n, receipt)
            return n

    def last_receipt(self, key: Key) -> str:
        """Return the kind of the workload's last receipt, "" if it has none."""
        with self._lock:
            row = self._db.execute(
                "SELECT kind FROM receipt_kind WHERE lease = ? AND member = ? AND epoch = ?", key
            ).fetchone()
        return row[0] if row else ""

    def pending(self, kind: str, *, limit: int) -> list[dict[str, Any]]:
        """Return the oldest unacknowledged bodies."""
        with self._lock:
            rows = self._db.execute(
                "SELECT body FROM outbox WHERE kind = ? ORDER BY n LIMIT ?", (kind, limit)
            ).fetchall()
        return [json.loads(row[0]) for row in rows]

    def acknowledge(self, kind: str, *, n: int) -> None:
        """Drop all up to number `n`."""
        with self._lock:
            if self._db.execute("SELECT 1 FROM outbox WHERE kind = ? AND n <= ? LIMIT 1", (kind, n)).fetchone() is None:
                return
        with self._write() as db:
            db.execute("DELETE FROM outbox WHERE kind = ? AND n <= ?", (kind, n))

    def _put(self, db: sqlite3.Connection, kind: str, body: dict[str, Any]) -> int:
        n = self._next(db, kind)
        self._keep(db, kind, n, {"n": n, **body})
        return n

    @staticmethod
    def _next(db: sqlite3.Connection, kind: str) -> int:
        db.execute("INSERT INTO counter VALUES (?, 1) ON CONFLICT (name) DO UPDATE SET value = value + 1", (kind,))
        return int(db.execute("SELECT value FROM counter WHERE name = ?", (kind,)).fetchone()[0])

    @staticmethod
    def _keep(db: sqlite3.Connection, kind: str, n: int, body: dict[str, Any]) -> None:
        db.execute("INSERT INTO outbox VALUES (?, ?, ?)", (kind, n, json.dumps(body)))
        db.execute("DELETE FROM outbox WHERE kind = ? AND n <= ?", (kind, n - OUTBOX_LIMIT))

    # Repositories of which something was fetched with a login: only for the leases that had one

    def keep_private(self, repository: str, *, lease: str) -> None:
        with self._write() as db:
            db.execute("INSERT OR IGNORE INTO private_image VALUES (?, ?)", (repository, lease))

    def private_to(self, repository: str) -> set[str]:
        """Return the leases for which the repository was fetched with a login; empty if it is not private here."""
        with self._lock:
            rows = self._db.execute("SELECT lease FROM private_image WHERE repository = ?", (repository,)).fetchall()
        return {row[0] for row in rows}

    def drop_private(self, repository: str, *, lease: str) -> None:
        with self._write() as db:
            db.execute("DELETE FROM private_image WHERE repository = ? AND lease = ?", (repository, lease))

    # The end of a log whose container is removed before the server had all of it

    def keep_log_tail(self, key: Key, *, first: int, text: bytes) -> None:
        with self._write() as db:
            db.execute("INSERT OR REPLACE INTO log_tail VALUES (?, ?, ?, ?, ?)", (*key, first, text))

    def log_tails(self) -> list[tuple[Key, int, bytes]]:
        """Return (key, offset of its first byte, bytes) of each."""
        with self._lock:
            rows = self._db.execute("SELECT lease, member, epoch, first, text FROM log_tail").fetchall()
        return [((row[0], row[1], row[2]), row[3], row[4]) for row in rows]

    def drop_log_tail(self, key: Key) -> None:
        with self._write() as db:
            db.execute("DELETE FROM log_tail WHERE lease = ? AND member = ? AND epoch = ?", key)
