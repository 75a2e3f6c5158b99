"""Webhooks from the message to the receiver: at least once, signed, retried, and never to a forbidden address."""

import base64
import hashlib
import hmac
import json
import threading
import time
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction

from apikit import clock, outbound
from audit import ids
from outbox import delivering, endpoints, messages, relaying
from outbox.models import Delivery, DeliveryState, Endpoint, Message
from tenants.models import Organization
from tests.apikit.conftest import Caller
from tests.apikit.tls_receiver import Receiver
from tests.factories import make_organization

HOOKS = "/api/v1/webhooks"
pytestmark = [pytest.mark.urls("tests.outbox.doors"), pytest.mark.django_db(transaction=True)]


def slug(answer: Any) -> str:
    return str(answer.json()["type"]).rpartition("/")[2]


def register(caller: Caller, url: str = "https://hook.test/in", events: tuple[str, ...] = ("lease.ended",)) -> Any:
    answer = caller.post(HOOKS, {"url": url, "events": list(events)})
    assert answer.status_code == 201, answer.content
    return answer.json()


def post(organization: Organization, topic: str = "lease.ended", key: str | None = None) -> None:
    payload = {"id": "lease_1", "version": 7}
    messages.post(
        topic=topic, key=key or str(ids.new()), payload=payload, organization_id=organization.pk, at=clock.now()
    )


def deliver() -> None:
    relaying.relay_due(at=clock.now())
    delivering.deliver_due(at=clock.now(), wait_s=None)


def due_now() -> None:
    Delivery.objects.filter(state=DeliveryState.PENDING).update(due_at=clock.now())


def test_a_message_arrives_signed_as_standard_webhooks_say(caller: Caller, receiver: Receiver) -> None:
    hook = register(caller)
    post(caller.organization)
    message = Message.objects.get()

    deliver()

    head, _, body = receiver.received[0].decode().partition("\r\n\r\n")
    headers = dict(line.split(": ", 1) for line in head.split("\r\n")[1:])
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.{body}".encode()
    key = base64.b64decode(hook["secret"].removeprefix("whsec_"))
    expected = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    assert headers["webhook-signature"] == f"v1,{expected}"
    assert headers["webhook-id"] == message.public_id
    assert abs(int(headers["webhook-timestamp"]) - clock.now().timestamp()) < 10
    assert json.loads(body)["type"] == "lease.ended"
    assert json.loads(body)["data"] == {"id": "lease_1", "version": 7}
    assert Delivery.objects.get().state == DeliveryState.DELIVERED


def test_only_subscribers_of_the_same_organization_are_told(caller: Caller, receiver: Receiver) -> None:
    register(caller)
    other = Caller(make_organization())
    register(other)
    register(caller, events=("lease.active",))

    post(caller.organization)
    post(caller.organization, topic="lease.pending")
    deliver()

    assert len(receiver.received) == 1
    assert Delivery.objects.get().endpoint.organization == caller.organization


def test_a_message_is_said_once_and_only_if_its_transaction_commits(caller: Caller, receiver: Receiver) -> None:
    register(caller)
    post(caller.organization, key="k")
    post(caller.organization, key="k")
    with transaction.atomic():
        post(caller.organization, key="undone")
        transaction.set_rollback(True)

    for _ in range(3):
        deliver()

    assert len(receiver.received) == 1


def test_two_relays_at_once_make_no_doubles(caller: Caller, receiver: Receiver) -> None:
    register(caller)
    for _ in range(50):
        post(caller.organization)

    def relay() -> None:
        while relaying.relay_due(at=clock.now(), limit=7):
            pass
        connection.close()

    threads = [threading.Thread(target=relay) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert Delivery.objects.count() == 50
    assert Delivery.objects.values("message_id").distinct().count() == 50


def test_a_failed_try_is_repeated_later_and_later_with_the_same_id(caller: Caller, receiver: Receiver) -> None:
    register(caller)
    post(caller.organization)
    receiver.answer = b"HTTP/1.1 500 Oops\r\n\r\n"
    waits = []
    relaying.relay_due(at=clock.now())
    for _ in delivering.RETRY_AFTER_S:
        before = clock.now()
        delivering.deliver_due(at=before, wait_s=None)
        waits.append(round((Delivery.objects.get().due_at - before).total_seconds()))
        assert delivering.deliver_due(at=clock.now(), wait_s=None) == 0
        due_now()

    assert tuple(waits) == delivering.RETRY_AFTER_S
    delivering.deliver_due(at=clock.now(), wait_s=None)
    last = Delivery.objects.get()
    assert (last.state, last.attempts, last.last_status) == (DeliveryState.FAILED, 9, 500)
    ids_sent = {request.partition(b"webhook-id: ")[2].partition(b"\r\n")[0] for request in receiver.received}
    assert len(receiver.received) == 9
    assert len(ids_sent) == 1


def test_a_failed_delivery_is_replayed_on_request(caller: Caller, receiver: Receiver) -> None:
    hook = register(caller)
    post(caller.organization)
    deliver()
    Delivery.objects.update(state=DeliveryState.FAILED, delivered_at=None, attempts=9)
    place = f"{HOOKS}/{hook['id']}/deliveries"
    listed = caller.get(f"{place}?state=failed").json()["items"][0]
    assert listed["actions"] == ["replay"]

    answer = caller.post(f"{place}/{listed['id']}/actions/replay", {})
    delivering.deliver_due(at=clock.now(), wait_s=None)

    assert (answer.status_code, answer.json()["state"]) == (200, "pending")
    assert caller.get(f"{place}/{listed['id']}").json()["state"] == "delivered"
    assert len(receiver.received) == 2


def test_gone_disables_the_endpoint_and_tells_the_others(caller: Caller, receiver: Receiver) -> None:
    gone = register(caller)
    other = register(caller, url="https://redirect.test/x", events=("webhook.disabled",))
    receiver.answers = {"hook.test": b"HTTP/1.1 410 Gone\r\n\r\n"}
    for _ in range(2):
        post(caller.organization)

    deliver()
    deliver()

    shown = caller.get(f"{HOOKS}/{gone['id']}").json()
    assert (shown["enabled"], shown["actions"]) == (False, ["rotate"])
    assert set(Delivery.objects.filter(endpoint__url__contains="hook.test").values_list("state", flat=True)) == {
        "failed"
    }
    told = Delivery.objects.get(topic="webhook.disabled")
    assert (told.endpoint.public_id, told.state) == (other["id"], DeliveryState.DELIVERED)
    assert slug(caller.post(f"{HOOKS}/{gone['id']}/actions/test", {})) == "invalid-transition"
    enabled = caller.send("PATCH", f"{HOOKS}/{gone['id']}", {"enabled": True}, If_Match='"2"')
    assert enabled.json()["enabled"] is True


def test_a_rotated_secret_signs_beside_the_old_one_for_the_overlap(caller: Caller, receiver: Receiver) -> None:
    hook = register(caller)
    new = caller.post(f"{HOOKS}/{hook['id']}/actions/rotate", {"overlap_s": 100}).json()["secret"]
    endpoint, at = Endpoint.objects.get(), clock.now()

    assert endpoints.signing_secrets(endpoint, at=at + timedelta(seconds=90)) == [new, hook["secret"]]
    assert endpoints.signing_secrets(endpoint, at=at + timedelta(seconds=110)) == [new]
    caller.post(f"{HOOKS}/{hook['id']}/actions/test", {})
    delivering.deliver_due(at=clock.now(), wait_s=None)
    signatures = receiver.received[0].partition(b"webhook-signature: ")[2].partition(b"\r\n")[0].split(b" ")
    assert len(signatures) == 2
    assert hook["secret"] not in str(list(Endpoint.objects.values()))


def test_a_test_call_is_a_delivery_that_can_be_followed(caller: Caller, receiver: Receiver) -> None:
    hook = register(caller)

    answer = caller.post(f"{HOOKS}/{hook['id']}/actions/test", {})
    delivering.deliver_due(at=clock.now(), wait_s=None)

    assert answer.status_code == 201
    assert caller.get(answer["Location"]).json()["state"] == "delivered"
    assert b"webhook.test" in receiver.received[0]


def test_a_name_that_turns_to_loopback_gets_no_byte(caller: Caller, receiver: Receiver, monkeypatch: Any) -> None:
    world = {"rebind.test": ["93.184.216.34"]}
    monkeypatch.setattr(outbound, "INTERNET", receiver.wire(world))
    register(caller, url="https://rebind.test/")
    world["rebind.test"] = ["127.0.0.1"]
    post(caller.organization)

    deliver()

    delivery = Delivery.objects.get()
    assert (receiver.connected, receiver.received) == ([], [])
    assert (delivery.state, delivery.last_status) == (DeliveryState.PENDING, None)
    assert "public Internet" in delivery.last_error


def test_a_redirect_counts_as_a_failure_and_leads_nowhere(caller: Caller, receiver: Receiver) -> None:
    register(caller, url="https://redirect.test/")
    receiver.answer = b"HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/\r\n\r\n"
    post(caller.organization)

    deliver()

    assert receiver.connected == ["93.184.216.35"]
    assert Delivery.objects.get().last_status == 302


def test_a_receiver_that_hangs_delays_nobody_else(caller: Caller, receiver: Receiver) -> None:
    slow = Receiver()
    other = Caller(make_organization())
    register(caller)
    register(other, url="https://redirect.test/")
    with slow:
        slow.hang = threading.Event()
        fast_wire, slow_wire = outbound.INTERNET, slow.wire({"hook.test": ["93.184.216.34"]})

        def connect(address: str, timeout_s: float) -> Any:
            return (slow_wire if address.endswith(".34") else fast_wire).connect(address, timeout_s)

        def tls() -> Any:
            context = fast_wire.tls()
            context.load_verify_locations(str(slow._pem))
            return context

        outbound.INTERNET = outbound.Wire(resolve=fast_wire.resolve, connect=connect, tls=tls)
        for _ in range(5):
            post(caller.organization)
            post(other.organization)
        relaying.relay_due(at=clock.now())
        started = time.monotonic()
        while Delivery.objects.filter(endpoint__url__contains="redirect", state="delivered").count() < 5:
            delivering.deliver_due(at=clock.now(), wait_s=0.2)
            assert time.monotonic() - started < 10
        assert not Delivery.objects.filter(endpoint__url__contains="hook", state="delivered").exists()
        slow.hang.set()
        while not Delivery.objects.filter(endpoint__url__contains="hook", state="delivered").exists():
            assert time.monotonic() - started < 15
            delivering.deliver_due(at=clock.now(), wait_s=0.1)
        while Delivery.objects.filter(claim_token__isnull=False).exists():
            assert time.monotonic() - started < 20


def test_a_removed_webhook_is_told_nothing_more(caller: Caller, receiver: Receiver) -> None:
    hook = register(caller)
    post(caller.organization)
    relaying.relay_due(at=clock.now())

    assert caller.send("DELETE", f"{HOOKS}/{hook['id']}").status_code == 204
    post(caller.organization)
    deliver()

    assert receiver.received == []
    assert slug(caller.get(f"{HOOKS}/{hook['id']}")) == "not-found"
    assert caller.get(HOOKS).json()["items"] == []


def test_what_is_old_is_forgotten_and_what_waits_is_kept(caller: Caller, receiver: Receiver) -> None:
    register(caller)
    post(caller.organization)
    deliver()
    later = clock.now() + timedelta(days=31)
    post(caller.organization)

    assert relaying.forget_old(at=later) == 2
    assert Message.objects.filter(relayed_at__isnull=True).count() == 1
