"""Twenty ways to cheat come down to these: each is refused, or changes nothing, and bills nothing."""

import json
from typing import Any

import pytest
from nacl.signing import SigningKey

from agents import enrolment, workloads
from agents.models import Host, HostEvent, Receipt, Workload
from tests.agents.conftest import Clock
from tests.agents.fake_agent import SYNC, FakeAgent, make_agent, make_online_agent
from tests.agents.test_receipts import receipt
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


def test_ready_before_it_was_wanted_bills_no_second(at: Clock) -> None:
    agent = make_online_agent()
    future = {"lease": REFERENCE, "member": 0, "epoch": 1, "spec_hash": "0" * 64}
    agent.sync(workloads=[agent.report(future | {"spec": {"devices": agent.uuids}}, "ready")])
    at.forward(40)
    agent.clock_s += 40

    desired = start(agent)
    agent.sync(workloads=[agent.report(desired, "ready")])

    assert Workload.objects.get().ready_at == after(40)


def test_nothing_is_heard_of_a_host_before_it_was_enrolled(at: Clock) -> None:
    agent = FakeAgent()
    agent.host, agent.key_id = "host_00000000000000000000000000", "0" * 32

    assert slug(agent.send()) == "unauthenticated"
    assert not Host.objects.exists()


def test_a_cloned_disk_that_boots_beside_the_original_puts_both_out(at: Clock) -> None:
    agent = make_online_agent()
    clone = FakeAgent(
        key=agent.key, host=agent.host, key_id=agent.key_id, control_keys=agent.control_keys, instance="instance-2",
        boot_no=agent.boot_no + 1, clock_s=agent.clock_s + 3,
    )  # fmt: skip
    assert clone.send().status_code == 200  # as a reboot would look
    at.forward(5)
    agent.clock_s += 5

    assert slug(agent.send()) == "agent-replay"  # the original speaks on: it was no reboot

    assert agent.row.state == "quarantined"


@pytest.mark.parametrize("claimed", [-1, 0, 10**9, 2**62])
def test_a_generation_that_is_claimed_hides_nothing_and_frees_nothing(at: Clock, claimed: int) -> None:
    agent = make_online_agent()
    start(agent)

    answer = agent.sync(have_generation=claimed)
    assert [row["lease"] for row in answer["desired"]] == [REFERENCE]  # the whole list, whatever it says it has

    workloads.unwant(reference=REFERENCE, at=at(), reason="end")
    at.forward(60)
    agent.clock_s += 60
    agent.sync(have_generation=claimed)
    assert Workload.objects.get().gone_at is None  # silence about it for a minute frees no device


def test_receipts_for_another_hosts_lease_prove_nothing(at: Clock) -> None:
    victim, liar = make_online_agent(), make_online_agent("node-2")
    start(victim)

    liar.sync(receipts=[receipt(liar, 1, "", kind="start")])

    assert Receipt.objects.get().faults == ["workload"]


@pytest.mark.parametrize(
    "body",
    [
        b'{"a":' * 40 + b"1" + b"}" * 40,
        b'{"boot_no": 1, "boot_no": 2}',
        b'{"a": "' + b"x" * 300_000 + b'"}',
        b"[" * 100_000,
        b"\xff\xfe",
        b'{"boot_no": 1e999}',
        b"NaN",
        b"[]",
        b"",
    ],
    ids=["deep", "twice", "large", "brackets", "not utf-8", "infinite", "nan", "list", "nothing"],
)
def test_a_body_that_is_no_message_is_refused_and_the_host_is_not_heard(at: Clock, body: bytes) -> None:
    agent = make_online_agent()
    before = agent.row.last_heard_at
    at.forward(9)
    agent.seq += 1

    response = agent.post(body, agent.headers(body))

    assert response.status_code in {400, 413, 422}
    agent.check_signature(response)
    assert agent.row.last_heard_at == before


@pytest.mark.parametrize(
    "changes",
    [
        {"events": [{"n": -1, "kind": "xid"}, {"n": 2**63, "kind": "xid"}, {"n": True, "kind": "x"}, {"n": 1}]},
        {"receipts": [{"n": -5}, {"n": 2**63}, {"n": 1, "member": -1, "epoch": -1}, {"n": 2, "member": 2**20}]},
        {"logs": [{"lease": REFERENCE, "member": 0, "epoch": 1, "offset": -7, "text": "x"}]},
        {"logs": [{"lease": REFERENCE, "member": 0, "epoch": 1, "offset": 2**63 - 1, "text": "x"}]},
        {"logs": [{"lease": REFERENCE, "member": 0, "epoch": 1, "offset": 0, "bytes": 2**63, "text": "x"}]},
        {"devices": [{"uuid": "SIM-node-1-0", "age_s": -(2**40), "readings": {"energy_mj": -1, "pcie_replays": -9}}]},
        {"devices": [{"uuid": "SIM-node-1-0", "readings": {"slowdown_bits": -1, "nvlinks_up": -4, "pcie_width": 0}}]},
        {"devices": [{"uuid": "SIM-node-1-0", "readings": {"slowdown_bits": 1e300, "pcie_generation": 1e308}}]},
        {"devices": [{"uuid": "SIM-node-1-0", "readings": {"nvlinks_up": 2**60, "recovery_action": -3}}]},
        {"devices": [{"uuid": "SIM-node-1-0", "readings": {"recovery_action": [1]}, "xids": [-1, 2**40, None, "79"]}]},
        {"rss_mib": -1},
        {"conditions": ["x" * 10_000, 7, None]},
    ],
    ids=lambda changes: json.dumps(changes)[:70],
)
def test_figures_that_cannot_be_never_fail_a_sync_and_bill_nothing(at: Clock, changes: dict[str, Any]) -> None:
    agent = make_online_agent()
    desired = start(agent)

    agent.sync(workloads=[agent.report(desired, "probing")], **changes)

    assert Workload.objects.get().ready_at is None
    assert agent.row.last_seq == agent.seq


def test_the_highest_boot_number_locks_a_host_out_by_its_own_hand_until_it_enrols_again(at: Clock) -> None:
    agent = make_online_agent()
    agent.boot_no, agent.seq = 2**63 - 1, 0
    assert agent.send().status_code == 200
    agent.boot_no = 2**63
    assert slug(agent.send()) == "unauthenticated"

    agent.boot_no, agent.seq = 1, 0
    assert slug(agent.send()) == "agent-replay"
    owner = agent.row.owner
    _, token = enrolment.invite(
        organization=owner, zone="sim-1", name=agent.name, access="public", created_by="t", at=at()
    )
    agent.key, agent.instance = SigningKey.generate(), "instance-3"
    assert agent.enrol(token).status_code == 201
    assert agent.send().status_code == 200


def test_a_boot_id_that_changes_with_each_sync_heals_no_lost_device(at: Clock) -> None:
    agent = make_online_agent()
    agent.device_state = {agent.uuids[0]: {"xids": [79]}}
    agent.sync()
    agent.device_state = {agent.uuids[0]: {"state": "lost"}}
    for number in range(3):
        agent.boot_id = f"boot-from-the-future-{number}"
        at.forward(5)
        agent.clock_s += 5
        agent.sync()

    assert agent.row.devices.get(uuid=agent.uuids[0]).health == "lost"
