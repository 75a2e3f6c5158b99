"""Twenty ways to cheat come down to these: each is refused, or changes nothing, and bills nothing."""

import json
from typing import Any

import pytest
from nacl.signing import SigningKey

from agents import workloads
from agents.models import Host, HostEvent, Workload
from tests.agents.conftest import Clock
from tests.agents.fake_agent import SYNC, FakeAgent, make_agent, make_online_agent
from tests.agents.test_sync import REFERENCE, start, want
from tests.factories import after

pytestmark = pytest.mark.django_db


def slug(response: Any) -> str:
    return str(response.json()["type"].rpartition("/")[2])


def test_a_replayed_request_changes_nothing(at: Clock) -> None:
    agent = make_online_agent()
    desired = start(agent)
    agent.seq += 1
    raw = json.dumps(agent.body(workloads=[agent.report(desired, "probing")])).encode()
    headers = agent.headers(raw)
    assert agent.post(raw, headers).status_code == 200
    at.forward(10)

    replay = agent.post(raw, headers)

    assert (replay.status_code, slug(replay)) == (409, "agent-replay")
    assert replay.json()["boot_no"] == 1
    assert agent.row.last_heard_at == after(0)
    assert agent.row.state == "online"
    agent.check_signature(replay)


def test_a_number_of_an_earlier_boot_is_a_replay(at: Clock) -> None:
    agent = make_online_agent()
    agent.boot_no, agent.seq = 2, 0
    agent.sync()
    agent.boot_no, agent.seq = 1, 500

    assert slug(agent.send()) == "agent-replay"


def test_a_request_signed_with_another_hosts_key_is_nobodys(at: Clock) -> None:
    agent, other = make_online_agent(), make_online_agent("node-2")

    forged = agent.send(header={"signer": other.key})
    borrowed = agent.send(header={"key": other.key_id, "signer": other.key})

    assert [slug(forged), slug(borrowed)] == ["unauthenticated", "permission-denied"]
    assert "Gpuyard-Signature" not in forged.headers


def test_a_body_that_was_changed_on_the_way_is_nobodys(at: Clock) -> None:
    agent = make_online_agent()
    agent.seq += 1
    raw = json.dumps(agent.body()).encode()

    response = agent.post(raw.replace(b'"boot-1"', b'"boot-9"'), agent.headers(raw))

    assert (response.status_code, slug(response)) == (401, "unauthenticated")


@pytest.mark.parametrize("header", ["", "host=x", "host=a;host=b", "key=1;boot=a;seq=2;created=3;sig=x;host=host_1"])
def test_a_header_that_cannot_be_read_is_nobodys(at: Clock, header: str) -> None:
    response = FakeAgent().client.post(
        SYNC, b"{}", content_type="application/json", headers={"Gpuyard-Signature": header}
    )

    assert (response.status_code, slug(response)) == (401, "unauthenticated")


def test_numbers_that_were_not_signed_are_refused(at: Clock) -> None:
    agent = make_online_agent()

    response = agent.send(seq=10_000)

    assert (response.status_code, slug(response)) == (401, "unauthenticated")
    assert agent.row.last_seq < 10_000


@pytest.mark.parametrize("off_by_s", [-301, 301])
def test_an_old_or_early_clock_is_refused_with_the_time_signed(at: Clock, off_by_s: int) -> None:
    agent = make_online_agent()
    agent.clock_s += off_by_s

    response = agent.send()

    assert (response.status_code, slug(response)) == (401, "agent-clock-skew")
    assert response.json()["server_time"] == "2027-03-01T12:00:00Z"
    agent.check_signature(response)


def test_the_agents_clock_prices_nothing(at: Clock) -> None:
    agent = make_online_agent()
    desired = start(agent)
    at.forward(50)
    agent.clock_s -= 250

    agent.sync(workloads=[agent.report(desired, "ready")])

    assert Workload.objects.get().ready_at == after(50)


def test_ready_for_a_workload_of_another_host_bills_nothing(at: Clock) -> None:
    victim, liar = make_online_agent(), make_online_agent("node-2")
    desired = start(victim)

    liar.sync(workloads=[liar.report(desired, "ready")])

    workload = Workload.objects.get()
    assert (workload.ready_at, workload.step) == (None, "absent")
    assert "is not wanted here" in HostEvent.objects.get(kind="host.bad_items").detail


def test_ready_at_a_stale_epoch_or_with_another_spec_bills_nothing(at: Clock) -> None:
    agent = make_online_agent()
    old = start(agent)
    workloads.unwant(reference=REFERENCE, at=after(1), reason="moved")
    new = start(agent, epoch=2)

    agent.sync(workloads=[agent.report(old, "ready"), agent.report(new, "ready", spec_hash="0" * 64)])

    assert list(Workload.objects.values_list("ready_at", flat=True)) == [None, None]


def test_ready_after_the_stop_was_asked_for_bills_nothing(at: Clock) -> None:
    agent = make_online_agent()
    desired = start(agent)
    workloads.unwant(reference=REFERENCE, at=after(1), reason="end")

    agent.sync(workloads=[agent.report(desired, "ready")])

    assert Workload.objects.get().ready_at is None


def test_a_bad_item_does_not_hide_the_good_ones(at: Clock) -> None:
    agent = make_online_agent()
    desired = start(agent)
    bad: list[Any] = [
        None,
        7,
        {"lease": 3},
        agent.report(desired, "ready", epoch=True),
        agent.report(desired, "dancing"),
    ]

    agent.sync(workloads=[*bad, agent.report(desired, "ready")])

    assert Workload.objects.get().ready_at == after(0)


def test_gpus_that_do_not_exist_are_not_offered(at: Clock) -> None:
    agent = make_online_agent()

    agent.sync(devices=[{"uuid": "SIM-invented"}])

    assert agent.row.devices.count() == 2
    assert "not in the inventory" in HostEvent.objects.get(kind="host.bad_items").detail


def test_an_inventory_that_does_not_have_its_stated_hash_is_not_taken(at: Clock) -> None:
    agent = make_agent()

    answer = agent.sync(inventory=agent.inventory(), inventory_hash="0" * 64)

    assert answer["need"] == ["inventory"]
    assert not agent.row.devices.exists()


def test_two_machines_with_one_key_are_quarantined(at: Clock) -> None:
    agent = make_online_agent()
    clone = FakeAgent(
        key=agent.key, host=agent.host, key_id=agent.key_id, control_keys=agent.control_keys, instance="instance-2",
        seq=agent.seq + 5, clock_s=agent.clock_s + 3,
    )  # fmt: skip

    assert slug(clone.send()) == "agent-replay"

    assert agent.row.state == "quarantined"
    assert "Two machines" in agent.row.state_reason


def test_a_replay_by_somebody_else_quarantines_nobody(at: Clock) -> None:
    agent = make_online_agent()
    agent.seq += 1
    raw = json.dumps(agent.body()).encode()
    captured = agent.headers(raw)
    agent.post(raw, captured)
    agent.boot_no, agent.seq, agent.instance, agent.clock_s = 2, 0, "instance-2", agent.clock_s + 60
    at.forward(60)
    agent.sync()

    assert slug(agent.post(raw, captured)) == "agent-replay"

    assert agent.row.state == "online"


def test_a_retired_hosts_key_is_void(at: Clock) -> None:
    agent = make_online_agent()
    Host.objects.update(state="retired", key_id="", signing_key="")

    assert slug(agent.send()) == "unauthenticated"


def test_a_quarantined_host_still_hears_what_it_must_stop_and_is_not_let_back_by_a_self_test(at: Clock) -> None:
    agent = make_online_agent()
    want(agent)
    Host.objects.update(state="quarantined")

    answer = agent.sync()

    assert len(answer["desired"]) == 1
    assert answer["wishes"] == []
    assert agent.row.state == "quarantined"


def test_a_key_that_was_never_enrolled_is_nobodys(at: Clock) -> None:
    agent = make_online_agent()
    agent.key = SigningKey.generate()

    assert slug(agent.send()) == "unauthenticated"
