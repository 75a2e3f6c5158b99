"""The reconciler alone, on the process sandbox and a clock of the test: orphans, deadlines, silence, reboots."""

import base64
import hashlib
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from nacl.signing import VerifyKey

from agents import protocol
from agents.node import watchdog
from agents.node.bell import Bell
from agents.node.engines import (
    LABEL_EPOCH,
    LABEL_HOST,
    LABEL_LEASE,
    LABEL_MEMBER,
    LABEL_SPEC,
    Container,
    EngineDown,
    Plan,
)
from agents.node.engines.process import ProcessEngine
from agents.node.identity import Identity
from agents.node.journal import Journal
from agents.node.receipts import Receipts
from agents.node.reconciler import Reconciler
from agents.node.sim import SimDriver
from agents.node.workload import Workload
from tests.node.conftest import until

HOST = "host_1"


class Host:
    """One reconciler whose clock the test moves; `again` makes the next one on the same folder, as after a restart."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.now = folder, 1000.0
        self.identity = Identity(server="http://x", signing_seed="11" * 32, sealing_secret="22" * 32)
        self.driver = SimDriver(specs=["A100_80G x2"], seed="x")
        self.engine = ProcessEngine(folder / "workloads")
        self.again("boot-1")

    def again(self, boot_id: str) -> None:
        self.journal = Journal(self.folder / "journal.sqlite")
        self.reconciler = Reconciler(
            host=HOST, engine=self.engine, driver=self.driver, journal=self.journal, told=Bell(), work=Bell(),
            now_s=lambda: self.now, boot_id=boot_id,
            receipts=Receipts(identity=self.identity, journal=self.journal, sample=self.driver.sample),
        )  # fmt: skip
        self.reconciler.recover()

    def answer(self, *wanted: protocol.DesiredWorkload, gone: bool = False) -> None:
        """Take in an answer that wants exactly these."""
        self.reconciler.apply(
            protocol.SyncAnswer(boot_no=1, seq=1, generation=2, desired=[row.to_json() for row in wanted]),
            reported_gone=self.reconciler.gone() if gone else set(),
        )

    def settle(self, step: str) -> Workload:
        """Look until the one workload is in `step`."""

        def there() -> bool:
            self.reconciler.tick()
            return [w.step for w in self.reconciler.workloads.values()] == [step] and self.reconciler.idle()

        until(there, what=step)
        return next(iter(self.reconciler.workloads.values()))

    def wanted(self, *, valid_for_s: int = 60) -> protocol.DesiredWorkload:
        spec = protocol.WorkloadSpec(image="x", devices=[self.driver.uuid_of(0)]).to_json()
        return protocol.DesiredWorkload(
            lease="lease_1", member=0, epoch=1, spec=spec, spec_hash=protocol.digest(spec), valid_for_s=valid_for_s,
            stop_grace_s=1,
        )  # fmt: skip


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    host = Host(tmp_path)
    yield host
    for container in host.engine.containers(HOST):
        if container.pid is not None:
            os.killpg(os.getpgid(container.pid), signal.SIGKILL)


def test_a_container_with_our_labels_that_nobody_knows_is_stopped_after_a_minute(host: Host) -> None:
    labels = {LABEL_HOST: HOST, LABEL_LEASE: "lease_9", LABEL_MEMBER: "0", LABEL_EPOCH: "3", LABEL_SPEC: "s"}
    host.engine.start(host.engine.create(Plan(name="gy-lease_9-0-3", image="x", labels=labels, env={}, devices=[])))
    host.answer()
    host.now += 59
    host.reconciler.tick()
    host.now += 30
    host.reconciler.tick()
    assert host.engine.inspect("gy-lease_9-0-3").running

    host.now += 61
    host.reconciler.tick()

    until(lambda: not host.engine.containers(HOST), what="its end")
    assert "orphan_stopped" in [event["kind"] for event in host.journal.pending("event", limit=50)]


def test_an_engine_that_is_away_is_asked_again_soon_and_then_less_often(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent that waited 5 s after its first look met no engine between two of its deaths, and stopped nothing."""

    def away(_: str) -> list[Container]:
        raise EngineDown("nobody listens")

    host.answer()
    host.reconciler.look_again()
    with monkeypatch.context() as patch:
        patch.setattr(host.engine, "containers", away)
        waits = [host.reconciler.tick() for _ in range(6)]
    host.reconciler.tick()

    assert waits == [0.25, 0.5, 1.0, 2.0, 4.0, 5.0]
    assert host.reconciler.observing.failures == 0


def test_a_deadline_survives_the_agent_and_is_kept_by_the_next_one(host: Host) -> None:
    host.answer(host.wanted(valid_for_s=60))
    host.settle("ready")
    host.again("boot-1")
    host.now += 59
    host.reconciler.tick()
    assert host.settle("ready").deadline_s == 1060

    host.now += 2

    assert "dead-man" in host.settle("gone").detail


def test_renewed_deadlines_reach_the_journal_before_they_lag_by_a_quarter(host: Host) -> None:
    host.answer(host.wanted(valid_for_s=60))
    host.settle("ready")
    for _ in range(20):
        host.now += 5
        host.answer(host.wanted(valid_for_s=60))

    host.again("boot-1")

    kept = next(iter(host.reconciler.workloads.values())).deadline_s
    assert kept is not None
    assert kept - host.now >= 45


def test_nothing_starts_when_the_server_was_not_heard_for_its_silence_limit(host: Host) -> None:
    host.answer(host.wanted(valid_for_s=600))
    host.now += 31

    host.reconciler.tick()

    assert host.settle("absent").container is None


def test_after_a_reboot_nothing_is_started_unasked(host: Host) -> None:
    host.answer(host.wanted(valid_for_s=600))
    host.settle("ready")
    for container in host.engine.containers(HOST):
        assert container.pid is not None
        os.killpg(os.getpgid(container.pid), signal.SIGKILL)
    until(lambda: not host.engine.containers(HOST)[0].running)

    host.again("boot-2")

    workload = host.settle("exited")
    assert workload.deadline_s is None
    assert not host.engine.containers(HOST)[0].running


def test_receipts_are_chained_and_signed(host: Host) -> None:
    host.answer(host.wanted())
    host.settle("ready")
    host.answer()
    host.settle("gone")

    receipts = host.journal.pending("receipt", limit=10)

    assert [(row["n"], row["kind"]) for row in receipts] == [(1, "start"), (2, "stop")]
    assert receipts[0]["prev"] == ""
    assert receipts[1]["prev"] == hashlib.sha256(protocol.canonical_json(receipts[0])).hexdigest()
    for row in receipts:
        body = {name: value for name, value in row.items() if name != "sig"}
        key = VerifyKey(bytes.fromhex(host.identity.signing_key))
        key.verify(protocol.canonical_json(body), base64.b64decode(row["sig"]))


def test_a_workload_that_is_gone_is_told_until_an_answer_shows_that_it_was_heard(host: Host) -> None:
    host.answer(host.wanted())
    host.settle("ready")
    host.answer()
    host.settle("gone")
    host.answer()
    assert [row["step"] for row in host.reconciler.reports()] == ["gone"]

    host.answer(gone=True)

    assert host.reconciler.reports() == []
    assert host.journal.workloads(boot_id="boot-1") == []


def test_two_halves_of_a_device_are_held_side_by_side_and_the_same_half_is_not() -> None:
    def half(first: int, end: int) -> Workload:
        spec = {"devices": ["d"], "units": {"d": [first, end]}}
        return Workload(lease="l", member=0, epoch=1, spec_hash="", spec=spec, valid_for_s=1)

    assert not half(0, 4).shares_device_with(half(4, 8))
    assert half(0, 4).shares_device_with(half(3, 5))
    whole = Workload(lease="l", member=0, epoch=1, spec_hash="", spec={"devices": ["d"]}, valid_for_s=1)
    assert half(4, 8).shares_device_with(whole)


def test_systemd_is_told_where_it_listens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "n"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "n"))

        watchdog.tell("WATCHDOG=1")

        assert listener.recv(100) == b"WATCHDOG=1"
