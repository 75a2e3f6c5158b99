"""What a tenant needs to reach what runs: its output from an instant on, and where its ports are published."""

from datetime import datetime
from typing import Any

import pytest

from agents import logs
from agents.models import Workload
from leasing.models import Lease
from tests.apikit.conftest import Caller
from tests.factories import after, end_and_clean, make_host, make_lease, make_tenant, place, price

pytestmark = pytest.mark.django_db


@pytest.fixture
def caller() -> Caller:
    make_host(gpus=2)
    price()
    return Caller(make_tenant())


@pytest.fixture
def lease(caller: Caller) -> Lease:
    made = make_lease(caller.organization)
    place(at=after(1))
    return made


def speak(lease: Lease, text: str, *, at: datetime) -> None:
    workload = Workload.objects.get(reference=lease.public_id)
    offset = logs.next_offsets([workload]).get(workload.pk, 0)
    logs.append(workload=workload, offset=offset, text=text, size=None, at=at)


def heard(caller: Caller, lease: Lease, since: str) -> dict[str, Any]:
    found: dict[str, Any] = caller.get(f"/api/v1/leases/{lease.public_id}/logs?since={since}").json()
    return found


def test_output_since_an_instant_begins_with_what_was_received_then(caller: Caller, lease: Lease) -> None:
    speak(lease, "früh\n", at=after(10))
    speak(lease, "later\n", at=after(20))
    speak(lease, "last\n", at=after(30))
    spelled = [after(seconds).strftime("%Y-%m-%dT%H:%M:%SZ") for seconds in (5, 20, 31)]

    everything, late, nothing = (heard(caller, lease, since) for since in spelled)

    assert everything["items"] == [{"offset": 0, "text": "früh\nlater\nlast\n"}]
    assert late["items"] == [{"offset": len("früh\n".encode()), "text": "later\nlast\n"}]
    assert nothing["items"] == []
    assert {found["next_offset"] for found in (everything, late, nothing)} == {len("früh\nlater\nlast\n".encode())}


def test_an_instant_without_a_zone_is_refused(caller: Caller, lease: Lease) -> None:
    answer = caller.get(f"/api/v1/leases/{lease.public_id}/logs?since=2026-11-30T12:00:00")

    assert answer.status_code == 422
    assert answer.json()["errors"][0]["parameter"] == "since"


def endpoints(caller: Caller, lease: Lease) -> list[dict[str, Any]]:
    (member,) = caller.get(f"/api/v1/leases/{lease.public_id}/members").json()["items"]
    found: list[dict[str, Any]] = member["endpoints"]
    return found


def test_published_ports_are_shown_with_the_hosts_address_while_they_are_wanted(caller: Caller, lease: Lease) -> None:
    workload = Workload.objects.get(reference=lease.public_id)
    workload.ports = {"8888": 31002, "22": 31001}
    workload.save(update_fields=["ports"])
    before = endpoints(caller, lease)
    type(workload.host).objects.filter(pk=workload.host_id).update(address="203.0.113.7")

    shown = endpoints(caller, lease)
    end_and_clean(lease, at=after(60))

    assert before == []  # nobody knows yet where the host is
    assert shown == [
        {"port": 22, "service": "ssh", "address": "203.0.113.7", "host_port": 31001},
        {"port": 8888, "service": "tcp", "address": "203.0.113.7", "host_port": 31002},
    ]
    assert endpoints(caller, lease) == []
