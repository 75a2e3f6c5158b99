"""Clients with keep-alive that ask as fast as they are answered, and the figures of what they saw."""

import contextlib
import http.client
import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

WARM_UP = 5  # answers per client before the clock starts: connections, imports, first plans


@dataclass(frozen=True)
class Call:
    """path, body and headers of the next request; its number makes keys unique."""

    path: str
    body: bytes
    headers: dict[str, str]


@dataclass
class Seen:
    """seconds: how long each answer took. took_s: from the first question to the last answer, of all clients.

    cpu_s: what the web server and the database worked meanwhile, the warm-up with it; a busy machine changes it little.
    """

    seconds: list[float] = field(default_factory=list)
    took_s: float = 0.0
    cpu_s: float = 0.0
    answers: int = 0  # the warm-up's too

    def add(self, other: "Seen") -> None:
        self.seconds += other.seconds
        self.took_s += other.took_s
        self.cpu_s += other.cpu_s
        self.answers += other.answers

    @property
    def per_s(self) -> float:
        return len(self.seconds) / self.took_s

    @property
    def cpu_ms(self) -> float:
        """CPU milliseconds of server and database for each answer."""
        return 1000 * self.cpu_s / self.answers

    def ms(self, percent: float) -> float:
        return 1000 * percentile(self.seconds, percent)


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest value that is not below `percent` per cent of the values (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def cpu_s_of(leaders: Sequence[int]) -> float:
    """Return the CPU seconds of these processes and all their descendants so far (Linux)."""
    parents, used = {}, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            pid = int(stat.parent.name)
            parents[pid] = int(fields[1])
            used[pid] = sum(int(ticks) for ticks in fields[11:15])  # user and system, its own and its dead children's
    ours = set(leaders)
    while more := {pid for pid, parent in parents.items() if parent in ours} - ours:
        ours |= more
    return sum(used.get(pid, 0) for pid in ours) / os.sysconf("SC_CLK_TCK")


def run(*, port: int, clients: int, for_s: float, next_call: Callable[[int], Call], working: Sequence[int]) -> Seen:
    """Let `clients` threads ask for `for_s` seconds.

    next_call: the question of client number n. working: the processes whose CPU time is counted.

    Raises RuntimeError at an answer that is no 201: a refusal is fast and would flatter.
    """
    ready = threading.Barrier(clients + 1)
    each: list[Seen] = [Seen() for _ in range(clients)]
    faults: list[str] = []
    threads = [
        threading.Thread(target=_client, args=(n, port, for_s, next_call, ready, each[n], faults))
        for n in range(clients)
    ]
    cpu_before_s = cpu_s_of(working)
    for thread in threads:
        thread.start()
    ready.wait()
    began = time.perf_counter()
    for thread in threads:
        thread.join()
    if faults:
        raise RuntimeError(faults[0])
    took_s = time.perf_counter() - began
    seconds = [second for seen in each for second in seen.seconds]
    return Seen(seconds, took_s, cpu_s_of(working) - cpu_before_s, len(seconds) + clients * WARM_UP)


def _client(
    number: int, port: int, for_s: float, next_call: Callable[[int], Call], ready: threading.Barrier, seen: Seen,
    faults: list[str],
) -> None:  # fmt: skip
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        for _ in range(WARM_UP):
            ask(connection, next_call(number))
    except (OSError, RuntimeError) as fault:
        faults.append(str(fault))
    ready.wait()
    until = time.perf_counter() + for_s
    try:
        while not faults and (began := time.perf_counter()) < until:
            ask(connection, next_call(number))
            seen.seconds.append(time.perf_counter() - began)
    except (OSError, RuntimeError) as fault:
        faults.append(str(fault))
    finally:
        connection.close()


def ask_once(port: int, call: Call) -> bytes:
    """Send one POST over a connection of its own. Raises OSError if nobody is there."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        return ask(connection, call)
    finally:
        connection.close()


def ask(connection: http.client.HTTPConnection, call: Call) -> bytes:
    """Send one POST over a connection that stays open and return the body of its 201."""
    connection.request("POST", call.path, call.body, call.headers)
    answer = connection.getresponse()
    body = answer.read()
    if answer.status != 201:
        raise RuntimeError(f"{call.path}: {answer.status} {body[:500].decode(errors='replace')}")
    return body
