"""Tests that commit are cleaned by TRUNCATE, which append-only tables refuse: their triggers sleep while it runs."""

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection
from django.test import TransactionTestCase


@pytest.fixture(autouse=True, scope="session")
def _truncate_append_only_tables() -> Iterator[None]:
    flush = TransactionTestCase._fixture_teardown

    def without_triggers(case: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SET session_replication_role = replica")
        try:
            flush(case)
        finally:
            with connection.cursor() as cursor:
                cursor.execute("SET session_replication_role = DEFAULT")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TransactionTestCase, "_fixture_teardown", without_triggers)
        yield
