"""Over SSH, against a real sshd on loopback: run as whoever runs the tests, with a key of its own."""

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from agents import bootstrap, bootstrap_units, enrolment, ssh
from agents.models import Host
from apikit import clock
from tests.agents.sshd import SSHD, Server, until
from tests.factories import make_gpu_model, make_organization, make_zone

ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.sshd,
    pytest.mark.skipif(not Path(SSHD).exists(), reason="there is no sshd here"),
]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    Path("/run/sshd").mkdir(exist_ok=True)
    folder = tmp_path / "sshd"
    folder.mkdir()
    server = Server(folder)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def session(server: Server) -> Iterator[ssh.Session]:
    key = ssh.fetch_host_key(server.address)
    with ssh.Session(server.address, host_key=key, credentials=server.credentials()) as session:
        yield session


def test_the_fingerprint_is_the_one_that_ssh_keygen_shows(server: Server) -> None:
    shown = subprocess.run(
        ["ssh-keygen", "-lf", server.folder / "host.pub"], check=True, capture_output=True, text=True
    ).stdout.split()[1]

    assert ssh.fetch_host_key(server.address).fingerprint == shown


def test_another_host_key_is_refused_before_anything_is_sent(server: Server) -> None:
    pinned = (server.folder / "other.pub").read_text().split()

    with (
        pytest.raises(ssh.HostKeyChanged),
        ssh.Session(server.address, host_key=ssh.HostKey(*pinned[:2]), credentials=server.credentials()),
    ):
        pytest.fail("it was let in")

    assert "Accepted" not in (server.folder / "log").read_text()


def test_a_key_that_is_not_known_is_not_let_in(server: Server) -> None:
    key = ssh.fetch_host_key(server.address)

    with (
        pytest.raises(ssh.NotLetIn),
        ssh.Session(server.address, host_key=key, credentials=server.credentials("other")),
    ):
        pytest.fail("it was let in")


def test_a_command_that_fills_both_streams_comes_to_its_end(session: ssh.Session) -> None:
    line = "head -c 3000000 /dev/zero | tr '\\0' a >&2; head -c 3000000 /dev/zero | tr '\\0' b; exit 7"

    result = session.run(line, within_s=30)

    assert (result.exit_code, len(result.out), len(result.err)) == (7, ssh.OUTPUT_LIMIT, ssh.OUTPUT_LIMIT)


def test_what_is_given_arrives_and_a_file_is_written_whole(session: ssh.Session, tmp_path: Path) -> None:
    assert session.run("cat", given=b"x" * 300_000).out == "x" * 300_000

    session.put(b"\x00secret\xff", str(tmp_path / "file"), mode=0o600)

    assert (tmp_path / "file").read_bytes() == b"\x00secret\xff"
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600
    assert not (tmp_path / "file.new").exists()


def test_a_command_that_hangs_is_cut_off(session: ssh.Session) -> None:
    started = time.monotonic()

    with pytest.raises(ssh.TookTooLong):
        session.run("sleep 60", within_s=1)

    assert time.monotonic() - started < 5


def test_a_daemon_that_keeps_the_stream_open_does_not_hold_us(session: ssh.Session) -> None:
    started = time.monotonic()

    result = session.run("sleep 20 & echo begun", within_s=15)

    assert (result.out, result.exit_code) == ("begun\n", 0)
    assert time.monotonic() - started < 10


def test_a_machine_that_accepts_and_says_nothing_is_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh, "WAIT_S", 1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        started = time.monotonic()

        with pytest.raises(ssh.Unreachable):
            ssh.fetch_host_key(ssh.Address("127.0.0.1", silent.getsockname()[1]))

    assert time.monotonic() - started < 10


def make_plan(server_url: str, token: str, folder: Path, **changes: Any) -> bootstrap.Plan:
    """A simulated host in a folder, from this checkout instead of a package, and without systemd."""
    root = folder / "opt"
    script = f'#!/bin/sh\\ncd {ROOT} && exec {sys.executable} -m agents.node.main \\"\\$@\\"\\n'
    install = f'mkdir -p {root}/agent/bin && printf "{script}" > {root}/agent/bin/gpuyard-agent'
    fields: dict[str, Any] = {
        "server": server_url, "token": token, "name": "node-1", "version": "0.1.0", "sim": "A100_80G x2",
        "root": str(root), "state": str(folder / "state"), "service": False,
        "pythons": ("no-such-python", sys.executable),
        "install": f"{install} && chmod 755 {root}/agent/bin/gpuyard-agent",
    }  # fmt: skip
    return bootstrap.Plan(**(fields | changes))


@pytest.mark.django_db(transaction=True)
def test_a_machine_becomes_a_verified_host_over_ssh_and_a_second_run_changes_nothing(
    server: Server, live_server: Any, tmp_path: Path
) -> None:
    make_gpu_model("A100_80G")
    _, token = enrolment.invite(
        organization=make_organization(), zone=make_zone().slug, name="node-1", access="public", created_by="t",
        at=clock.now(),
    )  # fmt: skip
    plan = make_plan(live_server.url, token, tmp_path)
    said: list[tuple[str, str]] = []
    machine: dict[str, Any] = {
        "address": server.address, "host_key": ssh.fetch_host_key(server.address), "credentials": server.credentials(),
        "say": lambda step, state, what: said.append((step, state)),
    }  # fmt: skip

    first = bootstrap.run(plan=plan, **machine)
    second = bootstrap.run(plan=plan, **machine)

    assert said[3:5] == [("agent", "done"), ("identity", "done")]
    assert said[5:] == [(step, "there") for step in ("system", "root", "python", "agent", "identity")]
    assert first == second
    assert first["identity"] == Host.objects.get().public_id
    agent = subprocess.Popen([plan.agent, "run", "--state-dir", plan.state], stdout=subprocess.DEVNULL)
    try:
        until(
            lambda: Host.objects.filter(state="online", tier="verified").exists(),
            lambda: Host.objects.get().state_reason,
        )
    finally:
        agent.terminate()
        agent.wait(15)


def test_a_step_that_only_a_person_can_do_stops_with_the_cure(session: ssh.Session, tmp_path: Path) -> None:
    machine = bootstrap.Machine(session, password=None, is_root=True)
    plan = make_plan("http://127.0.0.1:1", "t", tmp_path, sim="", engine="no-such-engine")
    engine = next(step for step in bootstrap.steps(machine, plan) if step.name == "engine")

    with pytest.raises(bootstrap.StepFailed) as failed:
        bootstrap.carry_out(engine)

    assert failed.value.facts == {"step": "engine", "cure": "Install no-such-engine, and start it."}


def test_a_token_that_is_refused_is_said_and_stands_in_no_command_line(
    server: Server, tmp_path: Path, session: ssh.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    run = session.run
    monkeypatch.setattr(session, "run", lambda line, **rest: lines.append(line) or run(line, **rest))
    machine = bootstrap.Machine(session, password=None, is_root=True)
    plan = make_plan("http://127.0.0.1:9", "gyenrol_very-secret", tmp_path)
    by_name = {step.name: step for step in bootstrap.steps(machine, plan)}
    bootstrap.carry_out(by_name["agent"])

    with pytest.raises(bootstrap.StepFailed) as failed:
        bootstrap.carry_out(by_name["identity"])

    assert "cannot be reached" in failed.value.detail
    assert not any("very-secret" in line for line in lines)


@pytest.mark.django_db
def test_a_fingerprint_that_is_another_one_ends_before_any_credential_or_token(server: Server) -> None:
    organization = make_organization()
    machine = f"nobody@127.0.0.1:{server.address.port}"

    with pytest.raises(CommandError, match="Nothing was sent"):
        call_command(
            "bootstrap_host", machine, organization=organization.slug, zone=make_zone().slug, name="node-1",
            server="http://127.0.0.1:1", fingerprint="SHA256:of-somebody-else", stdout=StringIO(),
        )  # fmt: skip

    assert not organization.enrolments.exists()
    assert "userauth" not in (server.folder / "log").read_text().lower()


class Local:
    """A machine whose commands run here, with a systemctl that keeps what it was told."""

    def __init__(self, folder: Path) -> None:
        self.told = folder / "told"
        self._path = f"{folder / 'bin'}:/usr/bin:/bin"
        (folder / "bin").mkdir()
        told = self.told
        told.write_text("")
        script = f"""#!/bin/sh
case "$1" in
is-active) grep -q "enable --now $2" {told} && echo active || echo inactive;;
*) echo "$*" >> {told};;
esac
"""
        (folder / "bin" / "systemctl").write_text(script)
        (folder / "bin" / "systemctl").chmod(0o755)

    def run(self, command: str, *, given: bytes = b"", within_s: float = 60) -> ssh.Result:
        done = subprocess.run(
            ["sh", "-c", command], input=given, capture_output=True, timeout=within_s, env={"PATH": self._path}
        )
        return ssh.Result(done.returncode, done.stdout.decode(), done.stderr.decode())


def test_the_helper_that_has_root_is_installed_beside_the_agent_once(tmp_path: Path) -> None:
    local = Local(tmp_path)
    machine = bootstrap.Machine(local, password=None, is_root=True)  # type: ignore[arg-type]
    plan = make_plan("http://127.0.0.1:1", "t", tmp_path, sim="", service=True, units=str(tmp_path))
    steps = {step.name: step for step in bootstrap.steps(machine, plan)}

    assert [bootstrap.carry_out(steps[name])[0] for name in ("service", "helper")] == ["done", "done"]
    assert [bootstrap.carry_out(steps[name])[0] for name in ("service", "helper")] == ["there", "there"]

    told = local.told.read_text().splitlines()
    assert told.count("restart gpuyard-root.service") == told.count("enable --now gpuyard-root.service") == 1
    unit = (tmp_path / "gpuyard-root.service").read_text()
    assert f"ExecStart={tmp_path}/opt/agent/bin/gpuyard-root --state-dir {tmp_path}/state\n" in unit
    # It reads what the agent keeps in the folder that systemd makes for that one.
    assert "Environment=RUNTIME_DIRECTORY=/run/gpuyard-agent\n" in unit
    assert "RuntimeDirectory=gpuyard-agent\n" in (tmp_path / "gpuyard-agent.service").read_text()
    # An older text is replaced, and what runs by it started anew.
    (tmp_path / "gpuyard-root.service").write_text("[Unit]\n")
    assert bootstrap.carry_out(steps["helper"])[0] == "done"
    assert local.told.read_text().splitlines().count("restart gpuyard-root.service") == 2


def test_the_unit_of_the_helper_is_the_one_of_the_packages(tmp_path: Path) -> None:
    packaged = (ROOT / "deploy/systemd/gpuyard-root.service").read_text()
    written = bootstrap_units.helper(command="/usr/bin/env gpuyard-root", state="/var/lib/gpuyard-agent")

    def settings_of(text: str) -> set[str]:
        lines = {line for line in text.splitlines() if "=" in line and not line.startswith(("#", "After="))}
        return lines - {"EnvironmentFile=-/etc/gpuyard-agent.env"}

    assert settings_of(written) == settings_of(packaged)


def test_a_simulated_host_has_no_helper(tmp_path: Path) -> None:
    machine = bootstrap.Machine(Local(tmp_path), password=None, is_root=True)  # type: ignore[arg-type]
    plan = make_plan("http://127.0.0.1:1", "t", tmp_path, service=True)

    assert "helper" not in {step.name for step in bootstrap.steps(machine, plan)}
