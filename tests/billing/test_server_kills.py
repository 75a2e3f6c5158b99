"""kill -9 of PostgreSQL itself, under a worker that moves money: the books are right when it is back, and stay right.

The server is the test's own: every durability setting on, started by the test and gone with it, as root or not.
"""

import os
import random
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from crash_worker import PAID_MINOR, PAYER, PRICE, START_MICROS, TOP_UP_MICROS

from embedded import postgres, server_home

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[2]
ANSWER_S = 120


@contextmanager
def _server() -> Iterator[postgres.Postgres]:
    account = server_home.unprivileged_account()
    with tempfile.TemporaryDirectory(prefix="gpuyard-kills-", ignore_cleanup_errors=True) as folder:
        home = server_home.make_home(server_home.make_state_dir(Path(folder)), postgres.Postgres.name, account)
        server = postgres.Postgres(home, die_with_parent=True)
        try:
            yield server.start()
        finally:
            server.stop()


class Worker:
    def __init__(self, server: postgres.Postgres) -> None:
        paths = os.pathsep.join(str(path) for path in (ROOT, ROOT / "platform", HERE))
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "crash_worker.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={
                **os.environ, "DEBUG": "1", "DATABASE_URL": server.url(), "PYTHONPATH": paths,
                "DJANGO_SETTINGS_MODULE": "config.settings",
            },
        )  # fmt: skip

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def answer(self) -> str:
        assert self.process.stdout is not None
        assert select.select([self.process.stdout], [], [], ANSWER_S)[0], "the worker says nothing"
        return self.process.stdout.readline().strip()

    def ask(self, line: str) -> str:
        self.tell(line)
        return self.answer()


@pytest.mark.timeout(3_000)  # --histories 2000 kills 200 servers
def test_a_killed_server_comes_back_with_right_books(request: pytest.FixtureRequest) -> None:
    """`--histories N` kills N / 10 times (at least 8): the whole server, or one backend, which ends all of them."""
    kills = max(8, (request.config.getoption("--histories", default=None) or 0) // 10)
    rng, died = random.Random(kills), 0
    with _server() as server:
        worker = Worker(server)
        try:
            assert worker.answer() == "ready"
            assert worker.ask("0") == "done"
            begun = time.monotonic()
            assert worker.ask("1") == "done"
            takes_s = time.monotonic() - begun
            for number in range(2, kills + 2):
                worker.tell(str(number))
                time.sleep(rng.random() * takes_s)
                _kill(server, rng)
                died += worker.answer() == "died"
                server.start(keep_port=True)
                assert _until_up(worker) == "right", number
                assert worker.ask(str(number)) == "done"
            assert worker.ask("prove") == "right"
            assert died >= kills // 8  # else the kills came too late to say anything
            _totals_are_right(server, rounds=kills + 2)
        finally:
            worker.process.kill()
            worker.process.wait()


def _kill(server: postgres.Postgres, rng: random.Random) -> None:
    """SIGKILL the postmaster, whose children then leave, or one of its children, after which it ends all the others."""
    postmaster = server.pid()
    assert postmaster is not None
    listed = Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text().split()
    victim = rng.choice([postmaster, postmaster, *(int(child) for child in listed)])
    os.kill(victim, signal.SIGKILL)


def _until_up(worker: Worker) -> str:
    """Return what the proof says once the server takes connections again."""
    deadline = time.monotonic() + ANSWER_S
    while (said := worker.ask("prove")) == "died" and time.monotonic() < deadline:
        time.sleep(0.05)
    return said


def _totals_are_right(server: postgres.Postgres, *, rounds: int) -> None:
    with psycopg.connect(server.url()) as session:
        (charged, balance, runs) = session.execute(
            "SELECT (SELECT sum(posted_micros) FROM billing_meter),"
            " (SELECT balance_micros FROM billing_accountbalance b JOIN billing_account a ON a.id = b.account_id"
            " WHERE a.kind = 'wallet' AND a.owner = %s), (SELECT count(*) FROM billing_billingrun)",
            [PAYER],
        ).fetchone() or (None, None, None)
    kept_micros = (PAID_MINOR - 100) * 10_000
    assert charged == rounds * (PRICE * 30 // 3600)
    assert balance == START_MICROS + rounds * (TOP_UP_MICROS + kept_micros) - charged
    assert runs == rounds
