from datetime import UTC, datetime, timedelta
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


BERLIN = "Europe/Berlin"


@pytest.mark.parametrize(
    ("utc", "open_"),
    [
        # The night to 28 March 2027: clocks go from 02:00 to 03:00. The window 20:00 to 08:00 has eleven hours.
        ("2027-03-27T18:59:00+00:00", False),  # 19:59 CET
        ("2027-03-27T19:00:00+00:00", True),
        ("2027-03-28T00:59:59+00:00", True),  # 01:59:59 CET
        ("2027-03-28T01:00:00+00:00", True),  # 03:00 CEST: the hour between does not exist
        ("2027-03-28T05:59:59+00:00", True),  # 07:59:59 CEST
        ("2027-03-28T06:00:00+00:00", False),
        # The night to 31 October 2027: 02:00 to 03:00 comes twice. The window has thirteen hours.
        ("2027-10-30T18:00:00+00:00", True),  # 20:00 CEST
        ("2027-10-31T00:30:00+00:00", True),  # 02:30 CEST
        ("2027-10-31T01:30:00+00:00", True),  # 02:30 CET
        ("2027-10-31T06:59:59+00:00", True),
        ("2027-10-31T07:00:00+00:00", False),
    ],
)
def test_a_night_window_follows_the_owners_clock_over_its_changes(utc: str, open_: bool) -> None:
    nights = [{"days": [0, 1, 2, 3, 4, 5, 6], "from": "20:00", "to": "08:00"}]

    assert availability.is_open(windows=nights, time_zone=BERLIN, at=datetime.fromisoformat(utc)) is open_


def test_a_window_in_the_hour_that_comes_twice_is_open_in_both_and_one_in_the_hour_that_is_not_never_opens() -> None:
    small = [{"days": [6], "from": "02:00", "to": "03:00"}]

    def open_minutes(day: str) -> int:
        first = datetime.fromisoformat(f"{day}T00:00:00+00:00") - timedelta(hours=2)
        moments = [first + timedelta(minutes=n) for n in range(26 * 60)]
        return sum(availability.is_open(windows=small, time_zone=BERLIN, at=moment) for moment in moments)

    assert open_minutes("2027-03-28") == 0
    assert open_minutes("2027-10-31") == 120
    assert open_minutes("2027-11-07") == 60
