from datetime import datetime, timedelta

import pytest

from apikit import clock
from tests.factories import NOON


class Clock:
    """The doors' clock, which a test moves. It stands at NOON."""

    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> datetime:
        return self.now

    def forward(self, seconds: float) -> datetime:
        self.now += timedelta(seconds=seconds)
        return self.now


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> Clock:
    stopped = Clock()
    monkeypatch.setattr(clock, "now", stopped)
    monkeypatch.setattr(clock, "as_read", lambda _: stopped())
    return stopped
