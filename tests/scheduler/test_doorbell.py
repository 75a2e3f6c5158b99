"""Rings: sent beside the request, after what was asked for, and many who come together are few."""

import threading
from typing import Any

import pytest

from scheduler import doorbell
from tests.running_stack import until


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch, settings: Any) -> list[str]:
    settings.CELERY_BROKER_URL = "memory://"
    found: list[str] = []
    monkeypatch.setattr(doorbell, "ring", found.append)
    return found


def test_each_that_is_asked_for_is_rung(sent: list[str]) -> None:
    for name in ("a", "b"):
        doorbell.ring_soon(name)

    until(lambda: {"a", "b"} <= set(sent), what="Both rings")


def test_who_asks_does_not_wait_and_asking_often_meanwhile_is_one_ring(
    sent: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen, begun = threading.Event(), threading.Event()

    def slowly(name: str) -> None:
        begun.set()
        frozen.wait(30)
        sent.append(name)

    monkeypatch.setattr(doorbell, "ring", slowly)
    doorbell.ring_soon("a")
    assert begun.wait(30)
    for _ in range(1000):
        doorbell.ring_soon("a")
    assert sent == []

    frozen.set()

    until(lambda: len(sent) == 2, what="The ring that went on and the one after it")
    doorbell.ring_soon("b")
    until(lambda: sent[2:] == ["b"], what="The next ring alone")


def test_without_a_broker_nobody_is_rung(sent: list[str], settings: Any) -> None:
    settings.CELERY_BROKER_URL = ""

    doorbell.ring_soon("a")

    assert sent == []
