"""When a host's owner lets the market use it: windows of the week in his own time zone. Pure.

A window is {"days": [0, 1], "from": "20:00", "to": "08:00"}: Monday is 0; one that ends at or before its beginning goes
on into the next day. No window at all means always.
"""

import re
from collections.abc import Iterable, Mapping
from datetime import datetime, time, timedelta
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

WINDOWS_MAX = 21
_TIME = re.compile(r"([01][0-9]|2[0-3]):[0-5][0-9]", re.ASCII)


def faults(windows: Any, time_zone: str) -> list[dict[str, str]]:
    """Return what is wrong with windows and zone: [{pointer, code, detail}]."""
    found = []
    if time_zone not in available_timezones():
        detail = "A name of the IANA time zone database, such as Asia/Shanghai."
        found.append({"pointer": "/hours_time_zone", "code": "bad_value", "detail": detail})
    if not isinstance(windows, list) or len(windows) > WINDOWS_MAX:
        detail = f"A list of at most {WINDOWS_MAX} windows."
        return [*found, {"pointer": "/hours", "code": "wrong_type", "detail": detail}]
    for index, window in enumerate(windows):
        if not _is_window(window):
            detail = 'Of the form {"days": [0, 6], "from": "20:00", "to": "08:00"}; Monday is 0.'
            found.append({"pointer": f"/hours/{index}", "code": "bad_value", "detail": detail})
    return found


def is_open(*, windows: Iterable[Mapping[str, Any]], time_zone: str, at: datetime) -> bool:
    """Return whether the market may use the host at this instant."""
    listed = list(windows)
    if not listed:
        return True
    here = at.astimezone(ZoneInfo(time_zone))
    return any(_holds(window, here) for window in listed)


def _is_window(window: Any) -> bool:
    if not isinstance(window, dict) or set(window) != {"days", "from", "to"}:
        return False
    days = window["days"]
    return (
        isinstance(days, list)
        and 0 < len(days) <= 7
        and all(isinstance(day, int) and not isinstance(day, bool) and 0 <= day <= 6 for day in days)
        and all(isinstance(window[name], str) and _TIME.fullmatch(window[name]) is not None for name in ("from", "to"))
    )


def _holds(window: Mapping[str, Any], here: datetime) -> bool:
    first, last = time.fromisoformat(window["from"]), time.fromisoformat(window["to"])
    today, yesterday = here.weekday(), (here - timedelta(days=1)).weekday()
    if first < last:
        return today in window["days"] and first <= here.time() < last
    return (today in window["days"] and here.time() >= first) or (yesterday in window["days"] and here.time() < last)
