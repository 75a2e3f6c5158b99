"""Doors for machines that watch: /livez, /readyz and /metrics."""

import secrets

from django.conf import settings
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.http import require_safe
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from apikit import clock
from apikit.problems import plain_problem
from console import measures, readiness

_LOOPBACK = frozenset({"127.0.0.1", "::1"})


@require_safe
def livez(request: HttpRequest) -> HttpResponse:
    """200 as long as this process answers at all. It asks nobody: a restart would not heal the database."""
    return HttpResponse("ok\n", content_type="text/plain")


@require_safe
def readyz(request: HttpRequest) -> HttpResponse:
    """200 when requests can be served, 503 when not. Who may read the metrics sees the parts too."""
    report = readiness.report()
    shown = report if may_watch(request) else {"status": report["status"]}
    return JsonResponse(shown, status=503 if report["status"] == "unavailable" else 200)


@require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    if not may_watch(request):
        return plain_problem(request, 403, "Metrics are for this machine, or for who has METRICS_TOKEN.")
    return HttpResponse(measures.exposition(at=clock.now()), content_type=CONTENT_TYPE_PLAIN_0_0_4)


def may_watch(request: HttpRequest) -> bool:
    """Say whether the caller has METRICS_TOKEN or, if there is none, calls from this machine itself.

    Whatever a proxy passes on comes from this machine too; so nobody who was passed on counts as local.
    """
    if settings.METRICS_TOKEN:
        sent = request.headers.get("Authorization", "").removeprefix("Bearer ")
        return secrets.compare_digest(sent.encode(), settings.METRICS_TOKEN.encode())
    passed_on = any(name in request.headers for name in ("Forwarded", "X-Forwarded-For", "X-Real-Ip", "Via"))
    return request.META.get("REMOTE_ADDR") in _LOOPBACK and not passed_on
