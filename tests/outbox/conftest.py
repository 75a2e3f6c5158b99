"""A receiver that stands for the Internet, and a caller with every scope."""

from collections.abc import Iterator
from typing import Any

import pytest

from apikit import outbound
from tests.apikit.conftest import Caller
from tests.apikit.tls_receiver import Receiver
from tests.factories import make_organization

ADDRESSES = {"hook.test": ["93.184.216.34"], "redirect.test": ["93.184.216.35"]}


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    with Receiver() as running:
        monkeypatch.setattr(outbound, "INTERNET", running.wire(ADDRESSES))
        yield running


@pytest.fixture
def caller(db: Any) -> Caller:
    return Caller(make_organization())
