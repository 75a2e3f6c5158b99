"""Devices that a self-test works on: kept from workloads meanwhile, so that no tenant shares a GPU with a test."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agents.node.reconciler import Reconciler


class Claims:
    def __init__(self, reconciler: "Reconciler") -> None:
        self._r = reconciler
        self._claimed: set[str] = set()

    def on(self, uuids: list[str]) -> set[str]:
        """Return which of them are claimed."""
        return self._claimed.intersection(uuids)

    @contextmanager
    def claim(self, uuid: str) -> Iterator[bool]:
        """Keep a device from workloads until the block ends; False if one holds it, or another test does."""
        with self._r.lock:
            held = {held for workload in self._r.workloads.values() if not workload.over for held in workload.devices}
            free = uuid not in held and uuid not in self._claimed
            if free:
                self._claimed.add(uuid)
        try:
            yield free
        finally:
            if free:
                with self._r.lock:
                    self._claimed.discard(uuid)
                self._r.work.ring()
