from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings

from agents import logs, workloads
from agents.models import LogChunk, Workload
from agents.protocol import workload_key
from tests.agents.conftest import Clock
from tests.agents.fake_agent import make_online_agent
from tests.agents.test_sync import REFERENCE, start
from tests.factories import NOON, after, make_host

pytestmark = pytest.mark.django_db


@pytest.fixture
def workload() -> Workload:
    host = make_host()
    return workloads.want(
        reference=REFERENCE, member=0, host_id=host.pk, epoch=1, valid_for_s=60, stop_grace_s=30, not_after=None,
        spec={"image": "x", "devices": []}, at=NOON,
    )  # fmt: skip


def append(workload: Workload, offset: int, text: str, size: int | None = None) -> int:
    return logs.append(workload=workload, offset=offset, text=text, size=size, at=NOON)


def everything(limit: int = logs.READ_LIMIT) -> str:
    text, offset = "", 0
    while True:
        page = logs.read(reference=REFERENCE, member=0, offset=offset, limit=limit)
        if not page.text:
            return text
        text, offset = text + page.text, page.next_offset


def test_pieces_make_one_text(workload: Workload) -> None:
    assert append(workload, 0, "one\n") == 4
    assert append(workload, 4, "two\n") == 8

    page = logs.read(reference=REFERENCE, member=0, offset=2)

    assert (page.text, page.offset, page.next_offset, page.end) == ("e\ntwo\n", 2, 8, 8)


def test_a_piece_that_comes_twice_or_overlaps_is_kept_once(workload: Workload) -> None:
    append(workload, 0, "hello ")

    assert append(workload, 0, "hello ") == 6
    assert append(workload, 3, "lo world") == 11

    assert everything() == "hello world"


def test_a_gap_is_passed_over_since_its_bytes_are_lost_on_the_host(workload: Workload) -> None:
    append(workload, 0, "a")

    assert append(workload, 100, "b") == 101
    assert everything() == "ab"


def test_bytes_that_were_no_text_still_count_for_the_agent(workload: Workload) -> None:
    assert append(workload, 0, "\ufffd\ufffd", 2) == 2
    assert append(workload, 2, "ok") == 4

    assert everything() == "\ufffd\ufffdok"


def test_pages_never_cut_a_character(workload: Workload) -> None:
    text = "äöü€𝄞" * 50
    append(workload, 0, text)

    assert everything(limit=7) == text


def test_the_next_epoch_goes_on_in_the_same_stream(workload: Workload) -> None:
    append(workload, 0, "first\n")
    workloads.unwant(reference=REFERENCE, at=NOON, reason="moved")
    second = workloads.want(
        reference=REFERENCE, member=0, host_id=make_host().pk, epoch=2, valid_for_s=60, stop_grace_s=30,
        not_after=None, spec={"image": "x", "devices": []}, at=after(1),
    )  # fmt: skip

    assert append(second, 0, "second\n") == 7

    assert everything() == "first\nsecond\n"


def test_a_long_stream_keeps_its_end(workload: Workload, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "KEPT_PER_STREAM", 1000)
    monkeypatch.setattr(logs, "TRIMMED_EVERY", 100)
    for index in range(100):
        append(workload, index * 100, "x" * 99 + "\n")

    page = logs.read(reference=REFERENCE, member=0, offset=0)

    assert (page.end, page.next_offset) == (10_000, 10_000)
    assert 1000 <= len(page.text) <= 1200
    assert page.offset == 10_000 - len(page.text)


def test_old_pieces_of_what_is_gone_are_forgotten(workload: Workload) -> None:
    append(workload, 0, "old")
    late = NOON + timedelta(seconds=settings.LOG_KEPT_S + 1)

    assert logs.forget(at=late) == 0
    Workload.objects.update(gone_at=NOON)
    assert logs.forget(at=late - timedelta(seconds=2)) == 0
    assert logs.forget(at=late) == 1
    assert not LogChunk.objects.exists()


def test_a_sync_carries_logs_and_is_told_what_is_wanted_next(at: Clock) -> None:
    agent = make_online_agent()
    desired = start(agent)
    item: dict[str, Any] = {"lease": REFERENCE, "member": 0, "epoch": 1, "offset": 0, "bytes": 6, "text": "hello\n"}

    answer = agent.sync(logs=[item])
    again = agent.sync(logs=[item])

    assert answer["acks"]["logs"] == again["acks"]["logs"] == {workload_key(REFERENCE, 0, 1): 6}
    assert everything() == "hello\n"
    workloads.unwant(reference=REFERENCE, at=after(1), reason="end")
    agent.sync(workloads=[agent.report(desired, "gone")])
    agent.sync(logs=[item | {"offset": 6, "text": "bye\n", "bytes": 4}])
    assert everything() == "hello\nbye\n"


def test_logs_of_another_hosts_workload_are_not_kept(at: Clock) -> None:
    victim, liar = make_online_agent(), make_online_agent("node-2")
    start(victim)

    liar.sync(logs=[{"lease": REFERENCE, "member": 0, "epoch": 1, "offset": 0, "text": "lie"}])

    assert not LogChunk.objects.exists()
