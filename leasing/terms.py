"""Terms of a lease, pure: `on_demand`, `spot`, `2h` (on demand, with an end), `P1W` `P1M` `P1Y` (reserved)."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from billing import pricing

PERIODS = ("P1W", "P1M", "P1Y")
MIN_DURATION_S = 60
MAX_DURATION_S = 366 * 86_400
MAX_START_AHEAD_S = 365 * 86_400
START_TOLERANCE_S = 60
_SHORT = re.compile(r"(\d{1,9})([smhdw])", re.ASCII)
_ISO = re.compile(r"P(?:(\d{1,5})D)?(?:T(?:(\d{1,6})H)?(?:(\d{1,7})M)?(?:(\d{1,9})S)?)?", re.ASCII)
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


class TermError(ValueError):
    """A term that cannot be had; `pointer` is relative to the term, `code` one of API.md section 4."""

    def __init__(self, code: str, detail: str, pointer: str = "") -> None:
        super().__init__(detail)
        self.code, self.detail, self.pointer = code, detail, pointer


@dataclass(frozen=True)
class Term:
    kind: str = "on_demand"
    period: str = ""
    renew: bool = False
    start_at: datetime | None = None
    end_at: datetime | None = None
    duration_s: int | None = None

    def to_json(self) -> dict[str, Any]:
        stamp = "%Y-%m-%dT%H:%M:%SZ"
        return {
            "kind": self.kind,
            "period": self.period or None,
            "renew": self.renew,
            "start_at": self.start_at.strftime(stamp) if self.start_at else None,
            "end_at": self.end_at.strftime(stamp) if self.end_at else None,
            "duration_s": self.duration_s,
        }


def duration_s(text: str) -> int | None:
    """Return the seconds of `90s 30m 2h 7d PT2H P1DT6H`, or None if it is no duration with a unit."""
    if short := _SHORT.fullmatch(text):
        return int(short[1]) * _SECONDS[short[2]]
    iso = _ISO.fullmatch(text)
    if iso and any(iso.groups()):
        days, hours, minutes, seconds = (int(part or 0) for part in iso.groups())
        return days * 86_400 + hours * 3600 + minutes * 60 + seconds
    return None


def end_of(*, start: datetime, duration_s: int | None, period: str, zone: str, periods: int = 1) -> datetime:
    """Return when a term that starts at `start` ends: seconds later, or `periods` calendar steps in the tenant's zone.

    The end is counted from the start of all, never from the last end, so that 31 January renews on 28 February and then
    on 31 March.
    """
    if duration_s is not None:
        return start + timedelta(seconds=duration_s)
    local = start.astimezone(ZoneInfo(zone))
    if period == "P1W":
        return pricing.boundary_instant(local, k=periods, days=7).astimezone(UTC)
    months = {"P1M": 1, "P1Y": 12}[period]
    return pricing.boundary_instant(local, k=periods, months=months).astimezone(UTC)


def from_text(text: str) -> Term:
    """Read the one-word form. Raises TermError."""
    if text in {"on_demand", "spot"}:
        return Term(kind=text)
    if text in PERIODS:
        return Term(kind="reserved", period=text)
    seconds = duration_s(text)
    if seconds is None:
        hint = f"{text}s? {text}m? {text}h?" if text.isdigit() and text.isascii() else "on_demand, spot, 2h, P1M"
        raise TermError("bad_value", f"A term is one of on_demand, spot, {', '.join(PERIODS)}, or a duration: {hint}")
    return Term(duration_s=seconds)


def checked(term: Term, *, at: datetime) -> Term:
    """Return the term if it can be had from `at` on, its end worked out where its start is known. Raises TermError."""
    if term.kind == "reserved" and term.period not in PERIODS:
        raise TermError("bad_value", f"A reserved term needs a period: {', '.join(PERIODS)}.", "/period")
    if term.kind != "reserved" and term.period:
        raise TermError("bad_value", "Only a reserved term has a period.", "/period")
    if term.duration_s is not None and term.end_at is not None:
        raise TermError("exactly_one_of", "Name end_at or duration_s, not both.", "/duration_s")
    if term.duration_s is not None and not MIN_DURATION_S <= term.duration_s <= MAX_DURATION_S:
        raise TermError("out_of_range", "A duration is 60 s to 366 days.", "/duration_s")
    start = term.start_at
    if start is not None:
        ahead_s = (start - at).total_seconds()
        if not -START_TOLERANCE_S <= ahead_s <= MAX_START_AHEAD_S:
            raise TermError("out_of_range", "A start lies from a minute ago to 365 days ahead.", "/start_at")
        start = start if ahead_s > 0 else None  # "now", within the tolerance
    end_at = term.end_at
    if end_at is None and term.duration_s is not None and start is not None:
        end_at = start + timedelta(seconds=term.duration_s)
    if end_at is not None:
        length_s = (end_at - (start or at)).total_seconds()
        if length_s <= 0:
            raise TermError("out_of_range", "The end must lie after the start.", "/end_at")
        if term.end_at is not None and not MIN_DURATION_S <= length_s <= MAX_DURATION_S:
            raise TermError("out_of_range", "A lease lasts 60 s to 366 days.", "/end_at")
    return Term(term.kind, term.period, term.renew, start, end_at, term.duration_s)
