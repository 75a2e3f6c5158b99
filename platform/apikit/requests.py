"""What every request gets: an id that is echoed, logged and shown in problems; and no HTML from the API's paths."""

import re
import secrets
from collections.abc import Awaitable, Callable
from inspect import iscoroutinefunction, markcoroutinefunction
from typing import cast

import structlog
from django.core.exceptions import DisallowedHost
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils.cache import patch_vary_headers

from apikit import language
from apikit.problems import CONTENT_TYPE, plain_problem

API_PATHS = ("/api", "/agent", "/payments")
ADDRESS_LIMIT = 8000  # bytes of path and query
_SAFE_ID = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)
_TRACEPARENT = re.compile(r"00-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}", re.ASCII)  # W3C Trace Context

type Answer = HttpResponseBase
type Next = Callable[[HttpRequest], Answer] | Callable[[HttpRequest], Awaitable[Answer]]


class RequestIdMiddleware:
    """Outermost middleware: gives the request its id, and turns errors of the framework under the API's paths
    (no route, unknown host, a bug) into problem documents."""

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Next) -> None:
        self.get_response = get_response
        self._is_async = iscoroutinefunction(get_response)
        if self._is_async:
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> Answer | Awaitable[Answer]:
        if self._is_async:
            return self._call_async(request)
        early = _begin(request)
        return _finish(request, early or cast(Answer, self.get_response(request)))

    async def _call_async(self, request: HttpRequest) -> Answer:
        early = _begin(request)
        return _finish(request, early or await cast(Awaitable[Answer], self.get_response(request)))


def request_id_of(request: HttpRequest) -> str:
    """Return the request's id: the caller's X-Request-Id where it is safe to repeat, or one of ours."""
    sent = request.headers.get("X-Request-Id", "")
    return sent if _SAFE_ID.fullmatch(sent) else f"req_{secrets.token_hex(13)}"


def _begin(request: HttpRequest) -> Answer | None:
    request.request_id = request_id_of(request)  # type: ignore[attr-defined]
    # Said for every request: a thread of the web server still has the language of the one before.
    wanted = request.headers.get("Accept-Language", "") if _is_api(request) else ""
    language.speak(language.choose(wanted))
    structlog.contextvars.clear_contextvars()
    structlog.contextvars.bind_contextvars(request_id=request.request_id)  # type: ignore[attr-defined]
    trace = _TRACEPARENT.fullmatch(request.headers.get("traceparent", ""))
    if trace:
        structlog.contextvars.bind_contextvars(trace_id=trace[1])
    if _is_api(request) and len(request.get_full_path()) > ADDRESS_LIMIT:
        return plain_problem(request, 414, f"At most {ADDRESS_LIMIT} bytes of path and query are read.")
    return _foreign_host(request) if _is_api(request) else None


def _foreign_host(request: HttpRequest) -> Answer | None:
    """Refuse a Host that is not ours, before Django does so with a stack trace in the log for every scanner."""
    try:
        request.get_host()
    except DisallowedHost:
        return plain_problem(request, 400, "This host name is not served here.")
    return None


def _finish(request: HttpRequest, response: Answer) -> Answer:
    if response.status_code >= 400 and _is_api(request) and response.get("Content-Type") != CONTENT_TYPE:
        problem = plain_problem(request, response.status_code)
        for name in ("Allow", "Retry-After", "WWW-Authenticate"):
            if name in response:
                problem[name] = response[name]
        response = problem
    if _is_api(request):
        response["Content-Language"] = language.current()
        patch_vary_headers(response, ["Accept-Language"])
    response["X-Request-Id"] = request.request_id  # type: ignore[attr-defined]
    return response


def _is_api(request: HttpRequest) -> bool:
    return any(request.path_info == path or request.path_info.startswith(path + "/") for path in API_PATHS)
