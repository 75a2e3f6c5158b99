"""The embedded broker: private, found again, and never dropping a message to make room."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from embedded.broker import Broker

START_AND_HANG = """
import sys, time
from pathlib import Path
from embedded.broker import Broker
print(Broker.in_state_dir(Path(sys.argv[1])).start().pid(), flush=True)
time.sleep(600)
"""


@pytest.fixture
def broker(state_dir: Path) -> Iterator[Broker]:
    broker = Broker.in_state_dir(state_dir)
    yield broker
    broker.stop()


def test_it_answers_with_its_password_only_and_evicts_nothing(broker: Broker) -> None:
    broker.start()

    with redis.Redis.from_url(broker.url) as client:
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
    with redis.Redis(port=broker.port) as stranger, pytest.raises(redis.AuthenticationError):
        stranger.ping()


def test_its_password_stands_in_no_command_line(broker: Broker) -> None:
    pid = broker.start().pid()

    assert broker.password not in Path(f"/proc/{pid}/cmdline").read_text()
    assert (broker.home / "valkey.conf").stat().st_mode & 0o077 == 0


def test_it_outlives_a_killed_parent_with_its_messages(state_dir: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", START_AND_HANG, str(state_dir)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    with redis.Redis.from_url(Broker.in_state_dir(state_dir).url) as client:
        client.lpush("default", "a message")

    parent.kill()
    parent.wait()
    parent.stdout.close()
    broker = Broker.in_state_dir(state_dir).start()
    try:
        assert broker.pid() == pid
        with redis.Redis.from_url(broker.url) as client:
            assert client.lrange("default", 0, -1) == [b"a message"]
    finally:
        broker.stop()
    assert broker.pid() is None


def test_a_killed_broker_comes_back_where_its_clients_look_for_it(broker: Broker) -> None:
    url = broker.start().url
    pid = broker.pid()
    assert pid is not None

    os.kill(pid, signal.SIGKILL)
    broker.start(keep_port=True)

    assert broker.url == url
    assert broker.pid() != pid
