from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agents import verification, workloads
from agents.models import Alarm, Device, Host, HostEvent, Workload
from catalogue.models import GpuModel
from tests.agents.conftest import Clock
from tests.agents.fake_agent import FakeAgent, make_agent, make_online_agent
from tests.factories import NOON, after, make_gpu_model

pytestmark = pytest.mark.django_db
REFERENCE = "lease_00000000000000000000000001"


def want(agent: FakeAgent, **changes: Any) -> Workload:
    terms: dict[str, Any] = {
        "reference": REFERENCE, "member": 0, "epoch": 1, "valid_for_s": 60, "stop_grace_s": 30, "not_after": None,
        "spec": {"image": "pytorch", "devices": agent.uuids}, "host_id": agent.row.pk, "at": NOON,
    }  # fmt: skip
    return workloads.want(**(terms | changes))


def start(agent: FakeAgent, **changes: Any) -> dict[str, Any]:
    """Want a workload, hand it to the agent, and return it as the agent was told."""
    want(agent, **changes)
    desired: dict[str, Any] = agent.sync()["desired"][0]
    return desired


def test_a_new_host_is_online_and_verified_after_three_requests(at: Clock) -> None:
    agent = make_agent()
    agent.come_online()

    host = agent.row
    assert (host.state, host.tier, host.verified_at) == ("online", "verified", NOON)
    assert {d.health for d in host.devices.all()} == {"healthy"}
    assert (host.cpu_milli, host.cpu_milli_per_gpu, host.driver_version) == (32_000, 15_200, "570.86.15")
    assert [d.nvlink_clique for d in host.devices.all()] == [0, 0]
    assert host.self_tests.get().simulated


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"driver_version": "470.1"}, "below 535"),
        ({"engine": {}}, "no container engine"),
        ({"gpus": []}, "No GPU"),
    ],
)
def test_a_host_that_fails_a_check_stays_unverified_and_is_told_why(
    at: Clock, changes: dict[str, Any], why: str
) -> None:
    agent = make_agent(inventory_changes=changes)

    answer = agent.sync(inventory=agent.inventory())

    assert answer["wishes"] == []
    assert agent.row.state == "unverified"
    assert why in agent.row.state_reason


def test_a_gpu_that_the_catalogue_does_not_know_keeps_the_host_out(at: Clock) -> None:
    agent = make_agent()
    agent.slug = "UNHEARD_OF"

    agent.sync(inventory=agent.inventory())

    assert "Not in the catalogue" in agent.row.state_reason


def test_what_was_declared_must_be_what_is_found(at: Clock) -> None:
    agent = make_agent()
    make_gpu_model("H100_80G")
    Host.objects.update(declared={"gpus": {"H100_80G": 2}})

    agent.sync(inventory=agent.inventory())

    assert "Declared {'H100_80G': 2}, found {'A100_80G': 2}" in agent.row.state_reason


def test_a_wrong_proof_or_a_late_one_verifies_nothing_and_is_asked_again_later(at: Clock) -> None:
    agent = make_agent()
    wish = agent.sync(inventory=agent.inventory())["wishes"][0]
    lie = [{"uuid": uuid, "proof": "00" * 32, "figures": {}} for uuid in agent.uuids]

    agent.sync(events=[agent.selftest_event(wish, devices=lie)])

    assert agent.row.state == "unverified"
    assert "proof" in agent.row.state_reason
    assert agent.sync()["wishes"] == []
    at.forward(11)
    late = agent.sync()["wishes"][0]
    at.forward(61)
    agent.sync(events=[agent.selftest_event(late)])
    assert agent.row.state == "unverified"
    assert "time" in agent.row.state_reason


def test_a_test_that_is_never_answered_costs_a_serving_host_its_place(at: Clock) -> None:
    agent = make_online_agent()
    verification.ask_again(host_id=agent.row.pk, cause="operator", at=at())
    assert agent.sync()["wishes"]

    verification.expire(at=at.forward(61))

    assert (agent.row.state, agent.row.tier) == ("unverified", "unverified")


def test_one_gpu_that_fails_is_taken_out_and_the_others_serve(at: Clock) -> None:
    agent = make_agent(gpus=3)
    wish = agent.sync(inventory=agent.inventory())["wishes"][0]
    rows = agent.selftest_event(wish)["devices"]

    agent.sync(events=[agent.selftest_event(wish, devices=rows[:2])])

    assert agent.row.state == "online"
    assert [device.health for device in agent.row.devices.all()] == ["healthy", "healthy", "degraded"]


def test_a_figure_far_below_the_published_one_is_not_verified(at: Clock) -> None:
    agent = make_agent(slug="H100_SXM")
    GpuModel.objects.filter(slug="H100_SXM").update(fp16_tensor_dense_tflops=1000.0, confidence="high")
    wish = agent.sync(inventory=agent.inventory())["wishes"][0]
    good = agent.selftest_event(wish)["devices"]
    slow = [row | {"figures": {"fp16_gflops": 500_000}} for row in good]

    agent.sync(events=[agent.selftest_event(wish, devices=slow)])

    # 85 % of 65 % of 1000 TFLOPS are 552.5.
    assert agent.row.state == "unverified"
    assert "fp16_gflops" in agent.row.state_reason


def test_another_set_of_gpus_makes_a_verified_host_unverified_at_once(at: Clock) -> None:
    agent = make_online_agent()
    agent.gpus = 1

    agent.sync(inventory=agent.inventory())

    assert agent.row.tier == "unverified"
    assert HostEvent.objects.filter(kind="host.hardware_changed").exists()
    gone = Device.objects.get(uuid="SIM-node-1-1")
    assert (gone.present, gone.health) == (False, "lost")


def test_the_wanted_list_is_whole_and_null_when_unchanged(at: Clock) -> None:
    agent = make_online_agent()
    want(agent)

    first, second = agent.sync(), agent.sync()

    assert [row["lease"] for row in first["desired"]] == [REFERENCE]
    assert second["desired"] is None
    assert second["valid_for_s"] == {f"{REFERENCE}/0/1": 60}


def test_how_long_it_may_run_on_is_written_before_the_answer_leaves(at: Clock) -> None:
    agent = make_online_agent()
    start(agent)
    at.forward(20)

    agent.sync()

    assert Workload.objects.get().last_valid_until == after(80)


def test_no_renewal_reaches_beyond_the_end_of_the_term(at: Clock) -> None:
    agent = make_online_agent()
    want(agent, not_after=after(45))
    at.forward(10)

    assert agent.sync()["valid_for_s"] == {f"{REFERENCE}/0/1": 35}
    at.forward(100)
    assert agent.sync()["valid_for_s"] == {f"{REFERENCE}/0/1": 0}


def test_ready_counts_from_the_second_in_which_it_was_received(at: Clock) -> None:
    agent = make_online_agent()
    desired = start(agent)
    at.forward(3.7)

    agent.sync(workloads=[agent.report(desired, "ready")])
    at.forward(5)
    agent.sync(workloads=[agent.report(desired, "ready")])

    workload = Workload.objects.get()
    assert (workload.ready_at, workload.reported_at) == (after(3), after(8.7))


def test_a_container_that_does_not_see_exactly_its_gpus_is_not_ready(at: Clock) -> None:
    agent = make_online_agent()
    desired = start(agent)

    for seen in (None, [], agent.uuids[:1], [*agent.uuids, "GPU-of-somebody-else"]):
        agent.sync(workloads=[agent.report(desired, "ready", visible_devices=seen)])
        workload = Workload.objects.get()
        assert (workload.ready_at, workload.failure) == (None, "gpu_invisible")


def test_an_exit_is_kept_with_its_second_and_code(at: Clock) -> None:
    agent = make_online_agent()
    desired = start(agent)
    agent.sync(workloads=[agent.report(desired, "ready")])
    at.forward(50)
    agent.sync(workloads=[agent.report(desired, "ready")])
    at.forward(10.5)

    agent.sync(workloads=[agent.report(desired, "exited", exit_code=3)])

    workload = Workload.objects.get()
    assert (workload.exited_at, workload.exit_code, workload.gone_at) == (after(60), 3, None)


def test_gone_is_an_acknowledgement_only_of_what_is_given_up(at: Clock) -> None:
    agent = make_online_agent()
    desired = start(agent)
    agent.sync(workloads=[agent.report(desired, "gone")])
    assert Workload.objects.get().gone_at is None

    workloads.unwant(reference=REFERENCE, at=after(1), reason="end")
    at.forward(5)
    agent.sync(workloads=[agent.report(desired, "gone")])

    assert Workload.objects.get().gone_at == after(5)


def test_what_an_agent_forgot_is_gone_once_it_must_have_stopped_its_orphans(at: Clock) -> None:
    agent = make_online_agent()
    desired = start(agent)
    agent.sync(workloads=[agent.report(desired, "ready")])
    workloads.unwant(reference=REFERENCE, at=after(1), reason="end")
    at.forward(1000)
    agent.boot_no, agent.seq, agent.instance, agent.have_generation = 2, 0, "journal-lost", -1
    agent.clock_s += 1000

    agent.sync()  # takes in the list without it, and has forgotten it
    agent.sync()
    assert Workload.objects.get().gone_at is None
    at.forward(60 + 30 + 30 - 1)
    agent.sync()
    assert Workload.objects.get().gone_at is None
    at.forward(1)
    agent.sync(conditions=["engine_down"])
    assert Workload.objects.get().gone_at is None
    agent.sync()

    assert Workload.objects.get().gone_at == after(1120)


def test_a_container_that_cannot_be_stopped_cordons_its_host_once_and_calls_a_person(at: Clock) -> None:
    agent = make_online_agent()
    desired = start(agent)
    workloads.unwant(reference=REFERENCE, at=after(1), reason="end")
    stuck = [agent.report(desired, "stuck")]

    agent.sync(workloads=stuck)
    agent.sync(workloads=stuck)

    assert agent.row.scheduling == "cordoned"
    assert HostEvent.objects.filter(kind="host.cordoned").count() == 1
    assert Alarm.objects.get(closed_at=None).kind == "workload_stuck"
    assert Workload.objects.get().gone_at is None


def test_lost_use_is_known_with_its_first_second_until_it_is_back(at: Clock) -> None:
    agent = make_online_agent()
    desired = start(agent)
    agent.sync(workloads=[agent.report(desired, "ready")])
    at.forward(10)
    agent.sync(workloads=[agent.report(desired, "ready", unusable=True)])
    at.forward(10)
    agent.sync(workloads=[agent.report(desired, "ready", unusable=True)])
    assert Workload.objects.get().unusable_since == after(10)

    agent.sync(workloads=[agent.report(desired, "ready")])

    assert Workload.objects.get().unusable_since is None


def test_an_xid_79_takes_its_gpu_out_and_leaves_the_host_in(at: Clock) -> None:
    agent = make_online_agent()
    sick, well = agent.uuids
    agent.device_state[sick] = {"xids": [79]}

    agent.sync()

    assert Device.objects.get(uuid=sick).health == "lost"
    assert Device.objects.get(uuid=well).health == "healthy"
    assert agent.row.state == "online"
    assert HostEvent.objects.get(kind="device.lost").facts["provider_fault"]


def test_a_gpu_that_answers_again_serves_again_only_after_a_reboot_and_a_self_test(at: Clock) -> None:
    agent = make_online_agent()
    sick = agent.uuids[0]
    agent.device_state[sick] = {"state": "lost"}
    agent.sync()
    agent.device_state.clear()
    agent.sync()
    assert Device.objects.get(uuid=sick).health == "lost"

    agent.boot_id, agent.boot_no, agent.seq, agent.instance = "boot-2", 2, 0, "instance-2"
    wish = agent.sync()["wishes"][0]
    assert Device.objects.get(uuid=sick).health == "selftest"
    agent.sync(events=[agent.selftest_event(wish)])

    assert Device.objects.get(uuid=sick).health == "healthy"


def test_conditions_are_kept_and_told_once(at: Clock) -> None:
    agent = make_online_agent()

    agent.sync(conditions=["disk_pressure"])
    agent.sync(conditions=["disk_pressure"])

    assert agent.row.conditions == ["disk_pressure"]
    assert HostEvent.objects.filter(kind="host.conditions").count() == 1


def test_events_are_kept_once_however_often_they_are_sent(at: Clock) -> None:
    agent = make_online_agent()
    event = agent.event("foreign_use", pid=7)

    first, second = agent.sync(events=[event]), agent.sync(events=[event])

    assert first["acks"]["events"] == second["acks"]["events"] == event["n"]
    assert HostEvent.objects.filter(kind="agent.foreign_use").count() == 1


def test_a_host_that_was_lost_is_online_again_when_it_is_heard(at: Clock) -> None:
    agent = make_online_agent()
    Host.objects.update(state="lost")

    agent.sync()

    assert agent.row.state == "online"


LEAVES = st.none() | st.booleans() | st.integers(-(10**19), 10**19) | st.text(max_size=8)
JUNK = st.recursive(
    LEAVES | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
NAMES = st.sampled_from([
    "lease", "member", "epoch", "spec_hash", "step", "detail", "exit_code", "ports", "progress", "visible_devices",
    "uuid", "state", "age_s", "readings", "xids", "n", "kind", "id", "devices", "offset", "text", "bytes", "prev",
])  # fmt: skip
ITEMS = st.lists(JUNK | st.dictionaries(NAMES, JUNK | st.just("ready") | st.just(REFERENCE)), max_size=4)
LISTS = ("workloads", "devices", "events", "receipts", "logs")
CLEAN = {"\x00"} | {chr(c) for c in range(0xD800, 0xE000)}


def clean(value: Any) -> Any:
    """Without the characters that the strict reader refuses for the whole request."""
    if isinstance(value, str):
        return "".join(c for c in value if c not in CLEAN)
    if isinstance(value, list):
        return [clean(item) for item in value]
    return {clean(k): clean(v) for k, v in value.items()} if isinstance(value, dict) else value


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lists=st.fixed_dictionaries(dict.fromkeys(LISTS, ITEMS)))
def test_no_item_however_strange_fails_the_whole_sync(at: Clock, one_agent: list[FakeAgent], lists: Any) -> None:
    if not one_agent:
        one_agent.append(make_online_agent())
        want(one_agent[0])

    one_agent[0].sync(**clean(lists))

    assert Workload.objects.get().ready_at is None


@pytest.fixture
def one_agent() -> list[FakeAgent]:
    return []


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("203.0.113.7", "203.0.113.7"),
        ("2001:db8::7", "2001:db8::7"),
        ("fe80::1%eth0", "127.0.0.1"),
        ("fe80::1%\nflush ruleset", "127.0.0.1"),
        ("router.lan", "127.0.0.1"),
        (7, "127.0.0.1"),
        (None, "127.0.0.1"),
    ],
)
def test_what_is_no_address_is_not_taken_for_one(at: Clock, said: Any, kept: str) -> None:
    """Other hosts write it into the rules of their firewalls."""
    agent = make_agent(inventory_changes={"address": said})
    agent.sync(inventory=agent.inventory())

    assert agent.row.address == kept
