"""What of the outbox runs by itself: each reads the clock and makes one call."""

from celery import shared_task

from accounts import sessions
from apikit import clock, idempotency, rate_limits
from outbox import delivering, relaying


@shared_task(name="outbox.relay")  # type: ignore[untyped-decorator]
def relay(**_: object) -> None:
    relaying.relay_due(at=clock.now())


@shared_task(name="outbox.deliver")  # type: ignore[untyped-decorator]
def deliver(**_: object) -> None:
    delivering.deliver_due(at=clock.now())


@shared_task(name="outbox.forget_old")  # type: ignore[untyped-decorator]
def forget_old(**_: object) -> None:
    """Delete what is kept for a time: old messages, answers kept for retries, counters, sessions."""
    at = clock.now()
    relaying.forget_old(at=at)
    idempotency.forget_expired(at=at)
    rate_limits.forget_old(at=at)
    sessions.forget_old(at=at)
