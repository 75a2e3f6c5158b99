"""The one clock: the database's. Only doors and loops read it; domain functions take `at`."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

from django.db import connection

_frozen: datetime | None = None


def now() -> datetime:
    """Return the database's wall clock now (UTC, microseconds); not the start of the transaction."""
    if _frozen is not None:
        return _frozen
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        (moment,) = cursor.fetchone()
    return moment  # type: ignore[no-any-return]


def as_read(moment: datetime) -> datetime:
    """Return what a statement read from `clock_timestamp()` beside something else; the stopped clock in tests."""
    return _frozen or moment


@contextmanager
def frozen(moment: datetime) -> Iterator[None]:
    """Stop the clock at `moment` in all threads of this process: for tests of doors."""
    global _frozen
    before, _frozen = _frozen, moment
    try:
        yield
    finally:
        _frozen = before


def whole_second(moment: datetime) -> datetime:
    """Return the second that has begun at `moment`: what is billed is counted in whole UTC seconds."""
    return moment.replace(microsecond=0)
