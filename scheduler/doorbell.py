"""Wake a loop now rather than at its next tick. Only a doorbell: a ring that fails costs a second, and is counted."""

import logging

from django.conf import settings
from django.db import transaction
from prometheus_client import Counter

log = logging.getLogger(__name__)
RINGS_LOST = Counter("gpuyard_doorbell_rings_lost", "Rings that could not be sent to the broker", ["task"])


def after_commit(task_name: str) -> None:
    """Ring once the present transaction has committed."""
    transaction.on_commit(lambda: ring(task_name))


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
