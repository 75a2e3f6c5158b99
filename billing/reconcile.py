"""Does it all add up? One query per invariant of the books (invariants.sql); each names the rows that break it."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from django.db import connection, transaction

from billing import currencies

QUERIES = Path(__file__).with_name("invariants.sql")


@dataclass(frozen=True)
class Finding:
    invariant: str
    row: str
    detail: str


@cache
def checks() -> dict[str, str]:
    """Return the query of each invariant by its name."""
    blocks = re.split(r"^-- (part|invariant): (.+)$", QUERIES.read_text(), flags=re.MULTILINE)[1:]
    minor = ", ".join(f"('{c.code}', {c.micros_per_minor})" for c in currencies.CURRENCIES.values())
    named: dict[str, dict[str, str]] = {"part": {"MINOR": minor}, "invariant": {}}
    for kind, name, query in zip(blocks[::3], blocks[1::3], blocks[2::3], strict=True):
        for part, text in named["part"].items():
            query = query.replace(f"/*{part}*/", text)
        named[kind][name] = query
    return named["invariant"]


def findings() -> list[Finding]:
    """Return every row that breaks an invariant; empty when the books are right."""
    found = []
    with reading_all() as cursor:
        for invariant, query in checks().items():
            cursor.execute(query)
            found += [Finding(invariant, str(row), str(detail)) for row, detail in cursor.fetchall()]
    return found


@contextmanager
def reading_all() -> Iterator[Any]:
    """Yield a cursor whose plans suit queries that read whole tables, whatever the statistics say of their size.

    Tables that grew since they were last analysed look small, and a loop over the other table for each row takes
    minutes where a hash takes a second.
    """
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT current_setting('enable_nestloop'), set_config('enable_nestloop', 'off', true)")
        (before, _) = cursor.fetchone()
        yield cursor
        cursor.execute("SELECT set_config('enable_nestloop', %s, true)", [before])


def by_invariant() -> dict[str, int]:
    """Return how many rows break each invariant: for the metric."""
    found = findings()
    return {invariant: sum(f.invariant == invariant for f in found) for invariant in checks()}
