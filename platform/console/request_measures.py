"""Each request is counted by its route and leaves one line in the log, with the request's and the lease's id."""

import re
import time
from collections.abc import Awaitable, Callable
from inspect import iscoroutinefunction, markcoroutinefunction
from typing import cast

import structlog
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from prometheus_client import Counter, Histogram

REQUESTS = Counter("gpuyard_requests", "Requests answered", ["method", "route", "status"])
# Upper bounds in seconds: the aims of RELIABILITY.md lie between 10 ms and 3 s; long polls end at 30 s.
SECONDS = Histogram(
    "gpuyard_request_seconds", "Time to the answer", ["method", "route"],
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 3, 10, 35),
)  # fmt: skip
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_LEASE = re.compile(r"/leases/(lease_[0-9a-z]{26})(?:/|$)")
# Every agent calls every few seconds, and probes and scrapers do: counted, but a line each would bury the rest.
_COUNTED_ONLY = frozenset({"agent/v1/sync", "livez", "readyz", "metrics"})

log = structlog.get_logger("gpuyard.requests")

type Answer = HttpResponseBase
type Next = Callable[[HttpRequest], Answer] | Callable[[HttpRequest], Awaitable[Answer]]


class RequestMeasures:
    """Middleware, next to the outermost. The route is the pattern, never the path, so labels stay few."""

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
        begun = _begin(request)
        return _measured(request, cast(Answer, self.get_response(request)), begun)

    async def _call_async(self, request: HttpRequest) -> Answer:
        begun = _begin(request)
        return _measured(request, await cast(Awaitable[Answer], self.get_response(request)), begun)


def _begin(request: HttpRequest) -> float:
    lease = _LEASE.search(request.path_info)
    if lease:
        structlog.contextvars.bind_contextvars(lease_id=lease[1])
    return time.perf_counter()


def count(method: str, route: str, status: int, seconds: float) -> None:
    """Count one answered request; `seconds` is how long its answer took."""
    REQUESTS.labels(method, route, status).inc()
    SECONDS.labels(method, route).observe(seconds)


def _measured(request: HttpRequest, response: Answer, begun: float) -> Answer:
    method = request.method if request.method in _METHODS else "other"
    route = str(request.resolver_match.route) if request.resolver_match else "none"
    seconds = time.perf_counter() - begun
    count(method, route, response.status_code, seconds)
    if route not in _COUNTED_ONLY:
        log.info("request", method=method, route=route, status=response.status_code, ms=round(seconds * 1000, 1))
    return response
