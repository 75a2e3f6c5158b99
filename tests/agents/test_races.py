"""What two processes may do at the same instant. Each of these fails when its guard is taken away."""

import json
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.db.models.expressions import RawSQL

from agents import workloads
from agents.models import Host, Workload
from tests.agents.fake_agent import make_online_agent
from tests.agents.test_sync import REFERENCE
from tests.factories import NOON, make_host

pytestmark = pytest.mark.django_db(transaction=True)
THREADS = 8


def at_once(act: Callable[[int], Any]) -> list[Any]:
    """Run `act(0)` to `act(7)` in eight threads that start together; return what each returned or raised."""
    barrier, outcomes = threading.Barrier(THREADS), [None] * THREADS

    def run(number: int) -> None:
        barrier.wait()
        try:
            outcomes[number] = act(number)
        except Exception as fault:
            outcomes[number] = fault  # type: ignore[call-overload]
        finally:
            connection.close()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return outcomes


def test_one_number_is_accepted_once() -> None:
    agent = make_online_agent(clock_s=int(time.time()))
    agent.seq += 1
    raw = json.dumps(agent.body()).encode()
    headers = agent.headers(raw)

    statuses = at_once(lambda _: agent.post(raw, headers).status_code)

    assert sorted(statuses) == [200] + [409] * (THREADS - 1)


def test_epochs_wanted_at_once_on_several_hosts_never_go_back() -> None:
    hosts = [make_host() for _ in range(THREADS)]

    def want(number: int) -> int:
        workload = workloads.want(
            reference=REFERENCE, member=0, host_id=hosts[number].pk, epoch=number + 1, valid_for_s=60, stop_grace_s=30,
            not_after=None, spec={"image": "x", "devices": []}, at=NOON,
        )  # fmt: skip
        return int(workload.epoch)

    outcomes = at_once(want)

    # In the order of their transactions, which take their numbers at their first write.
    order = RawSQL("agents_workload.xmin::text::bigint", [])
    accepted = list(Workload.objects.annotate(order=order).order_by("order").values_list("epoch", flat=True))
    assert accepted == sorted(accepted)
    assert sorted(o for o in outcomes if isinstance(o, int)) == accepted
    assert all(isinstance(o, (int, workloads.StaleEpoch)) for o in outcomes)
    assert THREADS in accepted


def test_one_workload_wanted_by_all_is_one_row_and_one_generation() -> None:
    host = make_host()

    outcomes = at_once(
        lambda _: workloads.want(
            reference=REFERENCE, member=0, host_id=host.pk, epoch=1, valid_for_s=60, stop_grace_s=30, not_after=None,
            spec={"image": "x", "devices": []}, at=NOON,
        ).pk
    )  # fmt: skip

    assert len(set(outcomes)) == 1
    assert Host.objects.get().generation == host.generation + 1
