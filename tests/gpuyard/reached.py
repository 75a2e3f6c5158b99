"""What the tests of `ssh` and `port-forward` share: leases with published ports, and something that answers there."""

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.gpuyard.conftest import KEY
from tests.gpuyard.scripted_server import ScriptedServer, lease

ID = lease()["id"]
WITHIN_S = 60.0


def member(*endpoints: tuple[int, str, int], rank: int = 0, **more: Any) -> dict[str, Any]:
    shown = [{"port": port, "address": address, "host_port": host_port} for port, address, host_port in endpoints]
    return {"rank": rank, "state": "running", "endpoints": shown, **more}


def active(*members: dict[str, Any], **more: Any) -> dict[str, Any]:
    return lease("active", members=list(members), **more)


def until[T](condition: Callable[[], T], why: Callable[[], str] = lambda: "") -> T:
    deadline = time.monotonic() + WITHIN_S
    while not (found := condition()):
        assert time.monotonic() < deadline, why()
        time.sleep(0.02)
    return found


def command(server: ScriptedServer, folder: Path, *words: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "GPUYARD_API_URL": server.url, "GPUYARD_API_KEY": KEY, "HOME": str(folder)}
    environment.pop("XDG_STATE_HOME", None)
    return subprocess.Popen(
        [sys.executable, "-m", "gpuyard", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


@contextmanager
def echoing(*, greeting: bytes = b"") -> Iterator[int]:
    """A port that sends the greeting, then back what it receives, and ends when the other side does."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.1)
        stop = threading.Event()

        def speak(connection: socket.socket) -> None:
            with connection:
                connection.sendall(greeting)
                while data := connection.recv(65536):
                    connection.sendall(data)

        def accept() -> None:
            while not stop.is_set():
                try:
                    connection, _ = listener.accept()
                except TimeoutError:
                    continue
                connection.settimeout(WITHIN_S)
                threading.Thread(target=speak, args=(connection,), daemon=True).start()

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield int(listener.getsockname()[1])
        finally:
            stop.set()
            thread.join()


def said_back(port: int, text: bytes) -> bool:
    """Say something to a local port, end, and tell whether just that came back."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=WITHIN_S) as connection:
            connection.sendall(text)
            connection.shutdown(socket.SHUT_WR)
            heard = b""
            while data := connection.recv(65536):
                heard += data
            return heard == text
    except OSError:
        return False
