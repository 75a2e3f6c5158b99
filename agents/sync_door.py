"""The sync as an ASGI application of its own: what 2,000 agents ask for every five seconds passes no middleware.

It does what `agents.api.sync` does, with the same functions. Sessions, cookies, forms and pages have no part in it, and
each layer that the framework puts around a request would cost more than the request. `door` is given what counts
requests, since that stands above this app.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, MutableMapping
from functools import partial
from io import BytesIO
from typing import Any

from django.core.handlers.asgi import ASGIRequest
from django.http import HttpResponse

from agents import api, turns, waiting
from agents.gathering import Gatherings
from agents.sync import Applied
from apikit.errors import Unavailable
from apikit.requests import request_id_of
from apikit.strict_json import BODY_LIMIT

type Message = MutableMapping[str, Any]
type Receive = Callable[[], Awaitable[Message]]
type Send = Callable[[Message], Awaitable[None]]
type Count = Callable[[str, str, int, float], None]  # method, route, status, seconds

ROUTE = "agent/v1/sync"
CROWDED_S = 1.0  # where full looks wait for so long, those that are due only by their age are put off
LATE_S = 3600  # for so long at the most

_in_time = Gatherings(api.receive_quiet)
_late = Gatherings(partial(api.receive_quiet, late_s=LATE_S))


def is_for(scope: MutableMapping[str, Any]) -> bool:
    return bool(scope["type"] == "http" and scope["path"] == api.SYNC_PATH and scope["method"] == "POST")


def door(count: Count) -> Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]:
    """Return the application; `count` is called once for each answer."""

    async def application(scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        began = time.perf_counter()
        body = await _body(receive)
        if body is None:
            return  # whoever called has gone
        request = ASGIRequest(dict(scope), BytesIO(body))
        request.request_id = request_id_of(request)  # type: ignore[attr-defined]
        response = await _answer(request, receive)
        if response is None:
            return
        await _send(response, request.request_id, send)  # type: ignore[attr-defined]
        count("POST", ROUTE, response.status_code, time.perf_counter() - began)

    return application


async def _answer(request: ASGIRequest, receive: Receive) -> HttpResponse | None:
    """Return the answer, None if the agent has gone. After the body, what comes is the end of the connection."""
    gone: asyncio.Future[object] = asyncio.ensure_future(receive())
    try:
        return await _answer_unless(gone, request)
    finally:
        gone.cancel()


async def _answer_unless(gone: asyncio.Future[object], request: ASGIRequest) -> HttpResponse | None:
    try:
        received = await _received(gone, request)
    except Unavailable as busy:
        return api.refusal(request, busy)
    if received is None or isinstance(received, HttpResponse):
        return received
    has_moved, hold_s = False, waiting.hold_s(crowded=turns.here().expected_wait_s > CROWDED_S)
    if received.may_be_held:
        held = await _held(received, gone, hold_s)
        if held is None:
            return None
        has_moved = held
    if received.is_answered and not has_moved:
        return api.answer_unmoved(received, hold_s)
    return await waiting.in_pool(api.answer, request, received, hold_s)


async def _received(gone: asyncio.Future[object], request: ASGIRequest) -> Applied | HttpResponse | None:
    """Take the request in: with many others if it says nothing new, and else in its turn. None: the agent has gone."""
    mine = turns.here()
    late = mine.expected_wait_s > CROWDED_S
    quickly = await (_late if late else _in_time).here().take(request, gone)
    if quickly is not None or gone.done():
        return quickly
    if not await mine.begin(gone):
        return None
    return await turns.taken(waiting.in_pool(api.receive_in_full, request), mine)


async def _held(received: Applied, gone: asyncio.Future[object], hold_s: int) -> bool | None:
    """Wait until something is wanted or the hold is over; return whether it has moved, None if the agent has gone."""
    wait = asyncio.ensure_future(
        waiting.moved(host_id=received.host_id, generation=received.generation, within_s=hold_s)
    )
    try:
        await asyncio.wait((wait, gone), return_when=asyncio.FIRST_COMPLETED)
        return wait.result() if wait.done() else None
    finally:
        wait.cancel()


async def _body(receive: Receive) -> bytes | None:
    """Return the body, one byte over the limit at the most: the reader refuses what is longer."""
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if not message.get("more_body", False) or size > BODY_LIMIT:
            return b"".join(parts)


async def _send(response: HttpResponse, request_id: str, send: Send) -> None:
    headers = [(name.lower().encode("latin-1"), str(value).encode("latin-1")) for name, value in response.items()]
    headers += [
        (b"x-request-id", request_id.encode("latin-1")),
        (b"content-length", str(len(response.content)).encode()),
    ]
    await send({"type": "http.response.start", "status": response.status_code, "headers": headers})
    await send({"type": "http.response.body", "body": response.content})
