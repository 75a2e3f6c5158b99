"""One call of the API: how it becomes a request, when it is tried again, and how its answer is read."""

from __future__ import annotations

import json
import random
import re
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import httpx2

from gpuyard.errors import BY_SLUG, ApiError, Sent, Unavailable, UnexpectedAnswer, Unreachable, slug_of
from gpuyard.json_object import Object
from gpuyard.transport import Emit, Flow, Send, Sleep, Stream

# 502 and 504 are what a proxy says of a connection that broke behind it.
_TRY_AGAIN = frozenset({429, 502, 503, 504})
_JITTER = random.SystemRandom()
_BETWEEN_LOOKS_S = 2.0  # for a server that is away


@dataclass(frozen=True)
class Operation:
    """One operation of the API: its operationId, method, and path below /api/v1 with {names} for ids."""

    id: str
    method: str
    path: str


@dataclass(frozen=True)
class Call[T: Object | str | bytes]:
    """What one call fills in. kind: the class of the answer (of each item, for a list); str for a text.

    wait_s: how long the server may hold the answer back. Members of `query` and `body` that are None are left out.
    """

    kind: type[T]
    ids: tuple[str, ...] = ()
    query: Mapping[str, Any] = field(default_factory=dict)
    body: Mapping[str, Any] | None = None
    headers: Mapping[str, str | None] = field(default_factory=dict)
    wait_s: int = 0


@dataclass(frozen=True)
class Manner:
    """How a client behaves on every call.

    tries: all tries, the first included. base_s, cap_s: full jitter draws a pause of 0 to min(cap, base * 2^n) seconds.
    longest_pause_s: a server that asks for a longer pause is not waited for; the error says how long it asked.
    """

    timeout_s: float = 30.0
    tries: int = 4
    base_s: float = 0.5
    cap_s: float = 8.0
    longest_pause_s: float = 60.0
    dry_run: bool = False
    idempotency_key: str | None = None


def ask[T: Object | str | bytes](operation: Operation, call: Call[T], manner: Manner) -> Flow[T]:
    """Make the call and return its answer as call.kind. Raises ApiError, Unreachable or UnexpectedAnswer."""
    response = yield from exchange(operation, call, manner)
    if issubclass(call.kind, str):
        return call.kind(response.text)
    if issubclass(call.kind, bytes):
        return call.kind(response.content)
    return call.kind(_object(response), response.headers.get("ETag"))


def exchange(operation: Operation, call: Call[Any], manner: Manner) -> Flow[httpx2.Response]:
    """Send until it is answered or the tries are used up; every try of one call carries the same Idempotency-Key."""
    step = _request(operation, call, manner)
    for attempt in range(1, manner.tries + 1):
        ceiling = min(manner.cap_s, manner.base_s * 2 ** (attempt - 1))
        pause_s = _JITTER.uniform(0, ceiling)
        try:
            response: httpx2.Response = yield step
        except httpx2.TransportError as broken:
            if attempt == manner.tries or isinstance(broken, httpx2.UnsupportedProtocol | httpx2.LocalProtocolError):
                said = str(broken) or type(broken).__name__
                raise Unreachable(f"No answer to {step.method} {step.path} at {attempt} tries: {said}") from broken
        else:
            if response.status_code < 400:
                return response
            error = _error(response, step, call)
            # A broken connection may leave our first try running on the server: the same key will find its answer.
            again = error.status in _TRY_AGAIN or error.slug == "idempotency-in-progress"
            pause_s += error.retry_after_s or 0
            if not again or attempt == manner.tries or (error.retry_after_s or 0) > manner.longest_pause_s:
                raise error
        yield Sleep(pause_s)
    raise AssertionError("tries is at least 1")


def patiently[T](call: Callable[[], Flow[T]], *, patience_s: float) -> Flow[T]:
    """Make a call that may be made again; wait for a server that is away, at most patience_s seconds in all.

    For following: whoever follows for days must live through a release of the server.
    """
    began, paused_s = None, 0.0
    while True:
        try:
            return (yield from call())
        except (Unreachable, Unavailable):
            now = time.monotonic()
            began = now if began is None else began
            if max(now - began, paused_s) >= patience_s:
                raise
            yield Sleep(_BETWEEN_LOOKS_S)
            paused_s += _BETWEEN_LOOKS_S


def pages[T: Object](operation: Operation, call: Call[T], manner: Manner) -> Stream[T]:
    """Emit every item of a list, page after page."""
    query = dict(call.query)
    while True:
        page = Call(Object, call.ids, query, None, call.headers)
        response = yield from exchange(operation, page, manner)
        answer = _object(response)
        for item in answer.get("items", []):
            yield Emit(call.kind(item))
        cursor = answer.get("next") or answer.get("next_cursor") or _next_cursor(response)
        if not cursor:
            return
        query["cursor"] = cursor


def _request(operation: Operation, call: Call[Any], manner: Manner) -> Send:
    ids = iter(call.ids)
    path = re.sub(r"\{\w+\}", lambda _: quote(next(ids), safe=""), operation.path)
    query = [(name, _text(value)) for name, value in call.query.items() if value is not None]
    writes = operation.method not in ("GET", "HEAD")
    if writes and manner.dry_run:
        query.append(("dry_run", "1"))
    headers = {name: value for name, value in call.headers.items() if value is not None}
    content = None
    if call.body is not None:
        body = {name: value for name, value in call.body.items() if value is not None}
        content = json.dumps(body, allow_nan=False).encode()
        headers["Content-Type"] = "application/json"
    if operation.method == "POST":
        headers["Idempotency-Key"] = manner.idempotency_key or str(uuid.uuid4())
    return Send(operation.method, path, tuple(query), content, headers, manner.timeout_s + call.wait_s)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "1" if value else "0"
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _object(response: httpx2.Response) -> dict[str, Any]:
    if not response.content:
        return {}
    try:
        answer = response.json()
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        kind = response.headers.get("Content-Type", "no type")
        raise UnexpectedAnswer(
            f"{response.request.url} answered {response.status_code} with {kind}, not with this API."
        )
    return answer


def _error(response: httpx2.Response, step: Send, call: Call[Any]) -> ApiError:
    try:
        problem = response.json()
    except ValueError:
        problem = None
    if not isinstance(problem, dict):
        problem = {"title": response.reason_phrase, "status": response.status_code}
    kind = BY_SLUG.get(slug_of(problem), ApiError)
    return kind(
        problem,
        status=response.status_code,
        request_id=problem.get("request_id") or response.headers.get("X-Request-Id"),
        retry_after_s=_retry_after_s(response.headers.get("Retry-After")),
        sent=Sent(step.method, str(response.request.url), dict(step.query), call.body),
    )


def _retry_after_s(text: str | None) -> float | None:
    """Return the seconds a Retry-After header asks for (RFC 9110: seconds or a date), or None if it says nothing."""
    if text is None:
        return None
    if text.isascii() and text.isdecimal():
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except ValueError:
        return None


def _next_cursor(response: httpx2.Response) -> str | None:
    url = response.links.get("next", {}).get("url", "")
    return parse_qs(urlsplit(url).query).get("cursor", [None])[0]
