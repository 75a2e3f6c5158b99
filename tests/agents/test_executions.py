"""A tenant's commands on the way to a host and back: asked once, the first answer counts, and only for its own host."""

import pytest

from agents import executions
from agents.models import Execution, HostEvent, Workload
from tests.agents.conftest import Clock
from tests.agents.fake_agent import FakeAgent, make_online_agent
from tests.agents.test_sync import want
from tests.factories import NOON

pytestmark = pytest.mark.django_db


def running(agent: FakeAgent) -> Workload:
    want(agent)
    desired = agent.sync()["desired"][0]
    agent.workloads = [agent.report(desired, "ready")]
    agent.sync()
    return Workload.objects.get()


def ask(workload: Workload, at: Clock) -> Execution:
    return executions.ask(workload=workload, argv=["true"], timeout_s=30, by="user:1", at=at())


def exec_wishes(agent: FakeAgent) -> list[str]:
    return [wish["id"] for wish in agent.sync()["wishes"] if wish["verb"] == "exec"]


def test_a_command_is_wished_for_until_its_answer_and_the_first_one_counts(at: Clock) -> None:
    agent = make_online_agent()
    row = ask(running(agent), at)
    assert exec_wishes(agent) == [row.public_id]

    said = {"id": row.public_id, "exit_code": 0, "output": "secret", "truncated": False, "failure": ""}
    agent.sync(events=[agent.event("exec", **said), agent.event("exec", **said | {"exit_code": 1})])

    row.refresh_from_db()
    assert (row.exit_code, row.output, executions.state(row, at=at())) == (0, "secret", "done")
    assert exec_wishes(agent) == []
    assert "secret" not in str(list(HostEvent.objects.values_list("facts", flat=True)))


def test_another_host_answers_for_nobody(at: Clock) -> None:
    agent, other = make_online_agent(), make_online_agent("node-2")
    row = ask(running(agent), at)

    other.sync(events=[other.event("exec", id=row.public_id, exit_code=0, output="lie")])
    agent.sync(events=[agent.event("exec", id="exec_x", exit_code=True, output=7)])

    row.refresh_from_db()
    assert row.answered_at is None


def test_without_an_answer_in_time_it_is_lost_and_not_asked_for_any_more(at: Clock) -> None:
    agent = make_online_agent()
    row = ask(running(agent), at)

    at.forward(30 + executions.ANSWER_MARGIN_S + 1)

    assert executions.state(row, at=at()) == "lost"
    agent.clock_s = int(at().timestamp())
    assert exec_wishes(agent) == []


def test_only_what_runs_is_asked_and_only_so_many_at_once(at: Clock) -> None:
    agent = make_online_agent()
    workload = running(agent)
    for _ in range(executions.OPEN_LIMIT):
        ask(workload, at)
    with pytest.raises(executions.TooManyOpen):
        ask(workload, at)

    workload.step = "exited"
    with pytest.raises(executions.NotRunning):
        ask(workload, at)


def test_what_came_is_kept_for_a_week(at: Clock) -> None:
    agent = make_online_agent()
    workload = running(agent)
    old = ask(workload, at)
    Execution.objects.update(asked_at=NOON - executions.KEPT, answered_at=NOON)
    at.forward(1)

    new = ask(workload, at)

    assert list(Execution.objects.values_list("pk", flat=True)) == [new.pk] != [old.pk]
