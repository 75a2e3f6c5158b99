"""Instants as the doors write them: RFC 3339, UTC, whole seconds."""

from datetime import UTC, datetime


def instant(moment: datetime) -> str:
    # Not strftime: its %Y writes the year 97 with two digits.
    return f"{moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec='seconds')}Z"


def instant_or_none(moment: datetime | None) -> str | None:
    return None if moment is None else instant(moment)
