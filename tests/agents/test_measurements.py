"""What GPUs measured while a workload had them: from syncs to steps."""

from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings

from agents import measurements
from agents.models import MeasuredMinute, Workload
from tests.agents.conftest import Clock
from tests.agents.fake_agent import FakeAgent, make_online_agent
from tests.agents.test_sync import start
from tests.factories import NOON, after

pytestmark = pytest.mark.django_db
MINUTE = timedelta(minutes=1)


def run(agent: FakeAgent, **changes: Any) -> None:
    """Start a workload on all GPUs of the agent, and let it be ready."""
    desired = start(agent, **changes)
    agent.workloads = [agent.report(desired, "ready")]
    agent.sync()


def sync(agent: FakeAgent, *, age_s: int = 0, **readings: Any) -> None:
    agent.device_state = {uuid: {"age_s": age_s, "readings": readings} for uuid in agent.uuids}
    agent.sync()


def steps(step: timedelta = MINUTE, *, until_s: int = 3600) -> dict[tuple[str, str], list[tuple[int, int, int, int]]]:
    """Return what was measured: per GPU and figure, (minute, samples, mean, highest)."""
    found = measurements.steps(list(Workload.objects.all()), since=NOON, until=after(until_s), step=step)
    return {
        (gpu, figure): [
            (int((start - NOON).total_seconds() / 60), one.count, one.mean, one.peak)
            for start, one in sorted(by_start.items())
        ]
        for (_, gpu, figure), by_start in found.items()
    }


def test_samples_of_a_minute_become_one_row_with_their_mean_and_highest(at: Clock) -> None:
    agent = make_online_agent(gpus=2)
    run(agent)
    for percent in (10, 20, 90):
        at.forward(15)
        sync(agent, utilization_percent=percent, memory_used_mib=1000, power_mw=300_500, temperature_c=61.4)

    at.forward(15)
    sync(agent, utilization_percent=50, memory_used_mib=1000, power_mw=300_500, temperature_c=61.4)

    assert MeasuredMinute.objects.count() == 2
    for gpu in agent.uuids:
        assert steps()[gpu, "utilization_percent"] == [(0, 3, 40, 90), (1, 1, 50, 50)]
        assert steps(5 * MINUTE)[gpu, "utilization_percent"] == [(0, 4, 42, 90)]
        assert steps()[gpu, "power_mw"][0] == (0, 3, 300_500, 300_500)
        assert steps()[gpu, "temperature_c"][1] == (1, 1, 61, 61)


def test_readings_that_are_sent_again_are_one_sample(at: Clock) -> None:
    agent = make_online_agent(gpus=1)
    run(agent)
    for age_s in (0, 5, 10):  # read once, and sent by three syncs
        at.forward(5)
        sync(agent, age_s=age_s, utilization_percent=70)

    at.forward(5)
    sync(agent, utilization_percent=70)  # read anew, and the same

    assert steps()[agent.uuids[0], "utilization_percent"] == [(0, 2, 70, 70)]


@pytest.mark.parametrize("nothing", [None, "7", True, [7], -1, 101, float(10**9)])
def test_what_is_no_figure_is_not_measured(at: Clock, nothing: Any) -> None:
    agent = make_online_agent(gpus=1)
    run(agent)
    at.forward(15)

    sync(agent, utilization_percent=nothing, temperature_c=50)

    assert {figure for _, figure in steps()} == {"temperature_c"}


def test_old_readings_say_nothing_of_now(at: Clock) -> None:
    agent = make_online_agent(gpus=1)
    run(agent)
    at.forward(100)

    sync(agent, age_s=61, utilization_percent=7)

    assert steps() == {}


def test_nothing_is_kept_before_it_is_ready_nor_after_it_ended(at: Clock) -> None:
    agent = make_online_agent(gpus=1)
    desired = start(agent)
    agent.workloads = [agent.report(desired, "pulling")]
    at.forward(15)
    sync(agent, utilization_percent=1)
    agent.workloads = [agent.report(desired, "exited", exit_code=0)]
    at.forward(15)
    sync(agent, utilization_percent=2)

    assert not MeasuredMinute.objects.exists()


def test_of_a_card_that_is_shared_nothing_is_kept(at: Clock) -> None:
    agent = make_online_agent(gpus=2)
    shared, whole = agent.uuids
    run(agent, spec={"image": "x", "devices": agent.uuids, "units": {shared: [0, 4]}})
    at.forward(15)

    sync(agent, utilization_percent=80)

    assert set(steps()) == {(whole, "utilization_percent")}


def test_an_idle_machine_keeps_nothing(at: Clock) -> None:
    agent = make_online_agent(gpus=1)
    for _ in range(3):
        at.forward(15)
        sync(agent, utilization_percent=80)

    assert not MeasuredMinute.objects.exists()


def test_minutes_are_forgotten_after_their_time_oldest_first(at: Clock) -> None:
    agent = make_online_agent(gpus=1)
    run(agent)
    for _ in range(3):
        at.forward(60)
        sync(agent, utilization_percent=80)
    late = after(settings.METRICS_KEPT_S + 150)

    assert measurements.forget(at=late, limit=1) == 1
    assert measurements.forget(at=late) == 1
    assert [row.minute for row in MeasuredMinute.objects.all()] == [after(180)]
