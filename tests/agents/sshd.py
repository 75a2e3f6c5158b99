"""A real sshd on loopback for tests, and the keys of whoever it lets in. Started as whoever runs the tests."""

import getpass
import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import paramiko

from agents import ssh

SSHD = shutil.which("sshd") or "/usr/sbin/sshd"


class Server:
    """One sshd with its own host key, and a user's key that it lets in; other accounts by their own files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("host", "user", "other"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
        shutil.copy(folder / "user.pub", folder / "authorized")
        self.address = ssh.Address("127.0.0.1", free_port())
        self.process: subprocess.Popen[bytes] | None = None
        self.options: dict[str, str] = {}  # further ones, from the next start on

    def start(self, *, host_key: str = "host") -> None:
        options = {
            "ListenAddress": f"127.0.0.1:{self.address.port}", "HostKey": self.folder / host_key, "UsePAM": "no",
            "AuthorizedKeysFile": f"{self.folder / 'authorized'} .ssh/authorized_keys", "StrictModes": "no",
            "PidFile": "none", "PermitRootLogin": "prohibit-password", "PasswordAuthentication": "no",
            "Subsystem": "sftp internal-sftp", "MaxStartups": "100",
            **self.options,
        }  # fmt: skip
        (self.folder / "config").write_text("".join(f"{name} {value}\n" for name, value in options.items()))
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen([SSHD, "-D", "-e", "-f", self.folder / "config"], stdout=log, stderr=log)
        until(self._answers, lambda: (self.folder / "log").read_text())

    def stop(self) -> None:
        assert self.process is not None
        self.process.terminate()
        self.process.wait(10)

    def let_in(self, line: str) -> None:
        """Let one more public key in, as every account."""
        with open(self.folder / "authorized", "a") as file:
            file.write(f"{line}\n")

    def _answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((self.address.host, self.address.port)) == 0

    def credentials(self, key: str = "user") -> ssh.Credentials:
        return ssh.Credentials(getpass.getuser(), key=paramiko.PKey.from_path(self.folder / key))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def until(condition: Callable[[], object], why: Callable[[], str] = lambda: "", within_s: float = 60) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, why()
        time.sleep(0.05)
