"""The books must be right after every test of billing, whatever it did; and it makes `books` importable."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from billing import reconcile

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def books_are_right(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    marker = request.node.get_closest_marker
    if marker("django_db") is not None and marker("books_are_wrong") is None:
        assert reconcile.findings() == []


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "books_are_wrong: the test breaks the books on purpose")
