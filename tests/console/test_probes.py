"""/livez, /readyz, /metrics: what machines that watch are told, and who is told it."""

import json
import logging
import logging.config
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings
from django.test import Client
from prometheus_client.parser import text_string_to_metric_families

from agents.models import Alarm
from apikit import clock
from billing import reconcile
from billing.reconcile import Finding
from console import invariants, readiness
from console.models import InvariantCheck
from scheduler import loop_progress
from tests.factories import NOON, make_active_lease, make_host, make_lease, make_zone, price

pytestmark = pytest.mark.django_db
LATER = NOON + timedelta(minutes=5)


@pytest.fixture(autouse=True)
def _later() -> Iterator[None]:
    with clock.frozen(LATER):
        yield


def note_all(*, at: Any = LATER, error: str | None = None) -> None:
    for name in settings.LOOPS:
        loop_progress.note(name=name, started_at=at, ended_at=at, error=error)


def read(client: Client, **headers: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Return {(name, labels): value} of /metrics."""
    answer = client.get("/metrics", headers=headers)
    assert answer.status_code == 200, answer.content
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(answer.content.decode())
        for sample in family.samples
    }


def test_livez_asks_no_database(client: Client, django_assert_num_queries: Any) -> None:
    with django_assert_num_queries(0):
        answer = client.get("/livez")

    assert (answer.status_code, answer.content) == (200, b"ok\n")


def test_readyz_is_ready_when_every_loop_has_run(client: Client) -> None:
    note_all()

    answer = client.get("/readyz")

    assert (answer.status_code, answer.json()["status"]) == (200, "ready")


def test_a_loop_that_stands_still_is_named_and_takes_no_server_out(client: Client) -> None:
    note_all()
    loop_progress.note(name="scheduler.converge", started_at=LATER, ended_at=LATER - timedelta(seconds=40), error=None)

    answer = client.get("/readyz")

    assert answer.status_code == 200
    assert answer.json() == {
        "status": "degraded", "database": "ok", "broker": "none", "late_loops": ["scheduler.converge"],
    }  # fmt: skip


def test_a_loop_that_only_ever_failed_is_late() -> None:
    note_all(error="ValueError: broken")

    assert all(loop.late and loop.last_error for loop in readiness.loops(at=LATER))


def test_a_broker_that_does_not_answer_is_degraded(client: Client, settings: Any) -> None:
    note_all()
    settings.CELERY_BROKER_URL = "redis://127.0.0.1:1/0"

    assert client.get("/readyz").json()["broker"] == "ConnectionError"
    assert client.get("/readyz").json()["status"] == "degraded"


def test_readyz_is_503_without_a_database(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def away() -> None:
        from django.db import OperationalError

        raise OperationalError("connection refused: password=secret")

    monkeypatch.setattr(clock, "now", away)

    answer = client.get("/readyz")

    assert (answer.status_code, answer.json()["status"]) == (503, "unavailable")
    assert b"secret" not in answer.content


@pytest.mark.parametrize("passed_on", ["X-Forwarded-For", "Forwarded", "Via", "X-Real-Ip"])
def test_who_comes_through_a_proxy_is_not_of_this_machine(client: Client, passed_on: str) -> None:
    assert client.get("/metrics", headers={passed_on: "203.0.113.9"}).status_code == 403
    assert client.get("/readyz", headers={passed_on: "203.0.113.9"}).json().keys() == {"status"}


def test_another_machine_needs_the_token(client: Client, settings: Any) -> None:
    assert client.get("/metrics", REMOTE_ADDR="203.0.113.9").status_code == 403
    settings.METRICS_TOKEN = "a-long-token"

    assert client.get("/metrics", headers={"Authorization": "Bearer another"}).status_code == 403
    assert client.get("/metrics").status_code == 403
    right = client.get("/metrics", headers={"Authorization": "Bearer a-long-token"}, REMOTE_ADDR="203.0.113.9")
    assert right.status_code == 200


def test_metrics_count_what_there_is(client: Client) -> None:
    make_zone()
    price()
    make_host(gpus=2)
    make_active_lease()
    make_lease(request="A100_80G x4")
    Alarm.objects.create(kind="silence", subject="x", detail="many", opened_at=NOON)
    note_all(at=LATER - timedelta(seconds=7))

    found = read(client)

    assert found["gpuyard_leases", (("state", "active"),)] == 1
    assert found["gpuyard_leases", (("state", "pending"),)] == 1
    assert found["gpuyard_queue_oldest_seconds", ()] == 300
    assert found["gpuyard_hosts", (("scheduling", "open"), ("simulated", "true"), ("state", "online"))] == 1
    assert found["gpuyard_devices", (("health", "healthy"), ("model", "A100_80G"), ("simulated", "true"))] == 2
    assert found["gpuyard_alarms_open", (("kind", "silence"),)] == 1
    assert found["gpuyard_loop_success_age_seconds", (("loop", "scheduler.converge"),)] == 7
    assert found["gpuyard_outbox_messages", ()] > 0


def test_the_number_of_queries_does_not_grow(client: Client, django_assert_max_num_queries: Any) -> None:
    make_zone()
    price()
    make_host(gpus=8)
    for _ in range(4):
        make_active_lease()

    with django_assert_max_num_queries(14):
        client.get("/metrics")


def test_requests_are_counted_by_route_and_not_by_path(client: Client) -> None:
    label = (("method", "GET"), ("route", "api/v1/leases/<str:id>"), ("status", "401"))
    before = read(client).get(("gpuyard_requests_total", label), 0)

    client.get("/api/v1/leases/lease_00000000000000000000000001")
    client.get("/api/v1/leases/nonsense")

    assert read(client)["gpuyard_requests_total", label] == before + 2


def test_findings_of_the_books_are_kept_and_measured(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    assert invariants.check(at=NOON) == 0
    name = next(iter(reconcile.checks()))
    broken = [Finding(name, str(row), "off by one") for row in range(12)]
    monkeypatch.setattr(reconcile, "findings", lambda: broken)

    assert invariants.check(at=LATER) == 12

    kept = InvariantCheck.objects.get(name=name)
    assert (kept.findings, len(kept.examples)) == (12, invariants.EXAMPLES)
    assert read(client)["gpuyard_invariant_findings", (("invariant", name),)] == 12


def test_a_line_of_the_log_is_json_with_the_ids_of_request_and_lease(client: Client) -> None:
    lines: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(self.format(record))

    keeper = Keep()
    written = dict(settings.LOGGING["formatters"]["lines"])
    keeper.setFormatter(logging.config.DictConfigurator({"version": 1}).configure_formatter(written))
    logging.getLogger("gpuyard.requests").addHandler(keeper)
    try:
        client.get("/api/v1/leases/lease_00000000000000000000000001", headers={"X-Request-Id": "mine-1"})
    finally:
        logging.getLogger("gpuyard.requests").removeHandler(keeper)

    line = json.loads(lines[-1])
    assert line["event"] == "request"
    assert line["request_id"] == "mine-1"
    assert line["lease_id"] == "lease_00000000000000000000000001"
    assert (line["route"], line["status"], line["level"]) == ("api/v1/leases/<str:id>", 401, "info")
