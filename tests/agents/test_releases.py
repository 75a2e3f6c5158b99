"""Releases of the agent: added when hosts would take them, asked of a share of hosts, stopped where they fail."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import Client

from agents import releases
from agents.models import AgentRelease, AgentUpgrade, Alarm, Host
from apikit.clock import frozen
from audit.models import Entry
from tests.agents.fake_agent import FakeAgent, make_online_agent
from tests.factories import NOON
from tests.fakes.releases import Signer

pytestmark = pytest.mark.django_db
SIGNER = Signer()
WHEEL = b"a wheel"


@pytest.fixture(autouse=True)
def _at_noon_with_a_root_key(settings: Any) -> Iterator[None]:
    settings.AGENT_RELEASE_KEY = SIGNER.root_key
    with frozen(NOON):
        yield


def _add(version: str = "0.2.0", wheel: bytes = WHEEL) -> AgentRelease:
    return releases.add(document=SIGNER.sign(wheel, version=version), wheel=wheel, by="op", at=NOON)


def _to_all(version: str = "0.2.0") -> None:
    releases.roll_out(version=version, percent=100, reason="", by="op", at=NOON)


def _hosts(count: int) -> list[Host]:
    first = Host.objects.get()
    rows = []
    for n in range(count):
        first.pk = None
        first.id = Host._meta.pk.get_default()
        first.name, first.key_id, first.signing_key = f"more-{n}", f"key-{n}", ""
        first._state.adding = True
        first.save(force_insert=True)
        rows.append(Host.objects.get(pk=first.pk))
    return rows


@pytest.fixture
def agent() -> FakeAgent:
    agent = make_online_agent()
    Host.objects.update(agent_version="0.1.0")
    return agent


def _upgrades(answer: dict[str, Any]) -> list[dict[str, Any]]:
    return [wish for wish in answer["wishes"] if wish["verb"] == "upgrade"]


def test_a_host_learns_the_root_key_when_it_enrols(agent: FakeAgent) -> None:
    assert agent.release_key == SIGNER.root_key


def test_a_host_is_asked_until_it_says_that_the_release_proved_itself(agent: FakeAgent) -> None:
    _add()
    assert _upgrades(agent.sync(version="0.1.0")) == []
    _to_all()
    assert releases.tick(at=NOON) == 1
    (wish,) = _upgrades(agent.sync(version="0.1.0"))
    assert wish["release"] == SIGNER.sign(WHEEL, version="0.2.0")
    begun = agent.event("upgrade_begun", id=wish["id"], version="0.2.0")
    assert _upgrades(agent.sync(version="0.2.0", events=[begun])) == [wish]
    done = agent.event("upgraded", version="0.2.0")
    assert _upgrades(agent.sync(version="0.2.0", events=[done])) == []
    assert AgentUpgrade.objects.get().outcome == "done"
    assert releases.tick(at=NOON) == 0


def test_one_that_failed_is_not_asked_again_and_the_release_stops(agent: FakeAgent) -> None:
    _add()
    _to_all()
    releases.tick(at=NOON)
    failed = agent.event("upgrade_failed", version="0.2.0")
    assert _upgrades(agent.sync(version="0.1.0", events=[failed | {"detail": "needs pynacl 9"}])) == []
    assert releases.tick(at=NOON) == 0
    row = AgentRelease.objects.get()
    assert row.stopped_at == NOON
    assert row.stopped_why == "It failed on 1 of 1 hosts: needs pynacl 9"
    assert Alarm.objects.get(kind="agent_release_stopped", closed_at=None).subject == "0.2.0"
    assert Client().get(f"/agent/v1/releases/{row.sha256}").status_code == 404
    _to_all()
    assert not Alarm.objects.filter(closed_at=None).exists()


def test_a_release_that_is_rolled_out_again_after_it_stopped_asks_again(agent: FakeAgent) -> None:
    """It said that it goes to all, and the next look stopped it for the same old failures, having asked nobody."""
    _hosts(25)
    _add()
    _to_all()
    assert releases.tick(at=NOON) == 26
    done, one, two = AgentUpgrade.objects.all()[:3]
    releases.answered(done.host, {"kind": "upgraded", "version": "0.2.0"}, at=NOON)
    for upgrade in (one, two):
        releases.answered(upgrade.host, {"kind": "upgrade_failed", "version": "0.2.0"}, at=NOON)
    releases.tick(at=NOON)
    assert AgentRelease.objects.get().stopped_at is not None

    _to_all()

    assert releases.tick(at=NOON) == 25, "all but the one on which it proved itself"
    assert AgentRelease.objects.get().stopped_at is None


def test_a_host_that_is_not_heard_of_again_counts_as_failed(agent: FakeAgent) -> None:
    _add()
    _to_all()
    releases.tick(at=NOON)
    later = NOON + releases.ANSWER_WITHIN + timedelta(seconds=1)
    assert releases.tick(at=later) == 0
    assert AgentUpgrade.objects.get().outcome == "failed"
    assert AgentRelease.objects.get().stopped_at == later


def test_one_failure_in_many_does_not_stop_a_release(agent: FakeAgent) -> None:
    _hosts(25)
    _add()
    _to_all()
    assert releases.tick(at=NOON) == 26
    one, two = AgentUpgrade.objects.all()[:2]
    for upgrade in (one, two):
        releases.answered(upgrade.host, {"kind": "upgrade_failed", "version": "0.2.0"}, at=NOON)
        releases.tick(at=NOON)
        assert (AgentRelease.objects.get().stopped_at is None) == (upgrade is one)
    assert AgentUpgrade.objects.filter(ended_at=None).count() == 0, "nobody is asked for a release that was stopped"


def test_a_share_of_the_hosts_is_asked_and_more_only_join(agent: FakeAgent) -> None:
    _hosts(99)
    _add()
    asked: set[Any] = set()
    for percent in (1, 10, 50, 100):
        releases.roll_out(version="0.2.0", percent=percent, reason="", by="op", at=NOON)
        while releases.tick(at=NOON):
            pass
        now = set(AgentUpgrade.objects.values_list("host_id", flat=True))
        assert asked <= now
        asked = now
        expected = [h for h in Host.objects.values_list("pk", flat=True) if releases.bucket(h, "0.2.0") < percent]
        assert asked == set(expected)
    assert len(asked) == 100


def test_who_runs_it_already_or_something_newer_or_is_away_is_not_asked(agent: FakeAgent) -> None:
    newer, strange, lost = _hosts(3)
    Host.objects.filter(pk=newer.pk).update(agent_version="0.10.0")
    Host.objects.filter(pk=strange.pk).update(agent_version="from source")
    Host.objects.filter(pk=lost.pk).update(state=Host.State.LOST)
    _add()
    _to_all()
    assert releases.tick(at=NOON) == 1
    assert AgentUpgrade.objects.get().host == agent.row


def test_the_newest_release_is_the_one_that_is_asked_for(agent: FakeAgent) -> None:
    for version in ("0.9.0", "0.10.0"):
        _add(version, wheel=version.encode())
        _to_all(version)
    assert releases.tick(at=NOON) == 1
    assert AgentUpgrade.objects.get().release.version == "0.10.0"


def test_what_hosts_would_not_take_is_not_added(settings: Any) -> None:
    with pytest.raises(releases.ReleaseRefused, match="not certified"):
        releases.add(document=Signer().sign(WHEEL, version="0.2.0"), wheel=WHEEL, by="op", at=NOON)
    with pytest.raises(releases.ReleaseRefused, match="not the one that its manifest names"):
        releases.add(document=SIGNER.sign(WHEEL, version="0.2.0"), wheel=b"another", by="op", at=NOON)
    _add()
    with pytest.raises(releases.ReleaseRefused, match="already"):
        _add(wheel=b"another")
    settings.AGENT_RELEASE_KEY = ""
    with pytest.raises(releases.ReleaseRefused, match="AGENT_RELEASE_KEY"):
        _add("0.3.0")


def test_a_wheel_is_fetched_by_its_hash_while_hosts_are_asked_for_it() -> None:
    row = _add()
    client = Client()
    assert client.get(f"/agent/v1/releases/{row.sha256}").status_code == 404
    _to_all()
    answer = client.get(f"/agent/v1/releases/{row.sha256}")
    assert (answer.status_code, answer.content) == (200, WHEEL)
    assert client.get(f"/agent/v1/releases/{'0' * 64}").status_code == 404
    assert client.post(f"/agent/v1/releases/{row.sha256}").status_code == 405


def test_from_keys_to_hosts_by_the_command(settings: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def say(*words: Any) -> str:
        call_command("agent_release", *map(str, words))
        return capsys.readouterr().out.strip()

    wheel = tmp_path / "agent.whl"
    wheel.write_bytes(WHEEL)
    settings.AGENT_RELEASE_KEY = say("key", tmp_path / "root")
    key = say("key", tmp_path / "signing")
    say("certify", "--root", tmp_path / "root", "--key", key, "--out", tmp_path / "certificate")
    say("sign", wheel, "--agent-version", "0.2.0", "--key", tmp_path / "signing",
        "--certificate", tmp_path / "certificate", "--out", tmp_path / "release.json")  # fmt: skip
    assert "agent_release roll-out 0.2.0 1" in say("add", tmp_path / "release.json", wheel)
    assert say("roll-out", "0.2.0", 10, "--reason", "first") == "0.2.0 goes to 10 % of the hosts."
    say("stop", "0.2.0", "--reason", "no good")
    assert say("list") == "0.2.0: 10 %, asked 0, done 0, failed 0, stopped: no good"
    assert oct((tmp_path / "signing").stat().st_mode & 0o777) == "0o600"
    with pytest.raises(CommandError, match=r"There is no release 9\.9\.9"):
        say("roll-out", "9.9.9", 1)
    with pytest.raises(CommandError):
        say("key", tmp_path / "signing")  # it is there: never overwritten
    acts = Entry.objects.filter(action__startswith="agent_release.").order_by("at").values_list("action", "why")
    assert list(acts) == [
        ("agent_release.added", ""), ("agent_release.rolled_out", "first"), ("agent_release.stopped", "no good"),
    ]  # fmt: skip
