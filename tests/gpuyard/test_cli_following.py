"""--wait, logs, run: progress, Ctrl-C, and the exit code of what ran."""

import io
import json
import os
import signal
import subprocess
import sys
import threading
from typing import Any

import pytest
from rich.console import Console

from gpuyard.cli import following
from gpuyard.cli.session import Session
from tests.gpuyard.conftest import KEY, Shell
from tests.gpuyard.scripted_server import Answer, Asked, ScriptedServer, lease, problem

ID = lease()["id"]
WAITING: dict[str, Any] = {"why_waiting": {"text": "Every A100_80G is let.", "counts": {"let": 4}}, "queue_place": 2}


def test_wait_tells_of_each_change_on_stderr_and_prints_the_lease_on_stdout(
    server: ScriptedServer, shell: Shell, pauses: list[float]
) -> None:
    pulling = [{"rank": 0, "state": "starting", "detail": "pulling 40 %", "gpus": []}]
    server.on("POST", "/leases", Answer(201, lease()))
    server.on(
        "GET",
        f"/leases/{ID}",
        lease(**WAITING),
        lease("provisioning", version=2, members=pulling),
        lease("active", version=3),
    )

    result = shell("lease", "create", "A100_80G x4", "--image", "x", "--wait", "--json")

    assert result.exit_code == 0
    assert json.loads(result.stdout)["state"] == "active"
    for said in ("Every A100_80G is let.; place 2 in the queue", "member 0: pulling 40 %", "active (simulated)"):
        assert said in result.stderr


def test_waiting_too_long_is_exit_8_and_says_that_the_lease_goes_on(
    server: ScriptedServer, shell: Shell, pauses: list[float]
) -> None:
    server.on("GET", f"/leases/{ID}", lease(), Answer(304))

    result = shell("lease", "wait", ID, "--timeout", "1s")

    assert result.exit_code == 8
    assert f"gpuyard stop {ID}" in result.stderr


@pytest.mark.parametrize(("reason", "code"), [("never_placed", 6), ("balance", 7), ("failed_to_start", 1)])
def test_a_lease_that_ends_before_it_is_active_says_why(
    server: ScriptedServer, shell: Shell, reason: str, code: int
) -> None:
    server.on("GET", f"/leases/{ID}", lease("ended", end_reason=reason))

    result = shell("lease", "wait", ID)

    assert result.exit_code == code
    assert f"ended ({reason})" in result.stderr


def _interrupted(server: ScriptedServer, *arguments: str, when: threading.Event) -> tuple[int, str, str]:
    """Run the command, press Ctrl-C once it has asked what sets `when`, and return (exit code, stdout, stderr)."""
    process = subprocess.Popen(
        [sys.executable, "-m", "gpuyard", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "GPUYARD_API_URL": server.url, "GPUYARD_API_KEY": KEY},
    )
    assert when.wait(30)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    return process.returncode, out, err


def _held(server: ScriptedServer, path: str, first: Any) -> tuple[threading.Event, threading.Event]:
    """Answer `first` once, then hold every poll until released. Returns (a poll is held, release)."""
    held, release = threading.Event(), threading.Event()

    def hold(_: Asked) -> Answer:
        held.set()
        release.wait(30)
        return Answer(304)

    server.on("GET", path, Answer(body=first), hold)
    return held, release


def test_ctrl_c_while_waiting_keeps_the_lease_and_says_how_to_go_on(server: ScriptedServer) -> None:
    server.on("POST", "/leases", Answer(201, lease()))
    held, release = _held(server, f"/leases/{ID}", lease())

    code, out, err = _interrupted(server, "lease", "create", "A100_80G", "--image", "x", "--wait", when=held)
    release.set()

    assert (code, out) == (130, "")
    assert f"The lease {ID} goes on." in err
    assert f"gpuyard logs -f {ID}" in err
    assert f"gpuyard stop {ID}" in err
    assert "Traceback" not in err
    assert {asked.method for asked in server.asked} == {"POST", "GET"}


def test_ctrl_c_while_following_logs_keeps_the_lease(server: ScriptedServer) -> None:
    held, release = _held(server, f"/leases/{ID}/logs", _page("epoch 1\n", end=False))

    code, out, err = _interrupted(server, "logs", "-f", ID, when=held)
    release.set()

    assert (code, out) == (130, "epoch 1\n")
    assert f"gpuyard stop {ID}" in err
    assert f"gpuyard logs -f {ID} --offset 8" in err  # from there on, nothing is missed or doubled


def _page(*pieces: str, end: bool = True) -> dict[str, Any]:
    items: list[dict[str, Any]] = []
    offset = 0
    for text in pieces:
        items.append({"offset": offset, "text": text})
        offset += len(text.encode())
    return {"items": items, "next_offset": offset, "end": end}


def test_logs_are_printed_as_they_are_wherever_they_are_cut(server: ScriptedServer, shell: Shell) -> None:
    server.on("GET", f"/leases/{ID}/logs", _page("loss 0.", "1\r\x1b[32mloss 0.2\x1b[0m\nno line break"))

    plain, data = shell("logs", ID), shell("logs", ID, "--json")

    assert plain.stdout == "loss 0.1\r\x1b[32mloss 0.2\x1b[0m\nno line break"
    assert [json.loads(line)["offset"] for line in data.stdout.splitlines()] == [0, 7]


def test_events_are_followed_to_the_end(server: ScriptedServer, shell: Shell, pauses: list[float]) -> None:
    def event(seq: int, to: str) -> dict[str, Any]:
        return {"seq": seq, "at": "2026-11-30T12:00:00Z", "from_state": None, "to_state": to, "reason": "tenant"}

    server.on(
        "GET",
        f"/leases/{ID}/events",
        {"items": [event(1, "pending"), event(2, "active")], "next_after": 2},
        {"items": [], "next_after": 2},
        {"items": [event(3, "ended")], "next_after": 3},
    )

    result = shell("lease", "events", "-f", ID)

    assert [line.split()[3] for line in result.stdout.splitlines()] == ["pending", "active", "ended"]
    assert [asked.query["after"] for asked in server.asked] == ["0", "2", "2"]


def _ended(reason: str, **members: Any) -> dict[str, Any]:
    return lease("ended", version=3, end_reason=reason, **members)


@pytest.mark.parametrize(
    ("ended", "code"),
    [
        (_ended("completed", exit_code=0), 0),
        (_ended("completed", exit_code=3), 3),
        (_ended("completed", exit_code=137, members=[{"rank": 0, "container": "gy-0"}]), 137),
        (_ended("completed"), 1),  # it is not known how the command ended, so it is not called a success
        (_ended("balance"), 7),
        (_ended("host_lost", exit_code=0), 1),
    ],
)
def test_run_streams_the_output_and_returns_the_exit_code(
    server: ScriptedServer, shell: Shell, pauses: list[float], ended: dict[str, Any], code: int
) -> None:
    server.on("POST", "/leases", Answer(201, lease()))
    server.on("GET", f"/leases/{ID}", lease(), lease("active", version=2), lease("ending", version=2), ended)
    server.on("GET", f"/leases/{ID}/logs", _page("hello\n", "more\n"))

    result = shell("run", "A100_80G x4", "--image", "pytorch_latest", "--", "python", "train.py", "--lr", "1")

    assert result.exit_code == code
    assert result.stdout == "hello\nmore\n"
    assert server.asked[0].body == {
        "on_exit": "end",
        "request": "A100_80G x4",
        "image": "pytorch_latest",
        "command": ["python", "train.py", "--lr", "1"],
    }


def test_run_that_never_found_a_place_is_exit_6_and_asks_for_no_logs(
    server: ScriptedServer, shell: Shell, pauses: list[float]
) -> None:
    server.on("POST", "/leases", Answer(201, lease()))
    server.on("GET", f"/leases/{ID}", lease(), _ended("never_placed"))

    result = shell("run", "A100_80G", "--image", "x", "--", "true")

    assert result.exit_code == 6
    assert "never found a place" in result.stderr
    assert server.requests("GET", f"/leases/{ID}/logs") == []


def test_run_that_is_refused_starts_nothing(server: ScriptedServer, shell: Shell) -> None:
    server.on("POST", "/leases", problem(402, "insufficient-funds", detail="12.50 XTS are missing."))

    result = shell("run", "A100_80G", "--image", "x", "--", "true")

    assert result.exit_code == 7
    assert "12.50 XTS are missing." in result.stderr
    assert len(server.asked) == 1


def test_on_a_terminal_progress_is_one_line_and_no_word_of_the_server_is_markup(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The last state is always drawn; those before it only if they last.
    server.on("GET", f"/leases/{ID}", lease("active", why_waiting={"text": "[/nonsense] \x1b[2J"}))
    output = io.StringIO()
    here = Session(api_url=server.url)
    monkeypatch.setenv("GPUYARD_API_KEY", KEY)
    here.talk = Console(file=output, force_terminal=True, width=200)

    active = following.wait(here, ID, until=["active"], timeout_s=30)

    assert active.state == "active"
    assert "[/nonsense]" in output.getvalue()
    assert "\x1b[2J" not in output.getvalue()
