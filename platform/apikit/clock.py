"""The one clock: the database's. Only doors and loops read it; domain functions take `at`."""

from datetime import datetime

from django.db import connection


def now() -> datetime:
    """Return the database's wall clock now (UTC, microseconds); not the start of the transaction."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        (moment,) = cursor.fetchone()
    return moment  # type: ignore[no-any-return]


def whole_second(moment: datetime) -> datetime:
    """Return the second that has begun at `moment`: what is billed is counted in whole UTC seconds."""
    return moment.replace(microsecond=0)
