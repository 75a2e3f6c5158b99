"""`gpuyard port-forward` against real listeners on loopback."""

import http.client
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.gpuyard.conftest import Shell
from tests.gpuyard.reached import ID, WITHIN_S, active, command, echoing, member, said_back
from tests.gpuyard.scripted_server import Answer, ScriptedServer, lease


class Forwarding:
    """`gpuyard port-forward` as a process; `port` is the local one that it chose."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stderr is not None
        line = process.stderr.readline()
        assert line.startswith("127.0.0.1:"), line + process.stderr.read()
        self.port = int(line.split(":")[1].split(" ")[0])

    def line(self) -> str:
        assert self.process.stderr is not None
        return str(self.process.stderr.readline())


@contextmanager
def forwarding(server: ScriptedServer, folder: Path, *words: str) -> Iterator[Forwarding]:
    process = command(server, folder, "port-forward", ID, *words)
    try:
        yield Forwarding(process)
    finally:
        process.kill()
        process.communicate(timeout=WITHIN_S)


def test_bytes_go_both_ways_and_each_end_is_passed_on(server: ScriptedServer, tmp_path: Path) -> None:
    with echoing() as remote:
        server.on("GET", f"/leases/{ID}", active(member((8888, "127.0.0.1", remote))))
        with forwarding(server, tmp_path, "0:8888") as forward:
            assert said_back(forward.port, b"x" * 3_000_000)
            threads = [threading.Thread(target=said_back, args=(forward.port, b"y" * 100_000)) for _ in range(20)]
            for thread in threads:
                thread.start()
            assert said_back(forward.port, b"beside twenty others")
            for thread in threads:
                thread.join()


def test_ctrl_c_ends_the_forwarding_and_not_the_lease(server: ScriptedServer, tmp_path: Path) -> None:
    with echoing() as remote:
        server.on("GET", f"/leases/{ID}", active(member((8888, "127.0.0.1", remote))))
        with forwarding(server, tmp_path, "0:8888") as forward:
            forward.process.send_signal(signal.SIGINT)
            _, err = forward.process.communicate(timeout=WITHIN_S)

            assert forward.process.returncode == 130
            assert f"the lease {ID} goes on" in err
    assert {asked.method for asked in server.asked} == {"GET"}


def test_new_connections_follow_a_lease_that_moved(server: ScriptedServer, tmp_path: Path) -> None:
    with echoing() as new:
        with echoing() as old:
            server.on(
                "GET",
                f"/leases/{ID}",
                active(member((8888, "127.0.0.1", old))),
                active(member((8888, "127.0.0.1", new))),
            )
            forwarder = forwarding(server, tmp_path, "0:8888")
            forward = forwarder.__enter__()
            assert said_back(forward.port, b"at the old place")
        try:
            assert said_back(forward.port, b"at the new place")
            assert f"is at 127.0.0.1:{new} now" in forward.line()
        finally:
            forwarder.__exit__(None, None, None)


def test_when_the_lease_is_over_the_forwarding_ends_by_itself(server: ScriptedServer, tmp_path: Path) -> None:
    with echoing() as remote:
        server.on("GET", f"/leases/{ID}", active(member((8888, "127.0.0.1", remote))), lease("ended"))
        forwarder = forwarding(server, tmp_path, "0:8888")
        forward = forwarder.__enter__()
    try:
        assert not said_back(forward.port, b"anybody?")
        _, err = forward.process.communicate(timeout=WITHIN_S)
        assert forward.process.returncode == 1
        assert "has ended" in err
    finally:
        forwarder.__exit__(None, None, None)


def test_only_this_machine_can_use_the_local_port(server: ScriptedServer, tmp_path: Path) -> None:
    with echoing() as remote:
        server.on("GET", f"/leases/{ID}", active(member((8888, "127.0.0.1", remote))))
        with forwarding(server, tmp_path, "0:8888") as forward:
            bound = subprocess.run(["ss", "-Hltn"], capture_output=True, text=True, check=True).stdout

    assert [line for line in bound.splitlines() if f":{forward.port} " in line and "127.0.0.1" not in line] == []
    assert f"127.0.0.1:{forward.port} " in bound


def test_a_local_port_that_is_taken_is_named(server: ScriptedServer, shell: Shell) -> None:
    server.on("GET", f"/leases/{ID}", active(member((8888, "127.0.0.1", 1))))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = shell("port-forward", ID, f"{port}:8888")

    assert result.exit_code == 1
    assert f"Port {port} of this machine cannot be used" in result.stderr


@pytest.mark.parametrize("pair", ["http", "0", "1:2:3", "70000:80", "80:70000", "-1:80"])
def test_ports_that_are_none_are_refused_before_anything_is_asked(
    server: ScriptedServer, shell: Shell, pair: str
) -> None:
    result = shell("port-forward", ID, "--", pair)

    assert result.exit_code == 2
    assert "write 8888, or 9000:8888" in result.stderr
    assert server.asked == []


def test_a_real_browser_protocol_goes_through(server: ScriptedServer, tmp_path: Path) -> None:
    """HTTP with keep-alive: several requests over one forwarded connection, to the scripted server itself."""
    here = int(server.url.rsplit(":", 1)[1])
    server.on("GET", f"/leases/{ID}", active(member((8000, "127.0.0.1", here))))
    server.on("GET", "/regions", Answer(body={"items": []}))
    with forwarding(server, tmp_path, "0:8000") as forward:
        connection = http.client.HTTPConnection("127.0.0.1", forward.port, timeout=WITHIN_S)
        answers = []
        for _ in range(3):
            connection.request("GET", "/api/v1/regions")
            answers.append(connection.getresponse().read())
        connection.close()

    assert answers == [b'{"items": []}'] * 3
