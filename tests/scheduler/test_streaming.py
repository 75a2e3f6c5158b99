"""Server-sent events as an ASGI server runs them: nobody loses an event, nobody gets one twice."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import wraps
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.test import AsyncClient, Client

from agents import logs
from agents.models import Workload
from leasing.models import Lease, LeaseEvent
from scheduler import converging, streaming
from tests.apikit.conftest import Caller
from tests.factories import after, end_and_clean, make_host, make_lease, make_tenant, place, price, say

pytestmark = pytest.mark.django_db(transaction=True)
FOLLOWERS = 50
WITHIN_S = 60


def running[**P](scenario: Callable[P, Awaitable[None]]) -> Callable[P, None]:
    """Run an async test in a loop of its own, to its end or a deadline."""

    @wraps(scenario)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.run(asyncio.wait_for(scenario(*args, **kwargs), WITHIN_S))

    return run


@pytest.fixture
def caller() -> Caller:
    make_host(gpus=2)
    price()
    return Caller(make_tenant())


@pytest.fixture
def lease(caller: Caller) -> Lease:
    return make_lease(caller.organization)


async def stream(caller: Caller, path: str, **headers: str) -> AsyncIterator[tuple[int, Any]]:
    """Yield (id, data) of each message until the server ends the stream."""
    sent = {"Authorization": f"Bearer {caller.secret}", "Accept": "text/event-stream", **headers}
    answer: Any = await AsyncClient().get(path, headers=sent)
    assert answer.status_code == 200, answer.content
    assert answer["Content-Type"] == "text/event-stream"
    async for part in answer.streaming_content:
        lines = dict(line.split(": ", 1) for line in part.decode().splitlines() if line and line[0] != ":")
        if lines:
            yield int(lines["id"]), json.loads(lines["data"])


def events_of(lease: Lease) -> str:
    return f"/api/v1/leases/{lease.public_id}/events"


def live_and_end(lease: Lease) -> None:
    place(at=after(1))
    say(lease, "ready", at=after(2))
    converging.converge(at=after(2))
    lease.refresh_from_db()
    end_and_clean(lease, at=after(60))


def numbers(lease: Lease) -> list[int]:
    return list(LeaseEvent.objects.filter(lease=lease).order_by("seq").values_list("seq", flat=True))


@running
async def test_fifty_followers_get_every_event_once_and_the_stream_ends(caller: Caller, lease: Lease) -> None:
    begun = 0

    async def follow() -> list[int]:
        nonlocal begun
        seen = []
        async for number, data in stream(caller, events_of(lease)):
            assert data["seq"] == number
            seen.append(number)
            begun += len(seen) == 1
        return seen

    followers = [asyncio.create_task(follow()) for _ in range(FOLLOWERS)]
    while begun < FOLLOWERS:
        await asyncio.sleep(0.01)
    await sync_to_async(live_and_end)(lease)

    told = await asyncio.gather(*followers)

    assert told == [await sync_to_async(numbers)(lease)] * FOLLOWERS
    assert len(told[0]) >= 5


@running
async def test_who_comes_back_goes_on_where_he_was(caller: Caller, lease: Lease) -> None:
    await sync_to_async(live_and_end)(lease)
    seen: list[int] = []
    while True:  # the connection breaks after every single event
        last = {"Last-Event-ID": str(seen[-1])} if seen else {}
        follower = stream(caller, events_of(lease), **last)
        try:
            seen.append((await anext(follower))[0])
        except StopAsyncIteration:
            break
        finally:
            await follower.aclose()  # type: ignore[attr-defined]

    assert seen == await sync_to_async(numbers)(lease)


def speak(lease: Lease, text: str) -> None:
    workload = Workload.objects.get(reference=lease.public_id)
    offset = logs.next_offsets([workload]).get(workload.pk, 0)
    logs.append(workload=workload, offset=offset, text=text, size=None, at=after(3))


@running
async def test_output_is_followed_to_its_end(caller: Caller, lease: Lease) -> None:
    await sync_to_async(place)(at=after(1))
    await sync_to_async(speak)(lease, "first\n")
    heard: list[tuple[int, str]] = []

    async def follow() -> None:
        async for position, data in stream(caller, f"/api/v1/leases/{lease.public_id}/logs"):
            heard.append((position, data["text"]))

    following = asyncio.create_task(follow())
    while not heard:
        await asyncio.sleep(0.01)
    await sync_to_async(speak)(lease, "zweite Zeile: grün\n")
    while len(heard) < 2:
        await asyncio.sleep(0.01)
    await sync_to_async(end_and_clean)(lease, at=after(60))
    await following

    assert "".join(text for _, text in heard) == "first\nzweite Zeile: grün\n"
    assert heard[-1][0] == len("first\nzweite Zeile: grün\n".encode())


@running
async def test_a_quiet_stream_says_that_it_lives_and_ends_to_be_asked_again(
    caller: Caller, lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming, "COMMENT_EVERY_S", 0.05)
    monkeypatch.setattr(streaming, "LONGEST_S", 0.1)

    parts = [part async for part in streaming.events(lease, after=1)]

    assert set(parts) == {": still here\n\n"}


@running
async def test_a_foreign_lease_is_not_there(lease: Lease) -> None:
    stranger = await sync_to_async(lambda: Caller(make_tenant(name="Others")))()
    sent = {"Authorization": f"Bearer {stranger.secret}", "Accept": "text/event-stream"}

    answer = await AsyncClient().get(events_of(lease), headers=sent)

    assert answer.status_code == 404


@running
async def test_a_position_that_is_none_is_refused(caller: Caller, lease: Lease) -> None:
    sent = {"Authorization": f"Bearer {caller.secret}", "Accept": "text/event-stream", "Last-Event-ID": "-1"}

    answer = await AsyncClient().get(events_of(lease), headers=sent)

    assert answer.status_code == 422
    assert answer.json()["errors"][0]["parameter"] == "Last-Event-ID"


def test_a_process_without_streams_answers_one_page(caller: Caller, lease: Lease) -> None:
    sent = {"Authorization": f"Bearer {caller.secret}", "Accept": "text/event-stream"}

    answer = Client().get(events_of(lease), headers=sent)

    assert answer["Content-Type"] == "application/json"
    assert answer.json()["items"][0]["to_state"] == "pending"
