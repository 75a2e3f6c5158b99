"""Durations as people write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard import durations


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        *(("90s", 90), ("30m", 1800), ("2h", 7200), ("7d", 604_800), ("1w", 604_800), ("PT2H", 7200), ("0s", 0)),
        *(("1h30m", 5400), ("P1DT6H", 108_000), ("P2W", 1_209_600), ("2H", 7200), ("pt90s", 90)),
    ],
)
def test_a_duration_is_read(text: str, seconds: int) -> None:
    assert durations.parse_s(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "2", "h", "-2h", "2.5h", "2h ", "30m2h", "P", "PT", "P1M", "P1Y", "P1DT", "٢h", "1" * 10 + "s", "2h3h"]
)
def test_what_has_no_unit_or_no_fixed_length_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no duration"):
        durations.parse_s(text)


@given(st.integers(0, 10**9))
def test_what_is_shown_is_read_back_within_the_smaller_of_two_units(seconds: int) -> None:
    shown = durations.show(seconds)

    assert 0 <= seconds - durations.parse_s(shown) < 86_400
    assert durations.show(durations.parse_s(shown)) == shown
