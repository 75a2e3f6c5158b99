"""The database of a test run is gone with the run, and the network ends at this machine."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from embedded import processes

WAIT_IN_A_TEST = """
import os, pathlib, time
def test_waits():
    pathlib.Path(os.environ["TELL"]).write_text(os.environ["DATABASE_URL"])
    time.sleep(600)
"""
ROOT = Path(__file__).resolve().parents[2]


def test_a_run_without_database_url_gets_a_server_that_dies_with_it(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(WAIT_IN_A_TEST)
    told = tmp_path / "told"
    environment = {name: value for name, value in os.environ.items() if not name.endswith("DATABASE_URL")}
    environment |= {"TELL": str(told), "DJANGO_SETTINGS_MODULE": "config.settings"}
    run = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "-p", "no:cacheprovider", str(tmp_path)],
        env=environment,
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        processes.poll_until(lambda: told.exists() and told.read_text() != "", within_s=60, what="The inner test")
        port = int(told.read_text().rpartition(":")[2].partition("/")[0])
        assert not processes.is_port_free(port)
    finally:
        os.killpg(run.pid, signal.SIGKILL)
        run.wait()

    processes.poll_until(lambda: processes.is_port_free(port), within_s=20, what="The end of its server")


@pytest.mark.parametrize("address", [("203.0.113.7", 443), ("10.0.0.1", 80), ("pypi.org", 443)])
def test_the_network_is_off(address: tuple[str, int]) -> None:
    with (
        socket.socket() as caller,
        pytest.raises(RuntimeError, match="only loopback is on"),
    ):
        caller.connect(address)


def test_loopback_is_on() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as caller:
        caller.connect(listener.getsockname())

        assert caller.getpeername() == listener.getsockname()
