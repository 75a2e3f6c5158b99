"""A part of bench/api.py: what a page of a tenant's leases costs, with a thousand of them and with a hundred thousand.

The whole list is walked by cursor: the first pages and the last ones are compared, which is where a count of rows to
skip would show.
"""

import http.client
import json
import time
from typing import Any

import api_load as load
import psycopg

SIZES = (1_000, 100_000)
LIMIT = 100
ENDS = 50  # pages at each end of the list that are compared; all of a short one

# Leases of one tenant that are over, made of one that was asked for through the door.
FILL = """
INSERT INTO leasing_lease
SELECT (jsonb_populate_record(lease, jsonb_build_object(
    'id', uuidv7(), 'state', 'ended', 'ended_at', now(), 'ending_reason', 'tenant'))).*
FROM leasing_lease lease, generate_series(1, %s) WHERE lease.id = %s
"""


def measure(*, port: int, key: str, database_url: str) -> dict[str, Any]:
    """Return milliseconds per page of 100 by the size of the list: the median of all, of the first and of the last."""
    found: dict[str, dict[str, float]] = {"list_page_ms": {}, "list_first_pages_ms": {}, "list_last_pages_ms": {}}
    with psycopg.connect(database_url, autocommit=True) as connection:
        (there, example), *_ = connection.execute("SELECT count(*) OVER (), id FROM leasing_lease LIMIT 1").fetchall()
        for size in SIZES:
            connection.execute(FILL, [size - there, example])
            connection.execute("VACUUM ANALYZE leasing_lease")
            there = size
            took = _walk(port, key, pages=size // LIMIT)
            for name, part in zip(found, (took, took[:ENDS], took[-ENDS:]), strict=True):
                found[name][str(size)] = round(1000 * load.percentile(part, 50), 2)
            print(f"list of {size:7d}: {found['list_page_ms'][str(size)]} ms a page of {LIMIT}", flush=True)
    return found


def _walk(port: int, key: str, *, pages: int) -> list[float]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    address, took, seen = f"/api/v1/leases?limit={LIMIT}", [], 0
    cursor: str | None = ""
    while cursor is not None:
        began = time.perf_counter()
        connection.request("GET", address + cursor, headers={"Authorization": f"Bearer {key}"})
        answer = connection.getresponse()
        said = json.loads(answer.read())
        took.append(time.perf_counter() - began)
        if answer.status != 200:
            raise RuntimeError(f"{answer.status} {said}")
        seen += len(said["items"])
        cursor = f"&cursor={said['next_cursor']}" if said["next_cursor"] else None
    if seen != pages * LIMIT:
        raise RuntimeError(f"the walk has seen {seen} leases and not {pages * LIMIT}")
    return took
