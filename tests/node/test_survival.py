"""kill -9 of the agent, silence of the control plane, old epochs, wrong signatures: the host stays right."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

from nacl.signing import SigningKey

from agents.node.private_files import folder_in_memory
from tests.fakes.control_plane import FakeControlPlane
from tests.node.conftest import ROOT, Agent, until


def test_an_agent_that_was_killed_adopts_what_runs(plane: FakeControlPlane, agent: Agent) -> None:
    key = plane.want(devices=agent.devices[:2])
    plane.wait_step(key, "ready")
    pids = agent.processes("gy-lease_1-0-1")
    launcher = min(pids)

    agent.kill()
    agent.start()
    until(lambda: plane.requests[-1].boot_no == 2)
    plane.wait_step(key, "ready")

    assert launcher in agent.processes("gy-lease_1-0-1")
    assert any(event["kind"] == "adopted" for event in plane.events.values())
    before = plane.log(key).count("heartbeat")
    until(lambda: plane.log(key).count("heartbeat") > before + 2, what="the log going on")
    beats = [line for line in plane.log(key).splitlines() if line.startswith("heartbeat")]
    assert beats == [f"heartbeat {n + 1}" for n in range(len(beats))]


def test_an_end_while_the_agent_was_dead_is_reported_once_with_its_code(plane: FakeControlPlane, agent: Agent) -> None:
    key = plane.want(devices=agent.devices[:1], command=["sh", "-c", "sleep 1; exit 5"])
    plane.wait_step(key, "ready")
    agent.kill()
    until(lambda: agent.processes("gy-lease_1-0-1") == [], what="the end of the workload")

    agent.start()

    assert plane.wait_step(key, "exited")["exit_code"] == 5
    until(lambda: any(event["kind"] == "exited" for event in plane.events.values()))
    assert sum(event["kind"] == "exited" for event in plane.events.values()) == 1


def test_a_stop_that_came_while_the_agent_was_dead_is_done_after_its_start(
    plane: FakeControlPlane, agent: Agent
) -> None:
    key = plane.want(devices=agent.devices[:1])
    plane.wait_step(key, "ready")
    agent.kill()
    plane.unwant(key)
    assert agent.processes("gy-lease_1-0-1") != []

    agent.start()
    plane.wait_step(key, "gone")

    assert agent.processes("gy-lease_1-0-1") == []


def test_an_agent_killed_in_the_middle_of_a_stop_ends_it_after_its_start(plane: FakeControlPlane, agent: Agent) -> None:
    stubborn = ["sh", "-c", "trap '' TERM; while :; do sleep 1; done"]
    key = plane.want(devices=agent.devices[:1], command=stubborn, grace_s=3)
    plane.wait_step(key, "ready")
    plane.unwant(key)
    plane.wait_step(key, "stopping")
    agent.kill()

    agent.start()
    plane.wait_step(key, "gone")

    assert agent.processes("gy-lease_1-0-1") == []


def test_without_answers_the_dead_man_timer_stops_the_workload(plane: FakeControlPlane, agent: Agent) -> None:
    plane.hold_s = 1
    key = plane.want(devices=agent.devices[:1], valid_for_s=3)
    plane.wait_step(key, "ready")
    plane.silent = True
    last_heard = time.monotonic()

    until(lambda: agent.processes("gy-lease_1-0-1") == [], what="the stop", within_s=10)

    assert 1.5 < time.monotonic() - last_heard < 5.5
    plane.silent = False
    plane.wait_step(key, "gone", within_s=15)
    assert "dead-man timer" in (plane.report(key) or {})["detail"]


def test_answers_keep_a_workload_alive_past_its_first_deadline(plane: FakeControlPlane, agent: Agent) -> None:
    plane.hold_s = 1
    key = plane.want(devices=agent.devices[:1], valid_for_s=6)
    plane.wait_step(key, "ready")
    launcher = min(agent.processes("gy-lease_1-0-1"))
    sent = len(plane.requests)

    until(lambda: len(plane.requests) >= sent + 9, what="nine more syncs", within_s=30)

    assert launcher in agent.processes("gy-lease_1-0-1")
    assert plane.step(key) == "ready"


def test_nothing_new_starts_before_the_server_was_heard(plane: FakeControlPlane, agent: Agent) -> None:
    key = plane.want(devices=agent.devices[:1], command=["sh", "-c", "sleep 60"])
    plane.wait_step(key, "ready")
    agent.kill()
    for pid in agent.processes("gy-lease_1-0-1"):
        os.kill(pid, 9)
    plane.stop()
    agent.process = None

    command = [sys.executable, "-m", "agents.node.main", "run", "--state-dir", str(agent.folder)]
    with open(agent.folder.parent / "state.out", "ab") as out:
        agent.process = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=out)
    until(lambda: "no contact" in agent.said(), what="a failed sync")

    assert agent.processes("gy-lease_1-0-1") == []


def test_a_lower_epoch_is_refused_and_a_higher_one_replaces_what_runs(plane: FakeControlPlane, agent: Agent) -> None:
    device = agent.devices[:1]
    old = plane.want(epoch=4, devices=device)
    plane.wait_step(old, "ready")
    new = plane.want(epoch=5, devices=device)
    plane.wait_step(new, "ready")
    assert agent.processes("gy-lease_1-0-4") == []

    ancient = plane.want(epoch=3, devices=device)
    report = plane.wait_step(ancient, "gone")

    assert report["failure"] == "stale_epoch"
    assert agent.processes("gy-lease_1-0-3") == []
    assert plane.step(new) == "ready"


def test_a_stopped_epoch_is_not_started_again_even_after_a_restart(plane: FakeControlPlane, agent: Agent) -> None:
    key = plane.want(devices=agent.devices[:1])
    plane.wait_step(key, "ready")
    plane.unwant(key)
    plane.wait_step(key, None)
    agent.kill()
    agent.start()

    plane.want(devices=agent.devices[:1])
    report = plane.wait_step(key, "gone")

    assert report["failure"] == "stale_epoch"
    assert agent.processes("gy-lease_1-0-1") == []


def test_the_same_epoch_with_another_spec_does_not_touch_what_runs(plane: FakeControlPlane, agent: Agent) -> None:
    key = plane.want(devices=agent.devices[:1], command=["sh", "-c", "sleep 60"])
    plane.wait_step(key, "ready")
    pids = agent.processes("gy-lease_1-0-1")

    plane.want(devices=agent.devices[:1], command=["sh", "-c", "sleep 61"])
    until(lambda: any(event["kind"] == "refused_epoch" for event in plane.events.values()))

    assert agent.processes("gy-lease_1-0-1") == pids


def test_a_spec_that_does_not_have_its_hash_is_refused(plane: FakeControlPlane, agent: Agent) -> None:
    key = plane.want(devices=agent.devices[:1], spec_hash="0" * 64)

    assert plane.wait_step(key, "gone")["failure"] == "bad_spec"


def test_an_answer_signed_by_another_key_is_not_believed(plane: FakeControlPlane, agent: Agent) -> None:
    plane.hold_s = 1
    plane.signs_with = SigningKey.generate()
    plane.want(devices=agent.devices[:1])
    until(lambda: "not signed by a key that was pinned" in agent.said())
    assert agent.processes("gy-lease_1-0-1") == []

    plane.signs_with = plane.key
    plane.wait_step(("lease_1", 0, 1), "ready")


def test_a_clock_that_is_off_is_corrected_in_the_requests_only(plane: FakeControlPlane, agent: Agent) -> None:
    plane.hold_s = 1
    plane.clock_offset = timedelta(hours=2)
    until(lambda: "skew" in plane.refused)
    sent = len(plane.requests)

    until(lambda: len(plane.requests) > sent + 1, what="syncs by the server's clock")

    assert "clock_skew" in plane.requests[-1].conditions
    assert plane.refused.count("skew") == 1


def test_a_used_number_is_answered_by_a_higher_boot_number(plane: FakeControlPlane, agent: Agent) -> None:
    plane.hold_s = 1
    plane.highest = (41, 7)
    until(lambda: "replay" in plane.refused)

    until(lambda: plane.requests[-1].boot_no == 42)

    assert (agent.folder / "boot_no").read_text() == "42"


def test_two_agents_cannot_run_on_one_state_folder(plane: FakeControlPlane, agent: Agent) -> None:
    second = subprocess.run(
        [sys.executable, "-m", "agents.node.main", "run", "--state-dir", str(agent.folder)],
        cwd=ROOT, capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip

    assert second.returncode == 1
    assert "already runs" in second.stderr


def test_the_state_folder_is_closed_to_others_and_the_token_is_not_in_it(plane: FakeControlPlane, agent: Agent) -> None:
    assert agent.folder.stat().st_mode & 0o777 == 0o700
    assert (agent.folder / "identity.json").stat().st_mode & 0o777 == 0o600
    assert "one-time" not in json.dumps([path.read_text() for path in agent.folder.glob("*.json")])


def test_purge_leaves_nothing_running_on_a_host_that_is_given_up(plane: FakeControlPlane, agent: Agent) -> None:
    plane.wait_step(plane.want(devices=agent.devices[:1]), "ready")
    purge = [sys.executable, "-m", "agents.node.main", "purge", "--state-dir", str(agent.folder)]
    refused = subprocess.run(purge, cwd=ROOT, capture_output=True, text=True, timeout=30, check=False)
    assert (refused.returncode, "already runs" in refused.stderr) == (1, True)
    agent.kill()
    assert agent.processes("gy-lease_1-0-1") != []

    subprocess.run(purge, cwd=ROOT, timeout=30, check=True, capture_output=True)

    assert agent.processes("gy-lease_1-0-1") == []


def test_an_orderly_end_leaves_workloads_running(plane: FakeControlPlane, agent: Agent) -> None:
    key = plane.want(devices=agent.devices[:1])
    plane.wait_step(key, "ready")

    assert agent.terminate() == 0

    assert agent.processes("gy-lease_1-0-1") != []


def test_two_agents_on_one_machine_leave_each_others_workloads_alone(
    plane: FakeControlPlane, agent: Agent, tmp_path: Path
) -> None:
    other_plane = FakeControlPlane(hold_s=2)
    other_plane.start()
    other = Agent(other_plane, tmp_path / "other", "--driver", "sim", "--engine", "process", "--sim", "A100_80G x1")
    try:
        other.start()
        key = plane.want(devices=agent.devices[:1])
        same_name = other_plane.want(devices=other.devices[:1])
        plane.wait_step(key, "ready")
        other_plane.wait_step(same_name, "ready")
        kept = other.processes("gy-lease_1-0-1")

        plane.unwant(key)
        plane.wait_step(key, "gone")

        assert agent.processes("gy-lease_1-0-1") == []
        assert min(kept) in other.processes("gy-lease_1-0-1")
        assert other_plane.step(same_name) == "ready"
        other_plane.unwant(same_name)
        other_plane.wait_step(same_name, "gone")
    finally:
        other.kill()
        other_plane.stop()
        shutil.rmtree(folder_in_memory(other.folder), ignore_errors=True)


def test_an_agent_that_is_told_to_end_many_times_at_once_ends(tmp_path: Path) -> None:
    """A handler that takes a lock which its own thread holds waits for itself for ever."""
    silent = FakeControlPlane(hold_s=1)
    silent.start()
    agent = Agent(silent, tmp_path / "state", "--driver", "sim", "--sim", "A100_80G", "--engine", "process")
    agent.start()
    assert agent.process is not None
    try:
        silent.silent = True  # so it waits between its tries, as a host does while its server is away
        until(lambda: "no contact" in agent.said(), what="a first failure")
        for _ in range(400):
            agent.process.send_signal(signal.SIGTERM)
            if agent.process.poll() is not None:
                break
        assert agent.process.wait(15) == 0
    finally:
        agent.process.kill()
        silent.stop()
