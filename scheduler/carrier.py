"""Batches of decisions are carried out one after the other, on a connection of their own, while the next is decided.

Deciding needs nothing of what is being written: it counts on its own overlay. Where there is one batch only, or where
the caller is in a transaction of his own (which another connection would not see), all is done in the caller's thread.
"""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime
from typing import Self
from uuid import UUID

from django.db import connection

from leasing import assigning
from leasing.assigning import Assignment, Outcome
from leasing.models import Lease

Batch = Sequence[tuple[Lease, Assignment]]


class Carrier:
    """Takes batches; gives back what came of those before. Used as a context, it closes its connection at the end."""

    def __init__(self, at: datetime) -> None:
        self._at = at
        self._thread: ThreadPoolExecutor | None = None
        self._running: tuple[Batch, Future[dict[UUID, Outcome]]] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread is not None:
            self._thread.submit(_close)
            self._thread.shutdown()  # what runs is finished first

    def take(self, batch: Batch, *, last: bool) -> list[tuple[Lease, Outcome]]:
        """Begin to carry a batch out; return what came of the one before, and with `last` of this one too."""
        came = self._wait()
        if last and self._thread is None:
            came += _outcomes(batch, self._assign(batch))
        elif batch:
            self._begin(batch)
        return came + self._wait() if last else came

    def _begin(self, batch: Batch) -> None:
        if connection.in_atomic_block:
            done: Future[dict[UUID, Outcome]] = Future()
            done.set_result(self._assign(batch))
        else:
            self._thread = self._thread or ThreadPoolExecutor(1, thread_name_prefix="carrier")
            done = self._thread.submit(self._assign, batch)
        self._running = (batch, done)

    def _wait(self) -> list[tuple[Lease, Outcome]]:
        if self._running is None:
            return []
        batch, done = self._running
        self._running = None
        return _outcomes(batch, done.result())

    def _assign(self, batch: Batch) -> dict[UUID, Outcome]:
        acts = [(lease.pk, act) for lease, act in batch]
        return assigning.assign_all(acts, at=self._at, known={lease.pk: lease for lease, _ in batch})


def _close() -> None:
    connection.close()  # that of the thread which calls it


def _outcomes(batch: Batch, outcomes: dict[UUID, Outcome]) -> list[tuple[Lease, Outcome]]:
    return [(lease, outcomes[lease.pk]) for lease, _ in batch]
