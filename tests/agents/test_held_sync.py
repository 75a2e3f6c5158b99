"""The door as an ASGI server runs it: held until something is wanted, with no thread and no connection meanwhile."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any
from uuid import UUID

import pytest
from asgiref.testing import ApplicationCommunicator
from django.conf import settings as django_settings
from django.db import connection
from django.http import HttpResponse
from django.test import override_settings
from django.utils.module_loading import import_string

from agents import sync_answers, sync_door, waiting, workloads
from agents.models import Host
from agents.sync import Applied
from audit import ids
from config.asgi import application
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
    """Send one request through the ASGI application; return the answer and how long it took, in seconds."""
    agent.seq += 1
    raw = json.dumps(agent.body(**changes)).encode()
    started = time.monotonic()
    response = await through_asgi(raw, agent.headers(raw))
    assert response.status_code == 200, response.content
    agent.check_signature(response)
    return json.loads(response.content), time.monotonic() - started


async def through_asgi(raw: bytes, headers: dict[str, str], *, path: str = SYNC) -> HttpResponse:
    """Return the answer of the application that ASGI servers run."""
    listed = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "path": path,
        "raw_path": path.encode(), "query_string": b"", "root_path": "", "scheme": "http", "client": ["127.0.0.1", 1],
        "server": ["127.0.0.1", 80],
        "headers": [(b"host", b"127.0.0.1"), (b"content-length", str(len(raw)).encode()), *listed],
    }  # fmt: skip
    caller = ApplicationCommunicator(application, scope)
    await caller.send_input({"type": "http.request", "body": raw[:10], "more_body": True})
    await caller.send_input({"type": "http.request", "body": raw[10:], "more_body": False})
    start = await caller.receive_output(60)
    body = await caller.receive_output(60)
    found = {name.decode(): value.decode() for name, value in start["headers"]}
    return HttpResponse(body["body"], status=start["status"], headers=found)


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


@running
async def test_a_quiet_request_is_held_and_answered_without_a_question_to_the_database(
    agent: FakeAgent, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.HOST_SYNC_HOLD_S = 1
    await held(agent)  # looked at in full; from here on it may be quiet
    monkeypatch.setattr(sync_answers, "answer", lambda **_: pytest.fail("the answer asked the database"))

    answer, took_s = await held(agent)

    assert 0.9 < took_s < 15
    assert (answer["desired"], answer["hold_s"], answer["wishes"]) == (None, 1, [])


@running
async def test_a_quiet_request_that_is_held_hears_what_is_wanted(agent: FakeAgent) -> None:
    await held_briefly(agent)
    request = asyncio.create_task(held(agent))
    await until(lambda: bool(waiting.watches.here().waits))

    await on_a_thread(lambda: want(agent))
    answer, _ = await request

    assert [row["lease"] for row in answer["desired"]] == [REFERENCE]


@running
async def test_refusals_and_what_is_too_large_are_problems_with_a_request_id(agent: FakeAgent) -> None:
    nobody = await through_asgi(b"{}" * 8, {"Content-Type": "application/json"})
    large = await through_asgi(b"[" * 300_000, {"Content-Type": "application/json"})

    assert [nobody.status_code, large.status_code] == [401, 401]
    assert nobody.headers["x-request-id"].startswith("req_")
    assert json.loads(nobody.content)["type"].endswith("/unauthenticated")


@running
async def test_an_agent_that_has_gone_is_waited_for_no_longer(agent: FakeAgent) -> None:
    gone = asyncio.get_running_loop().create_future()
    gone.set_result({"type": "http.disconnect"})

    waits = sync_door._held(
        Applied(host_id=agent_pk(agent), boot_no=1, seq=1, have_generation=1, generation=1), gone, 30
    )
    assert await asyncio.wait_for(waits, 10) is None


def agent_pk(agent: FakeAgent) -> UUID:
    pk = ids.decode("host", agent.host)
    assert pk is not None
    return pk


async def held_briefly(agent: FakeAgent) -> None:
    with override_settings(HOST_SYNC_HOLD_S=0):
        await held(agent)


@running
async def test_the_more_are_held_the_longer_but_never_until_a_host_would_be_suspected() -> None:
    with override_settings(HOST_SYNC_HOLD_S=5, HOST_SUSPECT_AFTER_S=15):
        holds = []
        for count in (0, 1_000, 1_250, 2_000, 50_000):
            waits = waiting.watches.here().waits
            waits.clear()
            waits[UUID(int=1)] = [(0, asyncio.get_running_loop().create_future())] * count
            holds.append(waiting.hold_s())
        waits.clear()
        holds.append(waiting.hold_s(crowded=True))

    assert holds == [5, 5, 5, 8, 9, 9]
