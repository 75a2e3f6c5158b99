"""bad_inputs.json through the real service: each case has one right answer. `--vectors PATH` runs another such file."""

import base64
import json
import logging
import re
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.apps import apps
from django.db import connection
from django.test import Client

from apikit import clock, outbound
from audit import ids
from outbox import delivering, messages, relaying
from outbox.models import Delivery
from tests.agents.fake_agent import FakeAgent
from tests.api.bad_input_world import World, billed_s, world
from tests.apikit.tls_receiver import Receiver

VECTORS = Path(__file__).parents[1] / "vectors" / "bad_inputs.json"
ALSO_AT_THE_AGENTS_DOOR = {"duplicate-key", "number-literal", "depth", "encoding", "nul", "surrogate"}
WITHIN_50_MS_OF_CPU = {"g-03", "j-05", "j-06"}
# Not what a refusal may not write: how often somebody called, and when he last did.
COUNTERS = {"apikit_ratecounter", "django_migrations", "django_content_type", "auth_permission"}
SECRETS = re.compile(r"Traceback|SELECT |INSERT |/platform/|psycopg|gy_live_[0-9A-Za-z]{8}_")

pytestmark = pytest.mark.django_db


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    path = metafunc.config.getoption("--vectors", default=None) or VECTORS
    document = json.loads(Path(path).read_text(encoding="utf-8"))
    cases = [{**case, "document": document} for case in document["cases"]]
    if "case" in metafunc.fixturenames:
        metafunc.parametrize("case", cases, ids=[case["id"] for case in cases])
    if "parse_case" in metafunc.fixturenames:
        cases = [case for case in cases if case["kind"] in ALSO_AT_THE_AGENTS_DOOR]
        metafunc.parametrize("parse_case", cases, ids=[case["id"] for case in cases])


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    """The network of the file: two public addresses that end here, a name that turns, a receiver that redirects."""
    with Receiver() as running:
        running.answers["redirect.test"] = b"HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/\r\n\r\n"
        asked: dict[str, int] = {}

        def resolve(host: str) -> list[str]:
            asked[host] = asked.get(host, 0) + 1
            if host == "rebind.test":
                return ["93.184.216.34" if asked[host] == 1 else "127.0.0.1"]
            if host == "redirect.test":
                return ["93.184.216.35"]
            raise OSError("unknown name")

        monkeypatch.setattr(outbound, "INTERNET", running.wire_of(resolve))
        yield running


class Sender:
    """Sends what a case describes, with the default key and a fresh Idempotency-Key."""

    def __init__(self) -> None:
        self.client = Client(raise_request_exception=False)
        self.sent = 0
        self.key = ""

    def __call__(self, method: str, path: str, raw: bytes | None, headers: dict[str, Any], content_type: str) -> Any:
        self.sent += 1
        wanted: dict[str, Any] = {"Authorization": f"Bearer {self.key}"}
        if method == "POST":
            wanted["Idempotency-Key"] = f"case-{self.sent}"
        wanted |= headers
        kept = {name: value for name, value in wanted.items() if value is not None}
        body: dict[str, Any] = {} if raw is None else {"data": raw, "content_type": content_type}
        return self.client.generic(method, path, headers=kept, **body)

    def post(self, path: str, body: Any, headers: dict[str, Any]) -> Any:
        return self("POST", path, json.dumps(body).encode(), headers, "application/json")


def body_of(case: dict[str, Any]) -> bytes | None:
    request = case["request"]
    if "body_text" in request:
        return str(request["body_text"]).encode()
    if "body_base64" in request:
        return base64.b64decode(request["body_base64"])
    if "body_parts" in request:
        return _joined(request["body_parts"]).encode()
    if "body" in request:
        return json.dumps(request["body"]).encode()
    if "set" in request or "drop" in request:
        changed = {**case["document"]["base_body"], **request.get("set", {})}
        return json.dumps({k: v for k, v in changed.items() if k not in request.get("drop", [])}).encode()
    return None


def _joined(parts: list[list[Any]]) -> str:
    return "".join(part[1] * (part[2] if part[0] == "repeat" else 1) for part in parts)


def frozen_at(case: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(case["document"]["clock"])


def test_a_case_has_its_one_right_answer(
    case: dict[str, Any], receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    sender = Sender()
    with clock.frozen(frozen_at(case)), world(**_options(case, sender)) as made:
        sender.key = made.key
        if "agent" in case["request"]:
            _agent_case(case, made)
            return
        made.add_hosts()
        request = case["request"]
        path = made.resolve(request["path"]) if "path_parts" not in request else _joined(request["path_parts"])
        headers = {n: v if v is None else made.resolve(v) for n, v in request.get("headers", {}).items()}
        content_type = request.get("content_type", "application/json")

        def send() -> Any:
            return sender(request["method"], path, body_of(case), headers, content_type)

        before = rows()
        caplog.clear()
        started, cpu = time.monotonic(), time.thread_time()
        answer = send()
        spent_cpu = time.thread_time() - cpu

        check(case, answer)
        assert time.monotonic() - started < (5 if "running" in str(headers) else 1) * _patience()
        assert case["id"] not in WITHIN_50_MS_OF_CPU or spent_cpu < 0.05
        check_log(caplog)
        if answer.status_code >= 400:
            assert rows() == before, "a refusal wrote something"
            assert _without_request_id(send()) == _without_request_id(answer)
        if request.get("then") == "deliver":
            deliver(made, receiver, case)


def _patience() -> float:
    """A second of the design's machine is a few on one that builds and tests for others meanwhile."""
    return 3.0


def test_a_body_is_read_alike_at_the_agents_door(parse_case: dict[str, Any]) -> None:
    answer = Client(raise_request_exception=False).post(
        "/agent/v1/enrol", body_of(parse_case), content_type="application/json"
    )

    check(parse_case, answer)


def check(case: dict[str, Any], answer: Any) -> None:
    expect = case["expect"]
    assert answer.status_code == expect["status"], answer.content[:1000]
    for name in expect.get("headers", []):
        assert name in answer, name
    if "canonical" in expect:
        assert answer.json()["request"] == expect["canonical"]
    if expect.get("problem") is None:
        return
    assert answer["Content-Type"] == "application/problem+json"
    document = answer.json()
    assert document["type"].rpartition("/")[2] == expect["problem"]
    assert document["status"] == expect["status"]
    assert document["request_id"] == answer["X-Request-Id"]
    assert len(answer.content) <= 4096
    assert not SECRETS.search(answer.content.decode())
    assert not re.search(r"[\x00-\x08\x0b-\x1f]", answer.content.decode())
    if "key" in expect:
        assert document["key"] == expect["key"]
    _check_errors(expect, document)


def _check_errors(expect: dict[str, Any], document: dict[str, Any]) -> None:
    asked = {name: expect[name] for name in ("pointer", "parameter", "code", "position") if name in expect}
    if not asked:
        return
    errors = document.get("errors", [])
    assert any(
        all(found.get(name) in (value if isinstance(value, list) else [value]) for name, value in asked.items())
        for found in errors
    ), (asked, errors)


def check_log(caplog: pytest.LogCaptureFixture) -> None:
    for record in caplog.records:
        assert record.exc_info is None, record.exc_info
        assert record.levelno < logging.ERROR, record.getMessage()
        assert not SECRETS.search(record.getMessage()), record.getMessage()
        assert not re.search(r"[\x00-\x1f]", record.getMessage()), repr(record.getMessage())


def rows() -> dict[str, int]:
    """Count every row of every table."""
    tables = sorted({model._meta.db_table for model in apps.get_models(include_auto_created=True)} - COUNTERS)
    selects = " UNION ALL ".join(f"SELECT '{table}', count(*) FROM \"{table}\"" for table in tables)
    with connection.cursor() as cursor:
        cursor.execute(selects)
        return dict(cursor.fetchall())


def _without_request_id(answer: Any) -> tuple[int, dict[str, Any]]:
    return answer.status_code, {k: v for k, v in answer.json().items() if k != "request_id"}


def _options(case: dict[str, Any], sender: Sender) -> dict[str, Any]:
    return {
        "at": frozen_at(case),
        "given": frozenset(case["request"].get("given", ())),
        "post": sender.post,
        "base_body": case["document"]["base_body"],
        "simulated": "agent" in case["request"],
    }


def deliver(made: World, receiver: Receiver, case: dict[str, Any]) -> None:
    """Send one message to the endpoint that was just registered, and count the bytes that went astray."""
    messages.post(topic="lease.ended", key="case", payload={"id": "x"}, organization_id=made.a.pk, at=made.at)
    relaying.relay_due(at=made.at)
    token = ids.new()
    [pk] = delivering.claim(token=token, at=made.at, limit=1)
    outcome = delivering.attempt(Delivery.objects.select_related("endpoint").get(pk=pk), at=made.at)
    assert delivering.apply(delivery_id=pk, token=token, outcome=outcome, at=made.at)

    assert not outcome.delivered
    astray = [address for address in receiver.connected if address not in {"93.184.216.34", "93.184.216.35"}]
    assert astray == []
    assert len(astray) == case["expect"]["delivered_bytes"]


def _agent_case(case: dict[str, Any], made: World) -> None:
    """Send a sync (or an enrolment) that departs from a good one in what `agent` says."""
    asked = dict(case["request"]["agent"])
    if asked.pop("token", None) == "used":
        token = made.enrolment_token("node-2")
        assert FakeAgent(name="node-2").enrol(token).status_code == 201
        check(case, FakeAgent(name="node-3").enrol(token))
        return
    agent = made.enrolled_agent()
    lease = made.lease_on(agent)
    if "epoch" in asked:
        made.moved_to_another_host(lease, agent)
        asked.pop("epoch")
    if "receipt_s" in asked:
        seconds = asked.pop("receipt_s")
        receipts = [{"n": 1, "lease": lease.public_id, "member": 0, "epoch": 1, "kind": "stop", "seconds": seconds}]
        _send_and_bill(case, made, agent, lease, receipts=receipts)
        return
    later = made.at + timedelta(seconds=10)
    with clock.frozen(later):
        agent.clock_s = int(later.timestamp()) + asked.pop("clock_s", 0)
        agent.seq += 1
        raw = json.dumps(agent.body()).encode()
        header = {"host": made.enrolled_agent("other").host} if asked.pop("host", None) == "other" else {}
        headers = {} if asked.pop("signed", True) is False else agent.headers(raw, **header)
        if asked.pop("repeat", False):
            assert agent.post(raw, headers).status_code == 200
        assert not asked, f"no adapter for {asked}"
        before = billed_s(lease, at=later)
        answer = agent.post(raw, headers)
        check(case, answer)
        if "billed_s" in case["expect"]:
            assert billed_s(lease, at=later) - before == case["expect"]["billed_s"]
            assert not any(d["lease"] == lease.public_id for d in answer.json()["desired"] or [])


def _send_and_bill(case: dict[str, Any], made: World, agent: Any, lease: Any, **changes: Any) -> None:
    """End the lease, then let the agent claim more in a sync; what it is billed must not grow."""
    from leasing.states import EndReason
    from scheduler import converging, recovery

    later = made.at + timedelta(seconds=10)
    with clock.frozen(later):
        agent.clock_s = int(later.timestamp())
        recovery.end_now(lease=lease, reason=EndReason.TENANT, at=later)
        agent.workloads = [{**agent.workloads[0], "step": "gone"}]
        agent.sync()
        converging.converge(at=later + timedelta(seconds=1))
        before = billed_s(lease, at=later + timedelta(seconds=5))
        answer = agent.send(**changes)
        check(case, answer)
        assert billed_s(lease, at=later + timedelta(days=2)) - before == case["expect"]["billed_s"]
