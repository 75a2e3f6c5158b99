"""Waiting for a lease and following its output."""

import time

import pytest

import gpuyard
from tests.gpuyard.scripted_server import Answer, Asked, ScriptedServer, lease

ID = lease()["id"]
UNCHANGED = Answer(304)


def test_waiting_polls_with_the_version_it_has_and_tells_of_each_change(
    server: ScriptedServer, client: gpuyard.Client, pauses: list[float]
) -> None:
    changes = [lease(), lease("provisioning", version=2), lease("active", version=3)]
    server.on("GET", f"/leases/{ID}", changes[0], UNCHANGED, changes[1], changes[2])
    seen: list[str] = []

    active = client.leases.wait(ID, on_change=lambda found: seen.append(found.state))

    assert active.state == "active"
    assert seen == ["pending", "provisioning", "active"]
    polls = [(asked.query.get("wait_s"), asked.headers.get("if-none-match")) for asked in server.asked]
    assert polls == [(None, None), ("30", '"1"'), ("30", '"1"'), ("30", '"2"')]


def test_a_server_that_does_not_hold_polls_is_asked_once_a_second(
    server: ScriptedServer, client: gpuyard.Client, pauses: list[float]
) -> None:
    server.on("GET", f"/leases/{ID}", lease(), UNCHANGED, lease(), lease("active", version=2))

    client.leases.wait(ID)

    assert len(pauses) == 2  # after the 304, and after the same version again
    assert all(0.5 < pause <= 1 for pause in pauses)


def test_waiting_ends_when_the_lease_does(server: ScriptedServer, client: gpuyard.Client) -> None:
    server.on("GET", f"/leases/{ID}", lease("ended", end_reason="balance"))

    with pytest.raises(gpuyard.LeaseEnded, match="balance") as ended:
        client.leases.wait(ID, until=["active", "parked"])

    assert ended.value.lease.end_reason == "balance"
    assert client.leases.wait(ID, until="ended").state == "ended"


def test_waiting_gives_up_after_its_time_and_leaves_the_lease_alone(
    server: ScriptedServer, client: gpuyard.Client
) -> None:
    def hold(asked: Asked) -> Answer:
        held = int(asked.query.get("wait_s", 0))
        return UNCHANGED if held == 0 and "if-none-match" in asked.headers else Answer(body=lease())

    server.on("GET", f"/leases/{ID}", hold)
    began = time.monotonic()

    with pytest.raises(gpuyard.WaitTimedOut) as gave_up:
        client.leases.wait(ID, timeout_s=0.3)

    assert time.monotonic() - began < 3
    assert isinstance(gave_up.value, TimeoutError)
    assert gave_up.value.lease.state == "pending"
    assert {asked.method for asked in server.asked} == {"GET"}


def _piece(offset: int, text: str) -> dict[str, object]:
    return {"offset": offset, "text": text}


def test_following_logs_goes_on_from_the_offset_until_the_output_ends(
    server: ScriptedServer, client: gpuyard.Client, pauses: list[float]
) -> None:
    server.on(
        "GET",
        f"/leases/{ID}/logs",
        {"items": [_piece(0, "one\n"), _piece(4, "two\n")], "next_offset": 8, "end": False},
        {"items": [], "next_offset": 8, "end": False},
        Answer(broken=True),
        {"items": [_piece(8, "three")], "next_offset": 13, "end": True},
    )

    pieces = [piece.text for piece in client.leases.logs(ID, follow=True, member=1)]

    assert pieces == ["one\n", "two\n", "three"]
    assert [asked.query["offset"] for asked in server.asked] == ["0", "8", "8", "8"]
    assert {(asked.query["member"], asked.query["wait_s"]) for asked in server.asked} == {("1", "30")}


def test_logs_without_following_stop_at_what_is_there(server: ScriptedServer, client: gpuyard.Client) -> None:
    server.on(
        "GET",
        f"/leases/{ID}/logs",
        {"items": [_piece(4, "two\n")], "next_offset": 8, "end": False},
        {"items": [], "next_offset": 8, "end": False},
    )

    assert [piece.offset for piece in client.leases.logs(ID, offset=4)] == [4]

    assert "wait_s" not in server.asked[0].query


def test_events_are_read_page_after_page_by_their_number(server: ScriptedServer, client: gpuyard.Client) -> None:
    def event(seq: int) -> dict[str, object]:
        return {"seq": seq, "at": "2026-11-30T12:00:00Z", "to_state": "pending"}

    server.on("GET", f"/leases/{ID}/events", {"items": [event(1), event(2)]}, {"items": [event(3)]}, {"items": []})

    assert [found.seq for found in client.leases.events(ID)] == [1, 2, 3]

    assert [asked.query["after"] for asked in server.asked] == ["0", "2", "3"]
