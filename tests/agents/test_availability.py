from datetime import UTC, datetime
from typing import Any

import pytest

from agents import availability

NIGHTS = [{"days": [0, 1, 2, 3, 4], "from": "20:00", "to": "08:00"}]
SUNDAY_NOON = [{"days": [6], "from": "11:00", "to": "13:00"}]


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("windows", "zone", "moment", "is_open"),
    [
        ([], "UTC", "2027-03-01T03:00", True),
        (NIGHTS, "UTC", "2027-03-01T20:00", True),  # a Monday
        (NIGHTS, "UTC", "2027-03-01T19:59", False),
        (NIGHTS, "UTC", "2027-03-02T07:59", True),
        (NIGHTS, "UTC", "2027-03-02T08:00", False),
        (NIGHTS, "UTC", "2027-03-06T07:59", True),  # Saturday morning belongs to Friday's night
        (NIGHTS, "UTC", "2027-03-06T20:00", False),
        (NIGHTS, "UTC", "2027-03-01T07:00", False),  # Monday morning would be Sunday's night
        (NIGHTS, "Asia/Shanghai", "2027-03-01T12:00", True),
        (SUNDAY_NOON, "America/New_York", "2027-03-14T15:30", True),  # the clocks went forward that morning
        (SUNDAY_NOON, "America/New_York", "2027-03-14T17:00", False),
    ],
)
def test_windows_hold_in_the_owners_time(windows: list[dict[str, Any]], zone: str, moment: str, is_open: bool) -> None:
    assert availability.is_open(windows=windows, time_zone=zone, at=at(moment)) is is_open


@pytest.mark.parametrize(
    "window",
    [
        {"days": [], "from": "20:00", "to": "08:00"},
        {"days": [True], "from": "20:00", "to": "08:00"},
        {"days": [1], "from": "20:00"},
        {"days": [1], "from": "24:00", "to": "08:00"},
        {"days": [1], "from": "٢٠:00", "to": "08:00"},
        {"days": [1], "from": 20, "to": "08:00"},
        "always",
    ],
)
def test_what_is_no_window_is_named(window: Any) -> None:
    assert [fault["pointer"] for fault in availability.faults([NIGHTS[0], window], "UTC")] == ["/hours/1"]
