"""The doors of webhooks, without any delivery."""

import socket
import ssl
import threading
from datetime import timedelta
from typing import Any

import pytest

from apikit import clock, outbound
from audit import ids
from outbox import delivering, endpoints, messages, relaying
from outbox.models import Delivery, DeliveryState, Endpoint
from tests.apikit.conftest import Caller
from tests.factories import make_organization

HOOKS = "/api/v1/webhooks"
pytestmark = [pytest.mark.urls("tests.outbox.doors"), pytest.mark.django_db]


def slug(answer: Any) -> str:
    return str(answer.json()["type"]).rpartition("/")[2]


def register(caller: Caller) -> Any:
    answer = caller.post(HOOKS, {"url": "https://hook.test/in", "events": ["lease.ended"]})
    assert answer.status_code == 201, answer.content
    return answer.json()


@pytest.mark.parametrize(
    "url",
    [
        "https://127.0.0.1/x",
        "https://[64:ff9b::a9fe:a9fe]/",
        "https://good.example@169.254.169.254/",
        "http://hook.test/",
    ],
)
def test_a_forbidden_url_is_refused_at_registration(caller: Caller, url: str) -> None:
    answer = caller.post(HOOKS, {"url": url, "events": ["lease.ended"]})

    assert (answer.status_code, slug(answer)) == (422, "validation-error")
    assert (answer.json()["errors"][0]["pointer"], answer.json()["errors"][0]["code"]) == ("/url", "forbidden_url")
    assert not Endpoint.objects.exists()


def test_a_name_that_leads_inside_is_refused_at_registration(caller: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    inside = outbound.Wire(resolve=lambda _: ["1.1.1.1", "10.0.0.1"], connect=_no_call, tls=ssl.create_default_context)
    monkeypatch.setattr(outbound, "INTERNET", inside)

    answer = caller.post(HOOKS, {"url": "https://hook.test/", "events": ["lease.ended"]})

    assert (answer.status_code, answer.json()["errors"][0]["code"]) == (422, "forbidden_url")


def test_a_name_server_that_is_silent_holds_nobody_up(caller: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()

    def resolve(_: str) -> list[str]:
        release.wait(30)
        return []

    monkeypatch.setattr(outbound, "LOOKUP_S", 0.05)
    monkeypatch.setattr(outbound, "INTERNET", outbound.Wire(resolve, _no_call, ssl.create_default_context))

    register(caller)
    release.set()


def _no_call(address: str, timeout_s: float) -> socket.socket:
    raise AssertionError(f"{address} was called")


def test_an_unknown_event_is_refused_with_the_nearest(caller: Caller) -> None:
    answer = caller.post(HOOKS, {"url": "https://hook.test/", "events": ["lease.ended", "lease.end"]})

    found = answer.json()["errors"][0]
    assert (answer.status_code, found["pointer"], found["code"]) == (422, "/events/1", "unknown_event")
    assert "lease.ended" in found["nearest"]


def test_a_claim_that_ran_out_belongs_to_somebody_else(caller: Caller) -> None:
    register(caller)
    at = clock.now()
    messages.post(topic="lease.ended", key="k", payload={}, organization_id=caller.organization.pk, at=at)
    relaying.relay_due(at=at)
    at, first, second = clock.now(), ids.new(), ids.new()
    assert len(delivering.claim(token=first, at=at, limit=9)) == 1
    assert delivering.claim(token=second, at=at + timedelta(seconds=10), limit=9) == []
    [pk] = delivering.claim(token=second, at=at + timedelta(seconds=delivering.CLAIM_S), limit=9)

    late = delivering.Outcome(200, "")
    assert not delivering.apply(delivery_id=pk, token=first, outcome=late, at=at)
    assert Delivery.objects.get().state == DeliveryState.PENDING
    assert delivering.apply(delivery_id=pk, token=second, outcome=late, at=at)
    assert Delivery.objects.get().attempts == 2


def test_another_organizations_webhook_is_not_there(caller: Caller) -> None:
    hook = register(caller)
    other = Caller(make_organization())
    place = f"{HOOKS}/{hook['id']}"

    answers = [
        other.get(place),
        other.send("PATCH", place, {"enabled": False}, If_Match='"1"'),
        other.send("DELETE", place),
        other.post(f"{place}/actions/test", {}),
        other.post(f"{place}/actions/rotate", {}),
        other.get(f"{place}/deliveries"),
    ]

    assert {(answer.status_code, slug(answer)) for answer in answers} == {(404, "not-found")}


def test_there_is_an_end_to_how_many(caller: Caller) -> None:
    for _ in range(endpoints.ENDPOINTS_LIMIT):
        register(caller)

    answer = caller.post(HOOKS, {"url": "https://hook.test/", "events": ["lease.ended"]})

    assert (answer.status_code, answer.json()["errors"][0]["code"]) == (422, "too_many")


def test_a_payload_that_is_too_large_is_a_bug_of_the_sender(caller: Caller) -> None:
    with pytest.raises(ValueError, match="over 20000 bytes"):
        messages.post(topic="t", key="k", payload={"x": "y" * 20_000}, organization_id=None, at=clock.now())
