"""From wanted to gone, on a real agent process and real workload processes."""

import time

from tests.fakes.control_plane import FakeControlPlane
from tests.node.conftest import Agent, until


def test_a_wanted_workload_becomes_ready_sees_its_gpus_and_is_gone_when_unwanted(
    plane: FakeControlPlane, agent: Agent
) -> None:
    wanted = agent.devices[1:3]
    key = plane.want(devices=wanted)

    report = plane.wait_step(key, "ready")
    assert report["visible_devices"] == wanted
    until(lambda: f"GPU 1: {wanted[1]} (simulated)" in plane.log(key))
    until(lambda: plane.log(key).count("heartbeat") >= 3, what="three heartbeats")

    plane.unwant(key)
    plane.wait_step(key, "gone")
    assert agent.processes("gy-lease_1-0-1") == []
    until(lambda: "stopping: SIGTERM received" in plane.log(key), what="the end of the log")
    plane.wait_step(key, None)  # and is forgotten once an answer has shown that the server knows


def test_news_reaches_the_server_without_waiting_for_the_hold_to_end(plane: FakeControlPlane, agent: Agent) -> None:
    until(lambda: len(plane.requests) >= 2)
    plane.hold_s = 30
    key = plane.want(devices=agent.devices[:1], command=["sh", "-c", "sleep 1.5; exit 3"])
    plane.wait_step(key, "ready")

    report = plane.wait_step(key, "exited", within_s=6)

    assert report["exit_code"] == 3
    assert report["failure"] is None
    ended = (agent.folder / "workloads" / "gy-lease_1-0-1" / "exit").stat().st_mtime
    heard = plane.heard_at["lease_1/0/1", "exited"]
    assert heard - ended < 1.0


def test_a_command_that_fails_at_once_is_reported_with_its_code_and_its_words(
    plane: FakeControlPlane, agent: Agent
) -> None:
    key = plane.want(devices=agent.devices[:1], command=["sh", "-c", "echo no such module >&2; exit 7"])

    report = plane.wait_step(key, "exited")

    assert report["exit_code"] == 7
    until(lambda: plane.log(key) == "no such module\n", what="its last words")


def test_a_command_runs_as_given_without_a_shell(plane: FakeControlPlane, agent: Agent) -> None:
    key = plane.want(devices=[], command=["sh", "-c", 'printf "%s\\n" "$@"; sleep 60', "x", "a b", "$HOME", "*"])
    plane.wait_step(key, "ready")

    until(lambda: plane.log(key) == "a b\n$HOME\n*\n", what="the arguments")


def test_the_tenants_environment_cannot_choose_its_own_gpus(plane: FakeControlPlane, agent: Agent) -> None:
    mine, other = agent.devices[:2]
    env = {"GPUYARD_GPU_UUIDS": other, "CUDA_VISIBLE_DEVICES": other, "LD_PRELOAD": "/x.so", "GREETING": "hello"}
    key = plane.want(devices=[mine], env=env, command=["sh", "-c", "env; sleep 60"])

    report = plane.wait_step(key, "ready")

    assert report["visible_devices"] == [mine]
    until(lambda: "GREETING=hello" in plane.log(key))
    assert "LD_PRELOAD" not in plane.log(key)
    assert other not in plane.log(key)


def test_a_second_workload_waits_until_the_first_has_left_the_device(plane: FakeControlPlane, agent: Agent) -> None:
    device = agent.devices[0]
    stubborn = ["sh", "-c", "trap '' TERM; while :; do sleep 1; done"]
    first = plane.want(lease="lease_1", devices=[device], command=stubborn, grace_s=2)
    plane.wait_step(first, "ready")
    second = plane.want(lease="lease_2", devices=[device])
    plane.wait_step(second, "absent")
    plane.unwant(first)

    plane.wait_step(second, "ready")

    assert plane.heard_at["lease_1/0/1", "gone"] <= plane.heard_at["lease_2/0/1", "ready"]
    assert agent.processes("gy-lease_1-0-1") == []


def test_what_ignores_sigterm_is_killed_after_its_grace(plane: FakeControlPlane, agent: Agent) -> None:
    stubborn = ["sh", "-c", "trap '' TERM; while :; do sleep 1; done"]
    key = plane.want(devices=agent.devices[:1], command=stubborn, grace_s=1)
    plane.wait_step(key, "ready")
    began = time.monotonic()
    plane.unwant(key)

    plane.wait_step(key, "gone", within_s=10)

    assert 0.9 < time.monotonic() - began < 5


def test_published_ports_are_reported(plane: FakeControlPlane, agent: Agent) -> None:
    key = plane.want(devices=agent.devices[:1], ports=[8888])

    report = plane.wait_step(key, "ready")

    assert 1024 <= report["ports"]["8888"] <= 65535
