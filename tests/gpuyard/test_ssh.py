"""`gpuyard ssh` against a real sshd on loopback."""

import getpass
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.gpuyard.conftest import Shell
from tests.gpuyard.reached import ID, WITHIN_S, active, command, echoing, member, said_back, until
from tests.gpuyard.scripted_server import ScriptedServer, lease

SSHD = shutil.which("sshd") or "/usr/sbin/sshd"
with_sshd = [
    pytest.mark.sshd,
    pytest.mark.skipif(not Path(SSHD).exists() or shutil.which("ssh") is None, reason="there is no sshd or ssh here"),
]


class Sshd:
    """A container's SSH server, as far as a client can tell."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("host", "user", "other"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", folder / name], check=True)
        shutil.copy(folder / "user.pub", folder / "authorized")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        options = {
            "ListenAddress": f"127.0.0.1:{self.port}", "HostKey": folder / "host", "UsePAM": "no", "PidFile": "none",
            "AuthorizedKeysFile": folder / "authorized", "StrictModes": "no", "PermitRootLogin": "prohibit-password",
            "PasswordAuthentication": "no",
        }  # fmt: skip
        (folder / "config").write_text("".join(f"{name} {value}\n" for name, value in options.items()))

    def public(self, name: str) -> str:
        return " ".join((self.folder / f"{name}.pub").read_text().split()[:2])

    @contextmanager
    def running(self) -> Iterator[None]:
        with open(self.folder / "log", "wb") as log:
            process = subprocess.Popen([SSHD, "-D", "-e", "-f", self.folder / "config"], stdout=log, stderr=log)
        try:
            until(self._answers, lambda: (self.folder / "log").read_text())
            yield
        finally:
            process.terminate()
            process.wait(timeout=WITHIN_S)

    def _answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


@pytest.fixture
def sshd(tmp_path: Path) -> Iterator[Sshd]:
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    folder = tmp_path / "sshd"
    folder.mkdir()
    made = Sshd(folder)
    with made.running():
        yield made


def ssh(server: ScriptedServer, sshd: Sshd, *words: str) -> tuple[int, str, str]:
    process = command(server, sshd.folder.parent, "ssh", ID, "-i", str(sshd.folder / "user"), *words)
    out, err = process.communicate(timeout=WITHIN_S)
    return process.returncode, out, err


def machine(sshd: Sshd, key: str) -> dict[str, Any]:
    """A whole machine: the lease says whom to sign in as, and which host key to expect."""
    way_in = {"host": "127.0.0.1", "port": sshd.port, "user": getpass.getuser(), "host_key": sshd.public(key)}
    return member(ssh=way_in)


class TestOverSsh:
    pytestmark = with_sshd

    def test_a_command_runs_there_and_its_exit_code_is_ours(self, server: ScriptedServer, sshd: Sshd) -> None:
        there = machine(sshd, "host")
        server.on("GET", f"/leases/{ID}", active(there))

        code, out, err = ssh(server, sshd, "--", "sh", "-c", "echo 'two  words'; exit 7")

        assert (code, out) == (7, "two  words\n"), err

    def test_another_host_key_than_the_lease_says_is_refused(self, server: ScriptedServer, sshd: Sshd) -> None:
        there = machine(sshd, "other")
        server.on("GET", f"/leases/{ID}", active(there))

        code, out, err = ssh(server, sshd, "--", "echo", "reached")

        assert code == 255
        assert out == ""
        assert "HOST IDENTIFICATION HAS CHANGED" in err

    def test_where_the_lease_says_no_key_the_first_is_kept_and_a_second_refused(
        self, server: ScriptedServer, sshd: Sshd
    ) -> None:
        server.on("GET", f"/leases/{ID}", active(member((22, "127.0.0.1", sshd.port))))

        who = ("-l", getpass.getuser(), "--", "echo", "reached")
        first = ssh(server, sshd, *who)
        known = sshd.folder.parent / ".local" / "state" / "gpuyard" / "known_hosts" / f"{ID}.0"
        known.write_text(known.read_text().replace(sshd.public("host"), sshd.public("other")))
        second = ssh(server, sshd, *who)

        assert first[:2] == (0, "reached\n"), first
        assert "does not say its host key" in first[2]
        assert second[:2] == (255, "")

    def test_a_port_that_is_not_published_goes_through_the_ssh_server(self, server: ScriptedServer, sshd: Sshd) -> None:
        there = machine(sshd, "host")
        server.on("GET", f"/leases/{ID}", active(there))
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            local = int(probe.getsockname()[1])

        with echoing() as remote:
            words = ("--via-ssh", "-i", str(sshd.folder / "user"))
            process = command(server, sshd.folder.parent, "port-forward", ID, f"{local}:{remote}", *words)
            try:
                until(lambda: said_back(local, b"through"))
            finally:
                process.terminate()
                process.communicate(timeout=WITHIN_S)


def test_what_would_be_run_can_be_printed(server: ScriptedServer, shell: Shell, tmp_path: Path) -> None:
    way_in = {"host": "203.0.113.7", "port": 31001, "user": "gy-tenant", "host_key": "ssh-ed25519 " + "A" * 68}
    server.on("GET", f"/leases/{ID}", active(member(ssh=way_in)))

    said = shell("ssh", ID, "--print", XDG_STATE_HOME=str(tmp_path)).stdout

    assert "StrictHostKeyChecking=yes" in said
    assert said.rstrip().endswith("-l gy-tenant -p 31001 203.0.113.7")
    kept = tmp_path / "gpuyard" / "known_hosts" / f"{ID}.0"
    assert kept.read_text() == f"{ID}.0 ssh-ed25519 {'A' * 68}\n"


def test_the_port_that_is_the_ssh_servers_is_found_whatever_its_number(
    server: ScriptedServer, shell: Shell, tmp_path: Path
) -> None:
    there = member((8888, "203.0.113.7", 31002), (2222, "203.0.113.7", 31001))
    there["endpoints"][1]["service"] = "ssh"
    server.on("GET", f"/leases/{ID}", active(there))

    said = shell("ssh", ID, "-l", "worker", "--print", XDG_STATE_HOME=str(tmp_path))

    assert said.stdout.rstrip().endswith("-l worker -p 31001 203.0.113.7")
    assert "accept-new" in said.stdout
    assert "does not say its host key" in said.stderr


@pytest.mark.parametrize(
    ("seen", "words", "said"),
    [
        (lease("pending"), (), "nothing of it runs yet"),
        (lease("ended"), (), "has ended"),
        (active(member()), (), "It publishes none. Ports are chosen when a lease is made: --ssh-key"),
        (active(member((8888, "203.0.113.7", 31002))), (), "Published are: 8888."),
        (active(member((22, "203.0.113.7", 31001))), ("--member", "3"), "no machine 3; it has 0"),
        (active(member((22, "-oProxyCommand=id", 31001))), (), "is no address"),
        (active(member(ssh={"host": "203.0.113.7", "port": 22, "user": "-oProxyCommand=id"})), (), "is no address"),
        (active(member((22, "203.0.113.7", 1)), id="../../x"), (), "is no address"),
    ],
)
def test_where_nothing_can_be_reached_it_is_said_why(
    server: ScriptedServer, shell: Shell, seen: dict[str, Any], words: tuple[str, ...], said: str
) -> None:
    server.on("GET", f"/leases/{ID}", seen)

    result = shell("ssh", ID, "--print", *words)

    assert result.exit_code != 0
    assert said in result.stderr
    assert result.stdout == ""
