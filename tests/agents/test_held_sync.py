"""The door as an ASGI server runs it: held until something is wanted, with no thread and no connection meanwhile."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any
from uuid import UUID

import pytest
from django.conf import settings as django_settings
from django.db import connection
from django.test import AsyncClient
from django.utils.module_loading import import_string

from agents import waiting, workloads
from agents.models import Host
from tests.agents.fake_agent import SYNC, FakeAgent, make_online_agent, now
from tests.agents.test_sync import REFERENCE

pytestmark = pytest.mark.django_db(transaction=True)


def running[**P](scenario: Callable[P, Awaitable[None]]) -> Callable[P, None]:
    """Run an async test in a loop of its own."""

    @wraps(scenario)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.run(scenario(*args, **kwargs))  # type: ignore[arg-type]

    return run


@pytest.fixture
def agent(settings: Any) -> FakeAgent:
    settings.HOST_SYNC_HOLD_S = 30
    agent = make_online_agent(clock_s=int(time.time()))
    agent.sync()
    return agent


async def held(agent: FakeAgent, **changes: Any) -> tuple[dict[str, Any], float]:
    """Send one request through ASGI; return the answer and how long it took, in seconds."""
    agent.seq += 1
    raw = json.dumps(agent.body(**changes)).encode()
    started = time.monotonic()
    headers = agent.headers(raw)
    response = await AsyncClient().post(SYNC, raw, content_type="application/json", headers=headers)
    assert response.status_code == 200, response.content
    agent.check_signature(response)
    return response.json(), time.monotonic() - started


def want(agent: FakeAgent) -> None:
    workloads.want(
        reference=REFERENCE, member=0, epoch=1, valid_for_s=60, stop_grace_s=30, not_after=None, at=now(),
        spec={"image": "pytorch", "devices": agent.uuids}, host_id=agent.row.pk,
    )  # fmt: skip


@running
async def test_a_held_request_is_answered_as_soon_as_something_is_wanted(agent: FakeAgent) -> None:
    request = asyncio.create_task(held(agent))
    await until(lambda: bool(waiting.watches.here().waits))
    wanted_at = time.monotonic()

    await on_a_thread(lambda: want(agent))
    answer, _ = await request

    assert time.monotonic() - wanted_at < 15  # the hold is 30; with an idle machine it is a tenth of a second
    assert [row["lease"] for row in answer["desired"]] == [REFERENCE]
    assert answer["hold_s"] == 30


@running
async def test_what_was_wanted_before_is_answered_at_once(agent: FakeAgent) -> None:
    await on_a_thread(lambda: want(agent))

    _, took_s = await held(agent)

    assert took_s < 15


@running
async def test_nothing_new_is_answered_when_the_hold_is_over(agent: FakeAgent, settings: Any) -> None:
    settings.HOST_SYNC_HOLD_S = 1

    answer, took_s = await held(agent)

    assert answer["desired"] is None
    assert 0.9 < took_s < 15


@running
async def test_many_held_requests_hold_no_connection(agent: FakeAgent) -> None:
    before = await on_a_thread(connections_of_this_database)
    watch = waiting.watches.here()
    host = await on_a_thread(lambda: agent.row)
    waits = [asyncio.create_task(watch.moved(host.pk, seen=host.generation, within_s=5)) for _ in range(200)]
    await until(lambda: len(next(iter(watch.waits.values()), [])) == 200)

    during = await on_a_thread(connections_of_this_database)
    await on_a_thread(lambda: want(agent))

    assert await asyncio.gather(*waits) == [True] * 200
    assert during <= before + 2


@running
async def test_a_failing_look_lets_everybody_go(agent: FakeAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: Any) -> dict[UUID, int]:
        raise RuntimeError("no database")

    monkeypatch.setattr(waiting, "_moved", broken)

    assert await waiting.moved(host_id=Host().pk, generation=1, within_s=5)


def test_under_wsgi_nothing_is_held(agent: FakeAgent) -> None:
    started = time.monotonic()

    answer = agent.sync()

    assert time.monotonic() - started < 15
    assert (answer["hold_s"], answer["wait_s"]) == (0, 1)


def test_no_middleware_would_put_a_held_request_on_a_thread() -> None:
    for name in django_settings.MIDDLEWARE:
        assert import_string(name).async_capable, name


async def until(condition: Any, within_s: float = 5) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


def on_a_thread[T](act: Callable[[], T]) -> Awaitable[T]:
    """Run what touches the database in a thread, and close its connection."""

    def run() -> T:
        try:
            return act()
        finally:
            connection.close()

    return asyncio.to_thread(run)


def connections_of_this_database() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()")
        return int(cursor.fetchone()[0])
