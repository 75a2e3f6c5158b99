"""Who runs the loops leaves a row behind: the health of a loop is the age of its last success, never a ping."""

from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import F

from scheduler.models import LoopProgress

LONGEST_ERROR = 500  # characters


@transaction.atomic
def note(*, name: str, started_at: datetime, ended_at: datetime, error: str | None) -> None:
    """Record one run of loop `name`. error: what it failed with, None if it succeeded."""
    outcome = {"failed_at": ended_at, "last_error": error[:LONGEST_ERROR]} if error else {"succeeded_at": ended_at}
    LoopProgress.objects.get_or_create(name=name, defaults={"started_at": started_at, "ended_at": ended_at})
    LoopProgress.objects.filter(name=name).update(
        started_at=started_at,
        ended_at=ended_at,
        runs=F("runs") + 1,
        failures=F("failures") + (1 if error else 0),
        **outcome,
    )


def is_late(*, name: str, every_s: float, at: datetime) -> bool:
    """Say whether nobody has run loop `name` to a success for three of its intervals, and three seconds at least."""
    patience = timedelta(seconds=max(3.0, 3 * every_s))
    return not LoopProgress.objects.filter(name=name, succeeded_at__gt=at - patience).exists()
