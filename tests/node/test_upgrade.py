"""The agent replaces itself by a signed release, tries it, and goes back where it does not prove itself.

Real processes; what systemd does (start it again after exit 75, and after any other end) is done by `Keeper`.
"""

import io
import json
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agents.node.identity import Identity
from agents.node.slots import TRIAL_STARTS, Chosen, Slots
from agents.node.upgrading import Upgrading, unpack
from agents.release_text import NotGood
from tests.fakes import releases
from tests.fakes.control_plane import FakeControlPlane
from tests.node.conftest import Agent, until

SIGNER = releases.Signer()


class Keeper:
    """Starts an agent again whenever it has ended."""

    def __init__(self, agent: Agent) -> None:
        self.agent, self.ended = agent, threading.Event()
        self.statuses: list[int] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self.ended.wait(0.05):
            process = self.agent.process
            if process is not None and process.poll() is not None:
                self.statuses.append(process.returncode)
                self.agent.begin()

    def end(self) -> None:
        self.ended.set()
        self._thread.join()


@pytest.fixture
def plane() -> Iterator[FakeControlPlane]:
    plane = FakeControlPlane(hold_s=1)
    plane.release_key = SIGNER.root_key
    plane.start()
    yield plane
    plane.stop()


@pytest.fixture
def keeper(agent: Agent) -> Iterator[Keeper]:
    keeper = Keeper(agent)
    yield keeper
    keeper.end()


def _offer(plane: FakeControlPlane, version: str, **changed: tuple[str, str]) -> dict[str, Any]:
    """Wish for a release until the event that answers it: upgrade_begun, or upgrade_failed."""
    wheel = releases.wheel(version, **changed)
    document = SIGNER.sign(wheel, version=version)
    plane.wheels[document["manifest"]["sha256"]] = wheel
    return plane.wish("upgrade", version=version, release=document)


def _of(plane: FakeControlPlane, kind: str) -> list[dict[str, Any]]:
    return [event for event in plane.events.values() if event["kind"] == kind]


def _runs(plane: FakeControlPlane, version: str) -> bool:
    return plane.requests[-1].version == version


def test_a_signed_release_replaces_the_agent_and_its_containers_run_on(
    plane: FakeControlPlane, agent: Agent, keeper: Keeper
) -> None:
    key = plane.want(devices=agent.devices[:1], command=["sleep", "600"])
    plane.wait_step(key, "ready")
    pids = agent.processes("gy-lease_1-0-1")

    begun = _offer(plane, "0.2.0")
    until(lambda: _of(plane, "upgraded"), what="the word that it is kept")

    assert begun["kind"] == "upgrade_begun"
    assert keeper.statuses == [75]
    assert _runs(plane, "0.2.0")
    assert agent.processes("gy-lease_1-0-1") == pids != []
    assert plane.step(key) == "ready"
    agent.kill()
    until(lambda: len(keeper.statuses) == 2, what="its next start")
    before = len(plane.requests)
    until(lambda: len(plane.requests) > before, what="the next one's first word")
    assert _runs(plane, "0.2.0"), "a release that was kept is what starts"
    assert [receipt["kind"] for receipt in plane.receipts.values() if receipt["kind"] != "beat"] == ["start"]


def test_a_release_that_does_not_start_is_left_and_told_of(
    plane: FakeControlPlane, agent: Agent, keeper: Keeper
) -> None:
    key = plane.want(devices=agent.devices[:1], command=["sleep", "600"])
    plane.wait_step(key, "ready")
    pids = agent.processes("gy-lease_1-0-1")

    _offer(plane, "0.2.0", daemon=("import faulthandler", "import a_module_that_is_nowhere"))
    until(lambda: _of(plane, "upgrade_failed"), what="the word that it was left")

    (failed,) = _of(plane, "upgrade_failed")
    assert (failed["version"], failed["detail"]) == ("0.2.0", f"it did not prove itself in {TRIAL_STARTS} starts")
    assert keeper.statuses == [75] + [1] * TRIAL_STARTS
    assert _runs(plane, "0.1.0")
    assert agent.processes("gy-lease_1-0-1") == pids != []


def test_a_release_that_is_not_heard_is_left_and_the_one_before_it_goes_on(
    plane: FakeControlPlane, agent: Agent, keeper: Keeper
) -> None:
    _offer(plane, "0.2.0")
    until(lambda: _of(plane, "upgraded"), what="a first release")

    nowhere = ('"/agent/v1/sync"', '"/agent/v1/enrol"')
    _offer(plane, "0.3.0", wire=nowhere, trial=("TRIAL_S = 120.0", "TRIAL_S = 1.0"))
    until(lambda: _of(plane, "upgrade_failed"), what="the word that it was left")

    assert _of(plane, "upgrade_failed")[0]["version"] == "0.3.0"
    assert keeper.statuses == [75, 75, 75]
    assert _runs(plane, "0.2.0"), "not the installed one: the last that was kept"


def _identity(root_key: str = SIGNER.root_key) -> Identity:
    return Identity(server="http://127.0.0.1:1", signing_seed="0" * 64, sealing_secret="0" * 64, release_key=root_key)


class _Taking:
    """An agent 0.1.0 that is asked to upgrade, and what it would fetch."""

    def __init__(self, folder: Path, *, fetched: bytes, root_key: str = SIGNER.root_key) -> None:
        self.slots, self.restarts = Slots(folder), 0
        self.events: list[tuple[str, str]] = []
        self._upgrading = Upgrading(
            slots=self.slots, identity=_identity(root_key), own="0.1.0", event=self._event, restart=self._restart
        )
        self._upgrading._fetch_bytes = lambda *_: fetched  # type: ignore[method-assign]

    def _event(self, kind: str, detail: str, **facts: Any) -> None:
        self.events.append((kind, detail))

    def _restart(self) -> None:
        self.restarts += 1

    def take(self, document: Any) -> str:
        self._upgrading.take({"verb": "upgrade", "id": "w", "release": document})
        ((kind, detail),) = self.events
        assert (kind == "upgrade_begun") == (self.restarts == 1) == (self.slots.on_trial() is not None)
        return f"{kind}: {detail}"


WHEEL = releases.wheel("0.2.0")


def _with(part: str, name: str, value: Any) -> dict[str, Any]:
    document = SIGNER.sign(WHEEL, version="0.2.0")
    document[part] = document[part] | {name: value}
    return document


@pytest.mark.parametrize(
    ("document", "why"),
    [
        (SIGNER.sign(WHEEL, version="0.1.0"), "0.1.0 is not newer than 0.1.0"),
        (SIGNER.sign(WHEEL, version="0.0.9"), "0.0.9 is not newer"),
        (SIGNER.sign(WHEEL, version="0.2.0", python=[9, 0]), "needs Python 9.0"),
        (SIGNER.sign(WHEEL, version="0.2.0", needs={"pynacl": "999.0"}), "needs pynacl 999.0"),
        (SIGNER.sign(WHEEL, version="0.2.0", needs={"no-such-package": "1.0"}), "needs no-such-package"),
        (SIGNER.sign(WHEEL, version="0.2.0", until="2020-01-01T00:00:00Z"), "was good until 2020"),
        (SIGNER.sign(WHEEL, version="latest"), "is no version"),
        (SIGNER.sign(WHEEL + b"x", version="0.2.0"), "is not 0.2.0 as its manifest names it"),
        (releases.Signer().sign(WHEEL, version="0.2.0"), "not certified by the root key"),
        (_with("manifest", "version", "0.2.1"), "not signed by the key"),
        (_with("certificate", "until", "2098-01-01T00:00:00Z"), "not certified by the root key"),
        ({"manifest": {}}, "cannot be read"),
        (None, "cannot be read"),
        ("release", "cannot be read"),
    ],
)
def test_what_is_not_signed_as_it_must_be_is_not_run(tmp_path: Path, document: Any, why: str) -> None:
    answer = _Taking(tmp_path, fetched=WHEEL).take(document)
    assert answer.startswith("upgrade_failed: ")
    assert why in answer


def test_a_host_without_a_release_key_takes_no_release(tmp_path: Path) -> None:
    document = SIGNER.sign(WHEEL, version="0.2.0")
    assert "pinned no release key" in _Taking(tmp_path, fetched=WHEEL, root_key="").take(document)
    assert "upgrade_begun" in _Taking(tmp_path, fetched=WHEEL).take(document)


def test_a_version_that_failed_three_times_is_not_tried_again(tmp_path: Path) -> None:
    for _ in range(3):
        slots = Slots(tmp_path)
        slots.stage(Chosen("a", "0.2.0"))
        slots.leave("it does not work")
    assert "was tried 3 times" in _Taking(tmp_path, fetched=WHEEL).take(SIGNER.sign(WHEEL, version="0.2.0"))


def test_a_release_that_comes_while_one_is_on_trial_waits_for_the_verdict(tmp_path: Path) -> None:
    """It was unpacked over the one that ran, and what that one proved was taken for its own: kept without a trial."""
    taking = _Taking(tmp_path, fetched=WHEEL)
    _there(taking.slots, "a")
    taking.slots.stage(Chosen("a", "0.1.0"))  # we are on trial ourselves
    document = SIGNER.sign(WHEEL, version="0.2.0")
    taken = threading.Thread(target=taking.take, args=(document,))
    taken.start()
    taken.join(1)
    assert taking.slots.on_trial() == Chosen("a", "0.1.0")

    taking.slots.keep()
    taken.join(10)

    assert taking.slots.current() == Chosen("a", "0.1.0")
    assert taking.slots.on_trial() == Chosen("b", "0.2.0")


def test_what_one_release_has_shown_is_not_taken_for_anothers(tmp_path: Path) -> None:
    slots = Slots(tmp_path)
    slots.stage(Chosen("a", "0.2.0"))
    tried = slots.on_trial()
    assert tried is not None
    slots.stage(Chosen("b", "0.3.0"))

    slots.keep(tried)
    slots.leave("too late", tried)

    assert (slots.current(), slots.on_trial()) == (None, Chosen("b", "0.3.0"))


@pytest.mark.parametrize("name", ["../outside", "/tmp/outside", "agents/../../outside", "agents\\..\\x"])
def test_a_wheel_that_would_write_elsewhere_is_not_unpacked(tmp_path: Path, name: str) -> None:
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w") as archive:
        archive.writestr(name, "x")
    with pytest.raises(NotGood):
        unpack(raw.getvalue(), Slots(tmp_path / "state"), "a")
    assert list(tmp_path.rglob("*outside*")) == []


def _there(slots: Slots, slot: str) -> None:
    place = slots.path(slot) / "agents" / "node" / "main.py"
    place.parent.mkdir(parents=True)
    place.touch()


def test_which_release_starts(tmp_path: Path) -> None:
    slots = Slots(tmp_path)
    assert slots.choose(installed="0.1.0") is None
    for slot in ("a", "b"):
        _there(slots, slot)
    slots.stage(Chosen(slots.free(), "0.2.0"))
    assert slots.choose(installed="0.1.0") == Chosen("a", "0.2.0")
    slots.keep()
    assert slots.choose(installed="0.1.0") == slots.current() == Chosen("a", "0.2.0")
    assert slots.choose(installed="0.2.0") is None, "the owner has updated the package"
    slots.stage(Chosen(slots.free(), "0.3.0"))
    starts = [slots.choose(installed="0.1.0") for _ in range(TRIAL_STARTS + 2)]
    assert starts == [Chosen("b", "0.3.0")] * TRIAL_STARTS + [Chosen("a", "0.2.0")] * 2
    assert [row["version"] for row in slots.untold()] == ["0.3.0"]
    assert slots.untold() == []


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"current": 1}', '{"current": {"slot": "../x", "version": "9"}, "trial": null}']
)
def test_a_damaged_note_of_what_is_chosen_starts_the_installed_agent(tmp_path: Path, text: str) -> None:
    slots = Slots(tmp_path)
    _there(slots, "a")
    (slots.folder / "chosen.json").write_text(text)
    assert slots.choose(installed="0.1.0") is None
    slots.stage(Chosen("a", "0.2.0"))
    assert json.loads((slots.folder / "chosen.json").read_text())["trial"]["version"] == "0.2.0"
