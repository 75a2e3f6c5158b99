"""Levels, unannounced challenges, and figures against the fleet; all of it on simulated devices, which say so."""

from datetime import timedelta
from typing import Any

import pytest

from agents import baselines, challenges, verification
from agents.baselines import Baseline
from agents.models import Device, Host, HostEvent, SelfTest
from agents.protocol import selftest_proof
from audit.models import Entry
from catalogue.models import GpuModel
from tests.agents.conftest import Clock
from tests.agents.fake_agent import FakeAgent, make_agent, make_online_agent
from tests.agents.test_sync import want
from tests.factories import NOON, after, make_gpu_model, make_host

pytestmark = pytest.mark.django_db
DAY = 86_400


def answer(agent: FakeAgent, at: Clock, wish: dict[str, Any], **figures: int) -> None:
    agent.clock_s = int(at().timestamp())
    rows = [row | {"figures": figures} for row in agent.selftest_event(wish)["devices"]]
    agent.sync(events=[agent.selftest_event(wish, devices=rows)])


def ask(agent: FakeAgent, at: Clock, **how: Any) -> dict[str, Any]:
    verification.ask_again(host_id=agent.row.pk, cause="test", at=at(), **how)
    agent.clock_s = int(at().timestamp())
    wish: dict[str, Any] = agent.sync()["wishes"][0]
    return wish


def fleet(values: list[int]) -> GpuModel:
    """Hosts with two devices each, whose last passed test has these figures."""
    for value in values:
        host = make_host(gpus=2)
        uuids = list(host.devices.values_list("uuid", flat=True))
        figures = {uuid: {"fp16_gflops": value} for uuid in uuids}
        SelfTest.objects.create(
            host=host, seed="0", devices=uuids, asked_at=NOON, answer_by=NOON, answered_at=NOON, passed=True,
            figures=figures, simulated=True,
        )  # fmt: skip
    return make_gpu_model()


def test_the_rule_of_the_baseline_is_what_its_page_says() -> None:
    tight, wide = Baseline(1000, 10, 12), Baseline(1000, 200, 12)

    assert (tight.least, tight.most) == (850, 1300)
    assert (wide.least, wide.most) == (600, 2200)  # 3 S would allow 400: never below 60 %
    assert Baseline(650, 0, 0, peak=1000).most == 1050
    assert Baseline(100, 0, 0).most is None
    assert baselines.spread_of([90, 100, 100, 110, 1000])[1] == pytest.approx(14.826)


def test_one_liar_in_a_fleet_does_not_move_its_median() -> None:
    model = fleet([1000] * 9 + [990, 1010, 9_000_000])

    found = baselines.of_model(model, simulated=True)["fp16_gflops"]

    assert (found.middle, found.hosts) == (1000, 12)
    assert found.fault(9_000_000) is not None
    assert found.fault(840) is not None
    assert found.fault(860) is None


def test_under_ten_hosts_the_published_figures_stand_in_and_the_judged_host_is_no_witness() -> None:
    fleet([500] * 10)
    GpuModel.objects.update(fp16_tensor_dense_tflops=1.0, confidence="high")
    model = GpuModel.objects.get(slug="A100_80G")

    assert baselines.of_model(model, simulated=True)["fp16_gflops"].middle == 500
    but = baselines.of_model(model, simulated=True, but=Host.objects.earliest("created_at"))["fp16_gflops"]
    assert (but.middle, but.hosts) == (650, 0)
    assert (
        baselines.of_model(model, simulated=False)["fp16_gflops"].hosts == 0
    )  # simulated ones count there for nothing


def test_a_figure_that_no_such_device_can_reach_is_not_believed(at: Clock) -> None:
    agent = make_agent()
    GpuModel.objects.filter(slug="A100_80G").update(fp16_tensor_dense_tflops=312.0, confidence="high")
    wish = agent.sync(inventory=agent.inventory())["wishes"][0]

    answer(agent, at, wish, fp16_gflops=900_000)

    assert agent.row.state == "unverified"
    assert "more than a device of this model can do" in agent.row.state_reason


@pytest.mark.parametrize("figure", [-1, 2**60, True, "7", 1.5, None])
def test_figures_that_are_none_are_left_out(at: Clock, figure: Any) -> None:
    agent = make_agent()
    wish = agent.sync(inventory=agent.inventory())["wishes"][0]

    answer(agent, at, wish, fp16_gflops=figure)

    assert agent.row.level == "L0"
    assert set(map(str, SelfTest.objects.get().figures.values())) == {"{}"}


def test_a_test_without_figures_shows_l0_and_one_with_them_l1_that_holds_thirty_days(at: Clock) -> None:
    agent = make_online_agent()
    assert agent.row.level == "L0"

    answer(agent, at, ask(agent, at), fp16_gflops=200_000)
    assert agent.row.level == "L1"
    at.forward(DAY)
    answer(agent, at, ask(agent, at))
    assert (agent.row.level, agent.row.level_at) == ("L1", NOON)

    at.forward(30 * DAY)
    answer(agent, at, ask(agent, at))
    assert agent.row.level == "L0"
    assert SelfTest.objects.filter(simulated=True).count() == SelfTest.objects.count()


def test_an_l2_is_three_rounds_after_pauses_that_nobody_knows_and_they_must_agree(at: Clock) -> None:
    agent = make_online_agent()
    answer(agent, at, ask(agent, at, level="L2"), fp16_gflops=200_000)
    seeds = []
    for round in (2, 3):
        assert verification.challenge(at=at.forward(challenges.PAUSE_LEAST_S - 1)) == 0
        assert verification.challenge(at=at.forward(challenges.PAUSE_MOST_S)) == 1
        agent.clock_s = int(at().timestamp())
        wish = agent.sync()["wishes"][0]
        seeds.append(wish["seed"])
        assert (wish["level"], SelfTest.objects.get(passed=None).round) == ("L2", round)
        answer(agent, at, wish, fp16_gflops=205_000)

    assert len(set(seeds)) == 2
    assert agent.row.level == "L2"


def test_rounds_that_do_not_agree_show_a_borrowed_device(at: Clock) -> None:
    agent = make_online_agent()
    answer(agent, at, ask(agent, at, level="L2"), fp16_gflops=200_000)
    at.forward(300)

    answer(agent, at, ask(agent, at, level="L2", round=2), fp16_gflops=150_000)

    assert agent.row.level == ""
    assert agent.row.state == "unverified"
    assert "200000 in one round and 150000 in the next" in agent.row.state_reason


def test_idle_hosts_are_asked_between_half_a_week_and_a_week_later_and_busy_ones_are_left_alone(at: Clock) -> None:
    agent = make_online_agent()
    asked_after_s = None
    for hours in range(1, 8 * 24):
        if verification.challenge(at=at.forward(3600)):
            asked_after_s = hours * 3600
            break

    assert asked_after_s is not None
    assert 3.5 * DAY <= asked_after_s <= 7 * DAY + 3600
    assert SelfTest.objects.get(passed=None).cause == "unannounced"
    SelfTest.objects.filter(passed=None).delete()
    want(agent)
    assert verification.challenge(at=at.forward(30 * DAY)) == 0


def test_the_day_is_another_one_for_each_host_and_hangs_on_our_key(settings: Any) -> None:
    tests = [SelfTest(seed="0") for _ in range(20)]
    days = {round(challenges._secret(test), 3) for test in tests}

    assert len(days) > 15
    first = challenges._secret(tests[0])
    settings.CONTROL_SIGNING_KEY = "ab" * 32
    assert challenges._secret(tests[0]) != first


def test_a_device_that_is_below_its_own_record_twice_is_suspect(at: Clock) -> None:
    agent = make_online_agent()
    for value in (1000, 1000, 880):
        answer(agent, at, ask(agent, at), fp16_gflops=value)
        at.forward(60)
    assert set(Device.objects.values_list("health", flat=True)) == {"healthy"}

    answer(agent, at, ask(agent, at), fp16_gflops=890)

    assert set(Device.objects.values_list("health", flat=True)) == {"suspect"}
    assert "890 and 880, after 1000" in Device.objects.earliest("index").health_reason


def test_new_hardware_takes_the_level_away_at_once(at: Clock) -> None:
    agent = make_online_agent()
    answer(agent, at, ask(agent, at), fp16_gflops=200_000)
    agent.gpus = 1

    agent.sync(inventory=agent.inventory())

    assert (agent.row.tier, agent.row.level, agent.row.level_at) == ("unverified", "", None)


def test_certifying_takes_an_l2_that_holds_and_stands_in_the_audit_log() -> None:
    host = make_host()
    by: dict[str, Any] = {"host_id": host.pk, "reason": "contract 7", "by": "user:1"}
    with pytest.raises(challenges.NotShown):
        challenges.certify(at=after(0), **by)
    Host.objects.update(level="L2", level_at=NOON - timedelta(days=29))

    assert challenges.certify(at=after(0), **by).tier == "certified"
    assert Entry.objects.get(action="host.certified").why == "contract 7"
    assert challenges.uncertify(at=after(1), **by).tier == "verified"


def test_a_failed_verification_names_the_fault_that_the_self_test_found(at: Clock) -> None:
    agent = make_agent()
    agent.sync()
    (wish,) = agent.sync(inventory=agent.inventory())["wishes"]
    fault = "Its memory does not keep what is written:\n 12 of 4,096 words differ."
    rows = [{"uuid": uuid, "proof": "", "figures": {}, "fault": fault} for uuid in agent.uuids]

    agent.sync(events=[agent.selftest_event(wish, devices=rows)])

    words = "Its memory does not keep what is written: 12 of 4,096 words differ."
    assert agent.row.state == "unverified"
    assert words in agent.row.state_reason
    assert HostEvent.objects.filter(kind="host.selftest_failed").latest("pk").detail.count(words) == 2
    checks = {check["check"]: check["detail"] for check in SelfTest.objects.latest("asked_at").checks}
    assert checks[agent.uuids[0]] == words


def test_a_device_that_is_said_to_be_faulty_is_taken_out_also_with_a_proof_and_one_without_words_is_named(
    at: Clock,
) -> None:
    agent = make_online_agent(gpus=3)
    verification.ask_again(host_id=agent.row.pk, cause="test", at=at())
    (wish,) = agent.sync()["wishes"]
    first, second, third = agent.uuids
    proof = {uuid: selftest_proof(seed=wish["seed"], device=uuid) for uuid in agent.uuids}
    rows = [
        {"uuid": first, "proof": proof[first], "figures": {}, "fault": "It computes wrong products."},
        {"uuid": second, "proof": proof[second], "figures": {}, "fault": ["no", "text"]},
    ]

    agent.sync(events=[agent.selftest_event(wish, devices=rows)])

    found = {device.uuid: (device.health, device.health_reason) for device in Device.objects.all()}
    assert found[first] == ("degraded", "Self-test failed: It computes wrong products.")
    assert found[second] == ("healthy", "")
    assert found[third][0] == "degraded"
    assert "did not answer for it" in found[third][1]
