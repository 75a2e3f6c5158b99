"""A thousand creates at once against the real web server: one key is one lease, one GPU is one lease."""

import http.client
import json
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from audit import ids
from billing import holds, reconcile
from leasing.models import Allocation, Lease, LeaseEvent
from tenants.models import Organization, Role
from tests.api import real_server
from tests.tenants.conftest import MemberCaller

pytestmark = pytest.mark.django_db(transaction=True)
REQUESTS = 1000
CLIENTS = 50
DONE_WITHIN_S = 240
type Answer = tuple[int, dict[str, Any]]


def flood(address: str, secret: str, bodies: list[tuple[str, dict[str, Any]]]) -> list[Answer]:
    """Send (key, body) from 50 clients that begin at once, each over one connection; return all answers."""
    start = threading.Barrier(CLIENTS)
    shares = [bodies[n::CLIENTS] for n in range(CLIENTS)]

    def client(share: list[tuple[str, dict[str, Any]]]) -> list[Answer]:
        connection = http.client.HTTPConnection(address, timeout=DONE_WITHIN_S)
        start.wait()
        found = []
        for key, body in share:
            headers = {"Authorization": f"Bearer {secret}", "Content-Type": "application/json", "Idempotency-Key": key}
            connection.request("POST", "/api/v1/leases", json.dumps(body), headers)
            answer = connection.getresponse()
            found.append((answer.status, json.loads(answer.read())))
        connection.close()
        return found

    with ThreadPoolExecutor(CLIENTS) as pool:
        return [answer for answers in pool.map(client, shares, timeout=DONE_WITHIN_S) for answer in answers]


def kinds(answers: list[Answer]) -> Counter[str]:
    return Counter("201" if status == 201 else str(said["type"]).rpartition("/")[2] for status, said in answers)


@pytest.fixture
def tenant() -> Organization:
    return real_server.market(gpus=1)


def test_a_thousand_creates_with_one_key_are_one_lease(tenant: Organization, tmp_path: Path) -> None:
    secret = MemberCaller(tenant, Role.DEVELOPER).secret
    bodies = [("the-one-key", {"request": "A100_80G", "image": "pytorch_latest"})] * REQUESTS

    with real_server.serving("api", folder=tmp_path, port=real_server.free_port()) as address:
        answers = flood(address, secret, bodies)

    found = kinds(answers)
    print(f"one key: {dict(found)}")
    assert len(answers) == REQUESTS
    assert set(found) <= {"201", "idempotency-in-progress"}
    assert found["201"] > 0
    assert {said["id"] for status, said in answers if status == 201} == {Lease.objects.get().public_id}
    assert LeaseEvent.objects.count() == 1
    assert holds.held_for(Lease.objects.get().public_id) is None  # its hold is open, and there is one


def test_a_thousand_creates_with_a_thousand_keys_for_one_gpu_are_one_lease(
    tenant: Organization, tmp_path: Path
) -> None:
    secret = MemberCaller(tenant, Role.DEVELOPER).secret
    asked = {"request": "A100_80G", "image": "pytorch_latest", "if_no_capacity": "refuse"}
    bodies = [(ids.new().hex, asked) for _ in range(REQUESTS)]

    with real_server.serving("api", folder=tmp_path, port=real_server.free_port()) as address:
        answers = flood(address, secret, bodies)

    found = kinds(answers)
    print(f"one GPU: {dict(found)}")
    assert found == {"201": 1, "no-capacity": REQUESTS - 1}
    assert Lease.objects.count() == Allocation.objects.filter(released_at=None).count() == 1
    assert reconcile.findings() == []
