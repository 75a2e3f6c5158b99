"""What every test has: options for the vector tests, and a network that ends at this machine.

The database comes from `embedded.pytest_plugin`, since Django's settings load before any conftest.
"""

import os
import shutil
import signal
import socket
import sys
from collections.abc import Iterator
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.test import TransactionTestCase


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("gpuyard")
    group.addoption(
        "--vectors", type=Path, default=None, metavar="PATH", help="run the vector tests on this file (same form)"
    )
    group.addoption(
        "--histories", type=int, default=None, metavar="N", help="random histories per test (default: the test's own)"
    )
    group.addoption("--deaths", type=int, default=300, metavar="N", help="random steps of kills on a host")
    group.addoption("--deaths-seed", type=int, default=1, metavar="N", help="of those steps")
    group.addoption(
        "--fuzz-cases", type=int, default=None, metavar="N", help="schemathesis: requests per operation and mode"
    )


def pytest_configure() -> None:
    """A run that is told to end (a job's time is over) ends as by Ctrl-C: what its tests have started goes with it."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


# What starts whole stacks, engines and machines goes first, so that no worker has it left when the others are done.
LONGEST_FIRST = ("e2e", "chaos", "node", "embedded", "api")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest folders first; within them the order stays."""
    here = Path(__file__).parent
    ranks = {name: rank for rank, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: ranks.get(item.path.parent.name if item.path.is_relative_to(here) else "", len(ranks)))


class NetworkIsOff(RuntimeError):
    """A test called an address outside this machine. No OSError, so that no code under test takes it for a fault."""


class NetworkGuard:
    """Which addresses tests may call: loopback, unix sockets, and networks that a test has made itself."""

    def __init__(self) -> None:
        self.allowed: set[IPv4Network | IPv6Network] = {ip_network("127.0.0.0/8"), ip_network("::1/128")}

    def allow(self, network: str) -> None:
        """Open one more network, such as the one between a test's own network namespaces."""
        self.allowed.add(ip_network(network))

    def check(self, address: Any) -> None:
        """Raise NetworkIsOff for a `(host, port, ...)` outside; names are refused too, unless they mean loopback."""
        if not isinstance(address, tuple) or address[0] in {"localhost", ""}:
            return  # a unix socket's path, netlink, or ourselves
        try:
            host = ip_address(str(address[0]).partition("%")[0])
        except ValueError:
            raise NetworkIsOff(f"A test called {address[0]!r}; only loopback is on.") from None
        if not any(host in network for network in self.allowed):
            raise NetworkIsOff(f"A test called {host}; only loopback is on.")


MEMORY = Path("/dev/shm")


@pytest.fixture(scope="session", autouse=True)
def _agents_of_this_run_keep_their_memory_apart() -> Iterator[None]:
    """Agents leave their files in memory to the next agent of the same folder, on purpose; those of tests have none.

    So a run has a folder of its own there, which goes with it, or with the next run where it was killed.
    """
    if not (MEMORY.is_dir() and os.access(MEMORY, os.W_OK)):
        yield
        return
    for folder in MEMORY.glob("gytest-*"):
        if not Path(f"/proc/{folder.name.partition('-')[2]}").exists():
            shutil.rmtree(folder, ignore_errors=True)
    own = MEMORY / f"gytest-{os.getpid()}"
    own.mkdir(mode=0o711, exist_ok=True)
    own.chmod(0o711)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RUNTIME_DIRECTORY", str(own))
        yield
    shutil.rmtree(own, ignore_errors=True)


@pytest.fixture(scope="session", autouse=True)
def network_guard() -> Iterator[NetworkGuard]:
    guard = NetworkGuard()
    connect, connect_ex, sendto = socket.socket.connect, socket.socket.connect_ex, socket.socket.sendto

    def guarded_connect(self: socket.socket, address: Any) -> None:
        _check(guard, self, address)
        connect(self, address)

    def guarded_connect_ex(self: socket.socket, address: Any) -> int:
        _check(guard, self, address)
        return connect_ex(self, address)

    def guarded_sendto(self: socket.socket, data: Any, *args: Any) -> int:
        _check(guard, self, args[-1])
        return sendto(self, data, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", guarded_connect)
        patch.setattr(socket.socket, "connect_ex", guarded_connect_ex)
        patch.setattr(socket.socket, "sendto", guarded_sendto)
        yield guard


def _check(guard: NetworkGuard, called: socket.socket, address: Any) -> None:
    if called.family in {socket.AF_INET, socket.AF_INET6}:
        guard.check(address)


@pytest.fixture(autouse=True, scope="session")
def _append_only_tables_can_be_emptied() -> Iterator[None]:
    """Tests that commit are cleaned by TRUNCATE, which append-only tables refuse: triggers sleep meanwhile."""
    flush = TransactionTestCase._fixture_teardown

    def without_triggers(case: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SET session_replication_role = replica")
        try:
            flush(case)
        finally:
            with connection.cursor() as cursor:
                cursor.execute("SET session_replication_role = DEFAULT")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TransactionTestCase, "_fixture_teardown", without_triggers)
        yield


@pytest.fixture(autouse=True)
def _a_pool_of_its_own() -> None:
    """A test's database is rolled back or emptied, and no line of a log tells the pool in memory."""
    for name in ("scheduler.pool", "scheduler.placing"):
        if name in sys.modules:
            sys.modules[name].forget()
