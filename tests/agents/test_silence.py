from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings
from django.db import connection
from django.test.utils import CaptureQueriesContext

from agents import silence
from agents.models import Alarm, CapacityChange, Host, HostEvent, Sweep
from outbox.models import Message
from tests.factories import NOON, after, make_host

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _listening_for_long() -> None:
    Sweep.objects.create(swept_at=NOON, listening_since=NOON - timedelta(days=1))


def sweep_until(seconds: int, *, step_s: int = 2) -> None:
    for moment in range(0, seconds + 1, step_s):
        silence.sweep(at=after(moment))


def states() -> list[str]:
    return sorted(Host.objects.values_list("state", flat=True))


def test_a_silent_host_is_suspect_after_15_and_lost_after_30_seconds() -> None:
    host = make_host()

    for seconds, state in [(14, "online"), (15, "suspect"), (29, "suspect"), (30, "lost")]:
        CapacityChange.objects.all().delete()
        silence.sweep(at=after(seconds))
        host.refresh_from_db()
        assert (seconds, host.state) == (seconds, state)
        assert CapacityChange.objects.filter(host=host).exists() == (seconds in {15, 30})


def test_a_host_that_is_heard_stays_online() -> None:
    host = make_host()
    for seconds in range(0, 100, 10):
        Host.objects.update(last_heard_at=after(seconds))
        silence.sweep(at=after(seconds + 9))

    host.refresh_from_db()
    assert host.state == "online"


def test_a_sweep_that_comes_late_still_goes_by_the_clock() -> None:
    make_host()
    Sweep.objects.update(swept_at=after(59))

    silence.sweep(at=after(60))

    assert states() == ["lost"]


def test_three_at_once_are_lost_and_a_fourth_stops_all_verdicts() -> None:
    for _ in range(3):
        make_host()
    sweep_until(40)
    assert states() == ["lost"] * 3

    Host.objects.update(state="online")
    make_host()
    Sweep.objects.update(swept_at=after(0))
    sweep_until(40)

    assert states() == ["suspect"] * 4
    assert Alarm.objects.filter(kind=silence.ALARM, closed_at=None).count() == 1


def test_the_breaker_goes_by_a_fifth_of_a_large_pool() -> None:
    silent = [make_host() for _ in range(4)]
    for _ in range(16):
        make_host(last_heard_at=after(1000))

    sweep_until(40)

    # Four of twenty are a fifth, and not more than a fifth.
    assert {Host.objects.get(pk=host.pk).state for host in silent} == {"lost"}


def test_hosts_that_fall_silent_more_than_a_minute_apart_are_no_crowd() -> None:
    for index in range(5):
        make_host(last_heard_at=after(index * 61))

    sweep_until(61 * 4 + 30)

    assert states() == ["lost"] * 5


def test_the_breaker_stays_open_until_the_hosts_are_heard_and_the_alarm_ends() -> None:
    hosts = [make_host() for _ in range(5)]
    sweep_until(600, step_s=10)
    assert states() == ["suspect"] * 5

    Host.objects.filter(pk__in=[h.pk for h in hosts[1:]]).update(last_heard_at=after(605), state="online")
    silence.sweep(at=after(610))

    assert states() == ["lost"] + ["online"] * 4
    assert Alarm.objects.get(kind=silence.ALARM).closed_at == after(610)


def test_an_operator_may_decide_over_the_breaker() -> None:
    hosts = [make_host() for _ in range(5)]
    sweep_until(40)

    silence.declare_lost(host_id=hosts[0].pk, reason="The site has no power.", by="op", at=after(41))

    assert states() == ["lost"] + ["suspect"] * 4
    sweep_until(60)
    assert states() == ["lost"] + ["suspect"] * 4


def test_a_host_not_heard_since_we_listen_has_a_grace() -> None:
    host = make_host()
    Sweep.objects.all().delete()
    start_s = 100
    grace_s = settings.HOST_SILENCE_GRACE_AFTER_START_S
    for seconds in range(start_s, start_s + grace_s + 11, 10):
        silence.sweep(at=after(seconds))
        host.refresh_from_db()
        assert host.state == ("lost" if seconds >= start_s + grace_s else "suspect")


def test_a_pause_of_the_sweep_itself_begins_the_grace_anew() -> None:
    make_host()
    silence.sweep(at=after(5))

    silence.sweep(at=after(125))

    assert states() == ["suspect"]
    assert Sweep.objects.get().listening_since == after(125)


@pytest.mark.parametrize("fields", [{"state": "unverified"}, {"state": "quarantined"}, {"state": "retired"}])
def test_other_states_are_not_touched(fields: dict[str, Any]) -> None:
    make_host(**fields)

    sweep_until(60)

    assert states() == [fields["state"]]


def test_use_is_proven_up_to_the_last_sync_of_a_silent_host() -> None:
    host = make_host()

    assert silence.heard_until(host, at=after(14)) == after(14)
    assert silence.heard_until(host, at=after(15)) == NOON
    assert not silence.is_lost(host, at=after(1000))
    host.state = "quarantined"
    assert [silence.is_lost(host, at=after(s)) for s in (29, 30)] == [False, True]


def test_hosts_that_stay_as_they_are_are_not_locked() -> None:
    for _ in range(5):
        make_host()
    sweep_until(40)
    assert states() == ["suspect"] * 5

    with CaptureQueriesContext(connection) as seen:
        silence.sweep(at=after(42))

    assert not [
        query["sql"] for query in seen.captured_queries if "FOR" in query["sql"] and "agents_host" in query["sql"]
    ]


def test_many_fall_silent_by_a_few_statements_and_each_is_told_of() -> None:
    hosts = [make_host() for _ in range(30)]

    with CaptureQueriesContext(connection) as seen:
        assert silence.sweep(at=after(16)) == 30

    assert len(seen) < 30
    assert states() == ["suspect"] * 30
    for host in hosts:
        event = HostEvent.objects.get(host=host, kind="host.suspect")
        assert (event.detail, event.facts) == ("Silent for 16 s.", {"from": "online", "to": "suspect"})
        assert Message.objects.get(key=f"host.suspect {event.pk}").payload == {"id": host.public_id, "version": 2}
        host.refresh_from_db()
        assert (host.version, host.state_reason, host.state_since) == (2, "Silent for 16 s.", after(16))
