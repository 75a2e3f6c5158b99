"""Can this installation do its work? The database must answer; without the broker or a loop it only works later."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import redis
from django.conf import settings
from django.db import DatabaseError, InterfaceError

from apikit import clock
from scheduler.models import LoopProgress

BROKER_TIMEOUT_S = 1.0
# Loops at least this often must have run once soon after the start; rarer ones may still be waiting for their first.
OFTEN_S = 60.0
PATIENCE_S = 15.0


@dataclass(frozen=True)
class Loop:
    """A loop of the schedule. age_s: seconds since its last success, None: it never had one."""

    name: str
    every_s: float
    age_s: float | None
    late: bool
    last_error: str


def loops(*, at: datetime) -> list[Loop]:
    """Return every loop of the schedule; late is one that has missed five of its ticks, and fifteen seconds."""
    noted = {row.name: row for row in LoopProgress.objects.filter(name__in=settings.LOOPS)}
    return [_loop(name, every_s, noted.get(name), at) for name, every_s in settings.LOOPS.items()]


def _loop(name: str, every_s: float, row: LoopProgress | None, at: datetime) -> Loop:
    patience_s = max(PATIENCE_S, 5 * every_s)
    if row is None or row.succeeded_at is None:
        never_in_time = every_s <= OFTEN_S or (row is not None and row.failures > 0)
        return Loop(name, every_s, None, never_in_time, row.last_error if row else "")
    age_s = max(0.0, (at - row.succeeded_at).total_seconds())
    failing = row.failed_at is not None and row.failed_at > row.succeeded_at
    return Loop(name, every_s, age_s, age_s > patience_s, row.last_error if failing else "")


def broker_fault() -> str | None:
    """Return what is wrong with the broker, None if it answers or there is none."""
    if not settings.CELERY_BROKER_URL:
        return None
    try:
        with redis.Redis.from_url(
            settings.CELERY_BROKER_URL, socket_timeout=BROKER_TIMEOUT_S, socket_connect_timeout=BROKER_TIMEOUT_S
        ) as broker:
            broker.ping()
    except (redis.RedisError, OSError, ValueError) as fault:
        return type(fault).__name__
    return None


def report() -> dict[str, Any]:
    """Return {"status", "database", "broker", "late_loops"}.

    `unavailable`: no request can be served. `degraded`: requests are served, and what runs by itself is slower than it
    should be (the loops of another process stand in for a broker that is away).
    """
    try:
        late = [loop.name for loop in loops(at=clock.now()) if loop.late]
    except (DatabaseError, InterfaceError) as fault:
        return {"status": "unavailable", "database": type(fault).__name__, "broker": None, "late_loops": None}
    broker = broker_fault()
    broker_word = "none" if not settings.CELERY_BROKER_URL else broker or "ok"
    status = "degraded" if late or broker else "ready"
    return {"status": status, "database": "ok", "broker": broker_word, "late_loops": late}
