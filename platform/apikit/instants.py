"""Instants as the doors write them: RFC 3339, UTC, whole seconds."""

from datetime import UTC, datetime


def instant(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def instant_or_none(moment: datetime | None) -> str | None:
    return None if moment is None else instant(moment)
