"""What a host says first after a silence is not proof of the seconds in which it said nothing: nobody pays for them.

The breaker and the grace keep silent hosts from being declared lost for as long as it takes; their leases stay active
then, and nothing of this may be charged for a machine that was dead meanwhile.
"""

from typing import Any

import pytest

from agents.models import Device, Workload
from tests.agents.conftest import Clock
from tests.agents.fake_agent import FakeAgent, make_online_agent
from tests.agents.test_sync import start
from tests.factories import after

pytestmark = pytest.mark.django_db
LAST_WORD_S = 20


@pytest.fixture
def agent(at: Clock) -> FakeAgent:
    """A host on which a container was ready from 0 s on, and was last heard to be at 20 s."""
    agent = make_online_agent()
    agent.desired = start(agent)  # type: ignore[attr-defined]
    for _ in range(2):
        agent.sync(workloads=[agent.report(agent.desired, "ready")])  # type: ignore[attr-defined]
        at.forward(LAST_WORD_S)
    at.forward(-LAST_WORD_S)
    return agent


def speak(agent: FakeAgent, at: Clock, step: str, *, after_s: float, **changes: Any) -> Workload:
    at.forward(after_s)
    agent.clock_s = int(at().timestamp())
    agent.sync(workloads=[agent.report(agent.desired, step, **changes)])  # type: ignore[attr-defined]
    return Workload.objects.get()


@pytest.mark.parametrize("silent_s", [16, 25, 3600])
def test_a_container_that_ended_in_a_silence_ended_when_it_was_last_heard_to_run(
    agent: FakeAgent, at: Clock, silent_s: int
) -> None:
    workload = speak(agent, at, "exited", after_s=silent_s, exit_code=137)

    assert workload.exited_at == after(LAST_WORD_S)


def test_a_container_that_ended_while_its_host_spoke_ended_when_that_was_heard(agent: FakeAgent, at: Clock) -> None:
    assert speak(agent, at, "exited", after_s=14, exit_code=0).exited_at == after(LAST_WORD_S + 14)


def test_use_that_was_lost_in_a_silence_was_lost_when_it_was_last_heard_to_be_there(
    agent: FakeAgent, at: Clock
) -> None:
    workload = speak(agent, at, "ready", after_s=600, unusable=True)

    assert workload.unusable_since == after(LAST_WORD_S)


def test_a_container_that_ran_through_a_silence_is_in_use_as_before(agent: FakeAgent, at: Clock) -> None:
    workload = speak(agent, at, "ready", after_s=600)

    assert (workload.exited_at, workload.unusable_since) == (None, None)


def test_a_gpu_that_fell_off_the_bus_in_a_silence_was_there_when_its_host_was_last_heard(
    agent: FakeAgent, at: Clock
) -> None:
    agent.device_state = {agent.uuids[0]: {"xids": [79]}}
    speak(agent, at, "ready", after_s=600)

    assert Device.objects.get(uuid=agent.uuids[0]).health_since == after(LAST_WORD_S)


def test_a_gpu_that_is_gone_from_the_inventory_after_a_silence_counts_as_gone_since_then(
    agent: FakeAgent, at: Clock
) -> None:
    gone = agent.uuids[1]
    there = [gpu for gpu in agent.inventory()["gpus"] if gpu["uuid"] != gone]
    agent.inventory_changes = {"gpus": there}
    at.forward(600)
    agent.clock_s = int(at().timestamp())
    agent.sync(inventory=agent.inventory(), workloads=[agent.report(agent.desired, "probing")])  # type: ignore[attr-defined]

    assert Device.objects.get(uuid=gone).health_since == after(LAST_WORD_S)
