"""A private container engine for tests: a dockerd of its own in a temporary folder, and an image made by hand."""

import http.client
import io
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests import engine_left_overs

IMAGE = "gpuyard/busybox:test"
CONTAINERD = """version = 2
root = "{folder}/containerd"
state = "{folder}/state"
disabled_plugins = ["io.containerd.grpc.v1.cri"]
oom_score = 0
[grpc]
  address = "{folder}/containerd.sock"
"""


def why_no_dockerd() -> str | None:
    """Return why no private dockerd can be started here, or None if one can."""
    if os.geteuid() != 0:
        return "a private dockerd needs root"
    if shutil.which("dockerd") is None or shutil.which("containerd") is None:
        return "dockerd or containerd is not installed (Debian: apt-get install docker.io)"
    if shutil.which("ip") is None or shutil.which("nsenter") is None:
        return "ip and nsenter are needed (Debian: apt-get install iproute2 util-linux)"
    if shutil.which("busybox") is None:
        return "busybox is not installed (Debian: apt-get install busybox-static)"
    return None


class Dockerd:
    """One dockerd. It survives `kill` of itself with --live-restore: containers run on until it is started again.

    Its containerd is a process of its own, as a machine's service is. One that dockerd starts by itself dies with it,
    and the next dockerd then takes 17 s (or for ever, where its pid is in use again) to see that it is not there.
    """

    def __init__(self, folder: Path, *, inside: tuple[str, ...] = ()) -> None:
        """inside: a command that runs what follows it in another network; a new one of its own if there is none."""
        self.folder, self.inside = folder, inside
        self.socket = folder / "docker.sock"
        self.process: subprocess.Popen[bytes] | None = None
        self.containerd: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it answers."""
        self.begin()
        deadline = time.monotonic() + 60
        while not self.answers():
            assert self.process is not None
            assert self.process.poll() is None, f"dockerd ended: {(self.folder / 'log').read_text()[-2000:]}"
            assert time.monotonic() < deadline, f"dockerd does not answer: {(self.folder / 'log').read_text()[-2000:]}"
            time.sleep(0.05)

    def begin(self) -> None:
        """Start it, if it does not run, without waiting for its first answer."""
        if self.process is not None and self.process.poll() is None:
            return
        inside = list(self.inside or self._own_network())
        if self.containerd is None or self.containerd.poll() is not None:
            self._begin_containerd(inside)
        command = [*inside, "dockerd", "--containerd", f"{self.folder}/containerd.sock"]
        command += ["--data-root", f"{self.folder}/data", "--exec-root", f"{self.folder}/exec"]
        command += ["-H", f"unix://{self.socket}", "-p", f"{self.folder}/pid", "--live-restore"]
        command += ["--ip6tables=false"]
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    def _begin_containerd(self, inside: list[str]) -> None:
        (self.folder / "containerd.toml").write_text(CONTAINERD.format(folder=self.folder))
        command = [*inside, "containerd", "--config", f"{self.folder}/containerd.toml"]
        with open(self.folder / "containerd.log", "ab") as log:
            self.containerd = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    def _own_network(self) -> tuple[str, ...]:
        """Return what runs a command in a network of this engine's own, the same one after its death.

        Two engines of one machine would fight about bridge, addresses and rules.
        """
        if not (Path("/run/netns") / self.folder.name).exists():
            subprocess.run(["ip", "netns", "add", self.folder.name], check=True, timeout=20)
            subprocess.run(["ip", "-n", self.folder.name, "link", "set", "lo", "up"], check=True, timeout=20)
        return ("nsenter", f"--net=/run/netns/{self.folder.name}")

    def answers(self, *, within_s: float = 60) -> bool:
        try:
            return self.call("GET", "/_ping", timeout_s=within_s)[0] == 200
        except OSError:
            return False

    def call(self, method: str, target: str, body: bytes | None = None, *, timeout_s: float = 60) -> tuple[int, bytes]:
        """Call the engine's API; return status and body."""
        connection = http.client.HTTPConnection("engine", timeout=timeout_s)
        connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.sock.settimeout(timeout_s)
        try:
            connection.sock.connect(str(self.socket))
            kind = "application/x-tar" if target.startswith("/images") else "application/json"
            connection.request(method, target, body, {"Content-Type": kind})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def fetch(self, url: str) -> str:
        """Return what a URL of the engine's own network answers: published ports are open only there."""
        assert self.process is not None
        read = f"import urllib.request as u; print(u.urlopen({url!r}, timeout=5).read().decode(), end='')"
        inside = ["nsenter", "-t", str(self.process.pid), "-n", sys.executable, "-c", read]
        return subprocess.run(inside, capture_output=True, text=True, timeout=20, check=True).stdout

    def opens(self, port: int) -> bool:
        """Return whether something listens on a loopback port of the engine's own network."""
        assert self.process is not None
        look = f"import socket; socket.create_connection(('127.0.0.1', {port}), 2)"
        inside = ["nsenter", "-t", str(self.process.pid), "-n", sys.executable, "-c", look]
        return subprocess.run(inside, capture_output=True, timeout=20, check=False).returncode == 0

    def kill(self) -> None:
        """kill -9 of the daemon alone: its containers run on."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(10)

    def stop(self) -> None:
        """Remove all containers, end the daemons and all that is left of them, and take everything away.

        Whatever they answer, or do not: an engine that hangs must not outlive its test.
        """
        if self.process is not None and self.process.poll() is None:
            with suppress(OSError, http.client.HTTPException, ValueError):
                self._remove_containers()
        for daemon in (self.process, self.containerd):
            if daemon is not None:
                daemon.terminate()
                with suppress(subprocess.TimeoutExpired):
                    daemon.wait(20)
                daemon.kill()
                daemon.wait(20)
        engine_left_overs.clear(self.folder)

    def import_image(self, name: str = IMAGE, *, without: tuple[str, ...] = ()) -> str:
        """Make an image from the machine's own static busybox, `without` some of its commands; return its name."""
        repository, _, tag = name.rpartition(":")
        status, answer = self.call(
            "POST", f"/images/create?fromSrc=-&repo={repository}&tag={tag}", root_file_system(without)
        )
        assert status == 200, answer
        return name

    def _remove_containers(self) -> None:
        _, listed = self.call("GET", "/containers/json?all=1", timeout_s=20)
        for row in json.loads(listed):
            self.call("DELETE", f"/containers/{row['Id']}?force=1&v=1", timeout_s=20)


def root_file_system(without: tuple[str, ...] = ()) -> bytes:
    """Return a tar of the smallest system that has a shell: busybox under the names of its commands."""
    busybox = Path(shutil.which("busybox") or "").resolve()
    names = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True).stdout.split()
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        for folder, mode in (("bin", 0o755), ("tmp", 0o1777), ("etc", 0o755)):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, mode
            tar.addfile(entry)
        tar.add(busybox, "bin/busybox")
        for name in names:
            if name not in ("busybox", *without):
                link = tarfile.TarInfo(f"bin/{name}")
                link.type, link.linkname = tarfile.SYMTYPE, "busybox"
                tar.addfile(link)
        passwd = b"root:x:0:0::/:/bin/sh\n"
        entry = tarfile.TarInfo("etc/passwd")
        entry.size = len(passwd)
        tar.addfile(entry, io.BytesIO(passwd))
    return raw.getvalue()


@contextmanager
def private_dockerd(*, inside: tuple[str, ...] = ()) -> Iterator[Dockerd]:
    """Run a dockerd with the image IMAGE in it; inside: a network that is there already.

    Its folder is short: a UNIX socket's path has 107 characters."""
    engine_left_overs.clear_dead()
    engine = Dockerd(engine_left_overs.new_folder(), inside=inside)
    try:
        engine.start()
        engine.import_image()
        yield engine
    finally:
        engine.stop()


@pytest.fixture(scope="session")
def dockerd() -> Iterator[Dockerd]:
    """One real engine for all tests of a run; skipped, with the reason, where none can be had."""
    reason = why_no_dockerd()
    if reason is not None:
        pytest.skip(reason)
    with private_dockerd() as engine:
        yield engine
