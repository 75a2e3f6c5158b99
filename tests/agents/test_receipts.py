import base64
import hashlib
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from nacl.signing import SigningKey

from agents.models import Receipt
from agents.protocol import canonical_json
from tests.agents.conftest import Clock
from tests.agents.fake_agent import FakeAgent, make_online_agent
from tests.agents.test_sync import REFERENCE, start

pytestmark = pytest.mark.django_db


def receipt(agent: FakeAgent, n: int, prev: str, *, key: SigningKey | None = None, **changes: Any) -> dict[str, Any]:
    body = {
        "n": n,
        "lease": REFERENCE,
        "member": 0,
        "epoch": 1,
        "prev": prev,
        "kind": "beat",
        "t_boot_s": 7 * n,
    } | changes
    signature = (key or agent.key).sign(canonical_json(body)).signature
    return body | {"sig": base64.b64encode(signature).decode()}


def link(row: dict[str, Any]) -> str:
    return hashlib.sha256(canonical_json(row)).hexdigest()


def test_a_chain_that_holds_is_kept_once_and_acknowledged(at: Clock) -> None:
    agent = make_online_agent()
    start(agent)
    first = receipt(agent, 1, "", kind="start")
    second = receipt(agent, 2, link(first))

    answers = [agent.sync(receipts=[first, second]), agent.sync(receipts=[second])]

    assert [answer["acks"]["receipts"] for answer in answers] == [2, 2]
    assert list(Receipt.objects.order_by("n").values_list("n", "faults")) == [(1, []), (2, [])]


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"prev": "00" * 32}, "chain"),
        ({"kind": "gift"}, "kind"),
        ({"key": SigningKey.generate()}, "signature"),
        ({"epoch": 9}, "workload"),
    ],
)
def test_a_receipt_that_proves_nothing_is_kept_with_its_fault(at: Clock, changes: dict[str, Any], fault: str) -> None:
    agent = make_online_agent()
    start(agent)

    agent.sync(receipts=[receipt(agent, 1, **({"prev": ""} | changes))])

    assert Receipt.objects.get().faults == [fault]


@pytest.mark.parametrize("gpus", [1, 8])
def test_an_idle_sync_costs_the_same_few_queries_whatever_the_size_of_the_host(at: Clock, gpus: int) -> None:
    agent = make_online_agent(gpus=gpus)
    desired = start(agent)
    running = [agent.report(desired, "ready")]
    agent.sync(workloads=running)
    at.forward(5)

    with CaptureQueriesContext(connection) as queries:
        agent.sync(workloads=running)

    statements = [row["sql"] for row in queries if "SAVEPOINT" not in row["sql"]]
    assert len(statements) == 12  # the last asks for commands that a tenant wants run in it
