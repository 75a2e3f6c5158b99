"""Wake a loop now rather than at its next tick. Only a doorbell: a ring that fails costs a second, and is counted."""

import logging
import os
import threading
import time

from django.conf import settings
from django.db import transaction
from prometheus_client import Counter

log = logging.getLogger(__name__)
RINGS_LOST = Counter("gpuyard_doorbell_rings_lost", "Rings that could not be sent to the broker", ["task"])
PAUSE_S = 0.02  # between two rings of one process: many who come together are one ring for whoever looks


def after_commit(task_name: str) -> None:
    """Ring once the present transaction has committed, beside the request: it waits for no broker."""
    transaction.on_commit(lambda: ring_soon(task_name))


def ring_soon(task_name: str) -> None:
    if settings.CELERY_BROKER_URL:
        _ringer().ask(task_name)


def ring(task_name: str) -> None:
    if not settings.CELERY_BROKER_URL:
        return
    from celery import current_app
    from kombu.exceptions import OperationalError

    try:
        current_app.send_task(task_name, expires=5, retry=False)
    except (OperationalError, OSError) as fault:
        # Redis is down or full: the loops poll the database, so nothing is lost.
        RINGS_LOST.labels(task=task_name).inc()
        log.warning("doorbell", extra={"task": task_name, "fault": type(fault).__name__})


class Ringer:
    """A thread that sends what was asked for since its last ring, each task once. Who asks never waits.

    Each ring is sent after it was asked for, so whoever hears it sees what had been committed by then.
    """

    def __init__(self) -> None:
        self.process = os.getpid()
        self._asked: set[str] = set()
        self._change = threading.Condition()
        threading.Thread(target=self._ring_on, name="doorbell", daemon=True).start()

    def ask(self, task_name: str) -> None:
        with self._change:
            self._asked.add(task_name)
            self._change.notify()

    def _ring_on(self) -> None:
        while True:
            with self._change:
                while not self._asked:
                    self._change.wait()
                names, self._asked = self._asked, set()
            for name in names:
                try:
                    ring(name)
                except Exception:
                    log.exception("doorbell", extra={"task": name})
            time.sleep(PAUSE_S)


_lock = threading.Lock()
_here: Ringer | None = None


def _ringer() -> Ringer:
    """Return the one of this process: a thread does not live on in a child."""
    global _here
    with _lock:
        if _here is None or _here.process != os.getpid():
            _here = Ringer()
        return _here
