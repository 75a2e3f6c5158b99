"""Most syncs say nothing new: one statement takes them in, and whatever is new goes the long way."""

import json
from typing import Any

import pytest
from django.db import connection
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory
from django.test.utils import CaptureQueriesContext

from agents import api, device_life, host_life, quiet, silence, verification, workloads
from agents.host_volumes import HostVolume
from agents.models import Device, Host, HostEvent, Workload
from agents.protocol import SyncRequest
from agents.sync import Applied
from outbox.models import Message
from tests.agents.conftest import Clock
from tests.agents.fake_agent import SYNC, FakeAgent, make_online_agent
from tests.agents.test_sync import want
from tests.factories import after

pytestmark = pytest.mark.django_db


@pytest.fixture
def agent(at: Clock) -> FakeAgent:
    """An online host with nothing on it, whose devices were looked at in full a moment ago."""
    agent = make_online_agent()
    agent.sync()
    until = agent.row.quiet_until
    assert until is not None
    assert after(quiet.QUIET_S - quiet.SPREAD_S) < until <= after(quiet.QUIET_S)
    return agent


def is_quiet(agent: FakeAgent, at: Clock, **changes: Any) -> bool:
    """Return whether the statement for quiet syncs takes this one in."""
    agent.seq += 1
    raw = json.dumps(agent.body(**changes)).encode()
    headers = agent.headers(raw)["Gpuyard-Signature"]
    caller = quiet.identify(header=headers, method="POST", path="/agent/v1/sync", body=raw)
    assert caller is not None
    (generation,) = quiet.heard([(caller, SyncRequest.from_json(json.loads(raw)))], at=at())
    return generation is not None


def request_of(agent: FakeAgent, **changes: Any) -> HttpRequest:
    """Return the agent's next request as a door has it."""
    agent.seq += 1
    raw = json.dumps(agent.body(**changes)).encode()
    headers = agent.headers(raw)
    return RequestFactory().post(SYNC, raw, content_type="application/json", headers=headers)


def said(seen: CaptureQueriesContext) -> list[str]:
    return [query["sql"] for query in seen.captured_queries if "SAVEPOINT" not in query["sql"]]


def test_a_quiet_sync_is_heard_by_one_statement(agent: FakeAgent, at: Clock) -> None:
    at.forward(5)
    before = agent.row

    with CaptureQueriesContext(connection) as seen:
        assert is_quiet(agent, at)

    assert len(said(seen)) == 1
    assert (agent.row.last_heard_at, agent.row.last_seq) == (at(), agent.seq)
    assert agent.row.generation == before.generation


def test_readings_are_at_most_three_minutes_old(agent: FakeAgent, at: Clock) -> None:
    for _ in range(30):
        at.forward(5)
        agent.clock_s += 5
        agent.sync()
        device = Device.objects.earliest("index")
        assert device.readings_at is not None

    agent.device_state = {agent.uuids[0]: {"readings": {"temperature_c": 55}}}
    for _ in range(37):
        at.forward(5)
        agent.clock_s += 5
        agent.sync()
    assert Device.objects.earliest("index").readings == {"temperature_c": 55}


@pytest.mark.parametrize(
    "changes",
    [
        {"devices": [{"uuid": "SIM-node-1-0", "xids": [79]}]},
        {"devices": [{"uuid": "SIM-node-1-0", "state": "lost"}]},
        {"devices": [{"uuid": "SIM-node-1-0", "state": "unresponsive"}]},
        {"devices": [{"uuid": "SIM-node-1-0", "readings": {"slowdown_bits": 0x40}}]},
        {"devices": [{"uuid": "SIM-node-1-0", "readings": {"row_remap_pending": True}}]},
        {"devices": [{"uuid": "SIM-node-1-0", "readings": {"recovery_action": 2}}]},
        {"devices": [{"uuid": "SIM-node-1-0", "readings": {"utilization_percent": 99, "processes": []}}]},
        {"devices": [7]},
        {"conditions": ["disk_pressure"]},
        {"inventory_hash": "0" * 64},
        {"boot_id": "boot-9"},
        {"instance": "instance-9"},
        {"events": [{"n": 1, "kind": "xid"}]},
        {"receipts": [{"n": 1}]},
        {"logs": [{"lease": "x"}]},
        {"workloads": [{"lease": "x"}]},
        {"version": "2.0"},
    ],
    ids=lambda changes: json.dumps(changes)[:60],
)
def test_whatever_is_new_goes_the_long_way(agent: FakeAgent, at: Clock, changes: dict[str, Any]) -> None:
    before = agent.row

    assert not is_quiet(agent, at, **changes)

    assert agent.row.last_seq == before.last_seq  # nothing was written


def test_what_is_wanted_or_asked_of_the_host_goes_the_long_way(agent: FakeAgent, at: Clock) -> None:
    want(agent)
    assert not is_quiet(agent, at)
    assert len(agent.sync()["desired"]) == 1
    workloads.unwant(reference="lease_00000000000000000000000001", at=at(), reason="end")
    assert not is_quiet(agent, at)


def test_an_open_self_test_goes_the_long_way(agent: FakeAgent, at: Clock) -> None:
    verification.ask_again(host_id=agent.row.pk, cause="test", at=at())

    assert not is_quiet(agent, at)
    assert agent.sync()["wishes"]


@pytest.mark.parametrize("state", ["lost", "unverified", "quarantined"])
def test_a_host_that_is_not_online_goes_the_long_way(agent: FakeAgent, at: Clock, state: str) -> None:
    Host.objects.update(state=state)

    assert not is_quiet(agent, at)


def test_a_suspect_host_that_is_well_is_online_again_by_the_short_way(agent: FakeAgent, at: Clock) -> None:
    silence.sweep(at=at.forward(16))
    assert agent.row.state == "suspect"
    Message.objects.all().delete()

    assert is_quiet(agent, at)

    assert (agent.row.state, agent.row.state_reason) == ("online", "Heard again after being suspect.")
    last = HostEvent.objects.filter(host=agent.row).latest("pk")
    assert (last.kind, last.facts) == ("host.online", {"from": "suspect", "to": "online"})
    (told,) = Message.objects.all()
    assert (told.topic, told.payload) == ("host.online", {"id": agent.host, "version": agent.row.version})


def test_a_suspect_host_that_was_never_verified_goes_the_long_way(agent: FakeAgent, at: Clock) -> None:
    Host.objects.update(state="suspect", tier="unverified")

    assert not is_quiet(agent, at)


def test_many_quiet_syncs_are_one_statement_and_the_others_are_left(at: Clock) -> None:
    agents = [make_online_agent(f"node-{n}") for n in range(6)]
    for agent in agents:
        agent.sync()
    well, tells, forged, late, twice, silent = agents
    Host.objects.filter(name="node-5").update(quiet_until=at())
    requests = [
        request_of(well),
        request_of(tells, events=[{"n": 1, "kind": "xid"}]),
        request_of(forged),
        request_of(late),
        request_of(twice),
        request_of(twice),
        request_of(silent),
    ]
    requests[2].META["HTTP_GPUYARD_SIGNATURE"] = requests[0].META["HTTP_GPUYARD_SIGNATURE"]
    late.clock_s += 310
    requests[3] = request_of(late)
    before = {agent.name: agent.row.last_seq for agent in agents}
    at.forward(3)

    with CaptureQueriesContext(connection) as seen:
        found = api.receive_quiet(requests)

    assert [one is not None for one in found] == [True, False, False, True, True, False, False]
    assert isinstance(found[3], HttpResponse)
    assert found[3].status_code == 401
    assert len(said(seen)) == 1
    for agent in agents:
        moved = agent in (well, twice)
        assert agent.row.last_seq == before[agent.name] + moved
        assert (agent.row.last_heard_at == at()) == moved
    taken = found[0]
    assert isinstance(taken, Applied)
    assert (taken.host_id, taken.seq) == (well.row.pk, well.seq)


def test_after_a_start_all_keys_are_read_by_one_question(
    agent: FakeAgent, at: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = make_online_agent("node-2")
    other.sync()
    monkeypatch.setattr(quiet, "_keys", quiet._Keys())

    with CaptureQueriesContext(connection) as seen:
        found = api.receive_quiet([request_of(agent), request_of(other)])

    assert all(isinstance(one, Applied) for one in found)
    assert len(said(seen)) == 2


def test_a_full_look_is_put_off_only_where_there_is_no_time_for_it(agent: FakeAgent, at: Clock) -> None:
    at.forward(quiet.QUIET_S + 1)
    agent.clock_s += quiet.QUIET_S + 1
    assert api.receive_quiet([request_of(agent)]) == [None]
    assert isinstance(api.receive_quiet([request_of(agent)], late_s=600)[0], Applied)

    quiet.forget(agent.row.pk)
    assert api.receive_quiet([request_of(agent)], late_s=600) == [None]


def test_a_host_that_lost_the_list_is_told_that_nothing_is_to_run_and_what_scratch_stays(
    agent: FakeAgent, at: Clock
) -> None:
    want(agent)
    workloads.unwant(reference="lease_00000000000000000000000001", at=at(), reason="end")
    Workload.objects.update(gone_at=at(), step="gone", keeps_scratch=True)

    HostVolume.objects.create(
        host=agent.row,
        reference="volume_1",
        place="vol_gone",
        size_mib=1,
        wanted=False,
        wanted_at=at(),
        unwanted_at=at(),
    )

    taken = api.receive_in_full(request_of(agent, have_generation=-1))
    assert isinstance(taken, Applied)
    with CaptureQueriesContext(connection) as seen:
        told = json.loads(api.answer_unmoved(taken, 5).content)

    assert len(seen) == 0
    assert (told["desired"], told["scratch"]) == ([], ["lease_00000000000000000000000001"])
    assert told["drop_volumes"] == ["vol_gone"]
    assert told["generation"] == agent.row.generation
    # What one statement takes in is not known so well: a wanted list may have come while it waited.
    (quickly,) = api.receive_quiet([request_of(agent, have_generation=-1)])
    assert quickly is None or (isinstance(quickly, Applied) and not quickly.is_answered)


def test_the_devices_of_a_full_look_are_written_by_one_statement(at: Clock) -> None:
    agent = make_online_agent(gpus=8)
    at.forward(200)
    agent.clock_s += 200
    agent.device_state = {uuid: {"readings": {"temperature_c": 50 + n}} for n, uuid in enumerate(agent.uuids)}

    with CaptureQueriesContext(connection) as seen:
        agent.sync()

    assert len([sql for sql in said(seen) if sql.lstrip().startswith("UPDATE") and "agents_device" in sql]) == 1
    found = {d.index: (d.readings, d.readings_at, d.health) for d in Device.objects.all()}
    assert found == {n: ({"temperature_c": 50 + n}, at(), "healthy") for n in range(8)}


def test_where_all_fail_together_each_goes_the_long_way(
    agent: FakeAgent, at: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> list[int | None]:
        raise ValueError

    monkeypatch.setattr(quiet, "heard", broken)

    assert api.receive_quiet([request_of(agent), request_of(agent)]) == [None, None]
    agent.sync()


def test_a_device_that_an_operator_touched_is_looked_at_in_full(agent: FakeAgent, at: Clock) -> None:
    device_life.restore(device_id=Device.objects.earliest("index").pk, reason="repaired", by="user:1", at=at())

    assert agent.sync()["wishes"]


def test_a_replay_of_a_quiet_sync_is_refused_and_another_instance_quarantined(agent: FakeAgent, at: Clock) -> None:
    agent.seq += 1
    raw = json.dumps(agent.body()).encode()
    headers = agent.headers(raw)
    assert agent.post(raw, headers).status_code == 200

    assert agent.post(raw, headers).status_code == 409
    agent.instance, agent.clock_s = "instance-2", agent.clock_s + 2
    assert agent.send().status_code == 409
    assert agent.row.state == "quarantined"


def test_a_key_that_was_void_since_is_nobodys(agent: FakeAgent, at: Clock) -> None:
    host_life.retire(host_id=agent.row.pk, reason="sold", by="user:1", at=at())

    assert agent.send().status_code == 401


def test_a_forged_signature_under_a_remembered_key_is_nobodys(agent: FakeAgent, at: Clock) -> None:
    other = make_online_agent("node-2")

    assert agent.send(header={"signer": other.key}).status_code == 401
    assert agent.row.last_seq < agent.seq


def test_a_clock_that_is_off_is_refused_on_the_short_way_too(agent: FakeAgent, at: Clock) -> None:
    agent.clock_s += 301

    response = agent.send()

    assert response.status_code == 401
    agent.check_signature(response)


def test_a_host_with_a_sick_device_is_never_quiet(agent: FakeAgent, at: Clock) -> None:
    agent.device_state = {agent.uuids[0]: {"xids": [109]}}
    agent.sync()
    agent.device_state = {}
    agent.sync()

    assert agent.row.quiet_until is None
