"""What the platform adds: lease creation beside a bare one-INSERT view, and request-to-active beside `docker run`.

Both halves measure their control in the same minutes, in turns, on the same machine: read the ratios. The database is
the embedded PostgreSQL with fsync on, the web server the one of production. Writes bench/out/api.json.
"""

import argparse
import json
import os
import platform as machine_of
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "platform"), str(Path(__file__).parent)]

import api_lists  # noqa: E402
import api_load as load  # noqa: E402
import psycopg  # noqa: E402

from embedded import processes, raising  # noqa: E402
from embedded.broker import Broker  # noqa: E402
from embedded.postgres import Postgres  # noqa: E402
from embedded.process_table import control_plane  # noqa: E402
from embedded.stack_folder import StackFolder  # noqa: E402

OUT = Path(__file__).parent / "out" / "api.json"
NO_RATE_LIMITS = {"RATE_LIMIT_REQUESTS": "1000000000", "RATE_LIMIT_LEASE_CREATE": "1000000000"}
BODY = {"request": "A100_80G", "image": "gpuyard_demo"}
BARE_BODY = json.dumps({"request": "A100_80G", "image": "gpuyard_demo", "gpu_count": 1}).encode()
JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True)
class Doors:
    """Two web servers on one database: the API, and the bare view; ports, and the processes that work for each."""

    api_port: int
    bare_port: int
    api_pids: tuple[int, int]
    bare_pids: tuple[int, int]


@contextmanager
def doors(folder: StackFolder) -> Iterator[Doors]:
    """Run database, broker and the two servers, and nothing else: no worker places what is asked for meanwhile."""
    with ExitStack() as stack:
        postgres, broker = Postgres.in_state_dir(folder.path), Broker.in_state_dir(folder.path)
        stack.callback(postgres.stop)
        stack.callback(broker.stop)
        ports = folder.ports("api", "streams", "bare")
        environment = raising.environment(folder, ports, NO_RATE_LIMITS)
        environment |= {"DATABASE_URL": postgres.start().url(), "CELERY_BROKER_URL": broker.start().url}
        os.environ.update(environment)
        subprocess.run([sys.executable, "-m", "django", "migrate", "--no-input"], check=True, stdout=subprocess.DEVNULL)
        api = control_plane(ports=ports, beat_folder=folder.path / "beat")[0].command
        bare = tuple(
            {str(ports["api"]): str(ports["bare"]), api[-1]: "api_bare_view:application"}.get(p, p) for p in api
        )
        search = os.pathsep.join([str(ROOT), str(ROOT / "platform"), str(Path(__file__).parent)])
        pids = []
        for name, command in (("api", api), ("bare", bare)):
            with folder.log(name).open("ab") as log:
                server = subprocess.Popen(
                    command, stdout=log, stderr=log, env={**os.environ, "PYTHONPATH": search}, start_new_session=True
                )
            stack.callback(processes.end, server.pid, within_s=15)
            pids.append((server.pid, postgres.pid() or 0))
        yield Doors(ports["api"], ports["bare"], *pids)


def set_up_tenants(count: int) -> list[str]:
    """Load what a market needs and return the API keys of as many tenants, each with money and a large quota."""
    import django

    django.setup()
    from apikit import clock
    from billing import wallets
    from console import demo_market
    from tenants import organizations

    at = clock.now()
    demo_market.set_up(hosts=[], admin_password=None, at=at)
    found = []
    for number in range(count):
        tenant = organizations.found(
            name=f"Bench {number}", slug=f"bench-{number}", owner=None, currency="XTS", gpu_quota=1_000_000, at=at
        )
        wallets.top_up(
            owner=tenant.pk,
            currency="XTS",
            amount_micros=10**15,
            key=f"topup:bench:{number}",
            by="bench",
            reason="bench",
            at=at,
        )
        found.append(demo_market.fresh_key(tenant, at=at))
    return found


def forget_leases() -> None:
    """Empty what a round has made, so that each begins alike: a tenant does not have thousands of live leases."""
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as connection:
        connection.execute("SET session_replication_role = replica")  # append-only tables refuse it otherwise
        connection.execute(
            "TRUNCATE leasing_leaseevent, leasing_lease, billing_hold, billing_holdpart, outbox_message,"
            " apikit_idempotentanswer CASCADE"
        )
        connection.execute("UPDATE billing_accountbalance SET held_micros = 0")
        connection.execute("TRUNCATE bench_bare_row")


def lease_call(keys: list[str]) -> Callable[[int], load.Call]:
    body = json.dumps(BODY).encode()

    def call(client: int) -> load.Call:
        who = f"Bearer {keys[client % len(keys)]}"
        return load.Call("/api/v1/leases", body, JSON | {"Authorization": who, "Idempotency-Key": uuid4().hex})

    return call


def measure_creation(options: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of lease creation and of the bare view, in rounds that take turns."""
    with tempfile.TemporaryDirectory(prefix="gybench-") as temporary:
        Path(temporary).chmod(0o755)
        with doors(StackFolder(Path(temporary) / "state")) as there:
            with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as connection:
                from_bare = ROOT / "bench" / "api_bare_view.py"
                connection.execute(_create_table(from_bare))
                durable = {
                    name: connection.execute(f"SHOW {name}").fetchone() for name in ("fsync", "synchronous_commit")
                }
            keys = set_up_tenants(max(options.clients))
            _wait_for(there.api_port, lease_call(keys)(0))
            _wait_for(there.bare_port, load.Call("/bare", BARE_BODY, JSON))
            lines = _scenarios(there, keys, options)
            forget_leases()
            load.ask_once(there.api_port, lease_call(keys)(0))
            lists = api_lists.measure(port=there.api_port, key=keys[0], database_url=os.environ["DATABASE_URL"])
    return {"durable": {name: value[0] for name, value in durable.items() if value}, "scenarios": lines} | lists


def _create_table(source: Path) -> str:
    """Return the statement of the control's table; its module cannot be imported beside other settings."""
    return (
        source.read_text().partition('CREATE_TABLE = f"""')[2].partition('"""')[0].replace("{TABLE}", "bench_bare_row")
    )


def _wait_for(port: int, call: load.Call) -> None:
    def answers() -> bool:
        try:
            load.ask_once(port, call)
        except OSError:
            return False
        return True

    processes.poll_until(answers, within_s=120, what=f"The web server on port {port}")


def _scenarios(there: Doors, keys: list[str], options: argparse.Namespace) -> list[dict[str, Any]]:
    lines = []
    for clients in options.clients:
        for tenants in sorted({1, clients}):
            leases, bare = load.Seen(), load.Seen()
            for _ in range(options.rounds):
                forget_leases()
                bare.add(
                    load.run(
                        port=there.bare_port,
                        clients=clients,
                        for_s=options.seconds,
                        next_call=lambda _: load.Call("/bare", BARE_BODY, JSON),
                        working=there.bare_pids,
                    )
                )
                leases.add(
                    load.run(
                        port=there.api_port,
                        clients=clients,
                        for_s=options.seconds,
                        next_call=lease_call(keys[:tenants]),
                        working=there.api_pids,
                    )
                )
            lines.append(_line(clients, tenants, leases, bare))
            print(_row(lines[-1]), flush=True)
    return lines


def _line(clients: int, tenants: int, leases: load.Seen, bare: load.Seen) -> dict[str, Any]:
    return {
        "clients": clients,
        "tenants": tenants,
        "create_p50_ms": round(leases.ms(50), 2),
        "create_p99_ms": round(leases.ms(99), 2),
        "create_per_s": round(leases.per_s, 1),
        "bare_view_p50_ms": round(bare.ms(50), 2),
        "bare_view_p99_ms": round(bare.ms(99), 2),
        "bare_view_per_s": round(bare.per_s, 1),
        "ratio": round(leases.per_s / bare.per_s, 3),
        "create_cpu_ms": round(leases.cpu_ms, 2),
        "bare_view_cpu_ms": round(bare.cpu_ms, 2),
        "cpu_ratio": round(bare.cpu_ms / leases.cpu_ms, 3),
        "answers": len(leases.seconds),
    }


HEADING = (
    "clients tenants |  create p50     p99     per s |    bare p50     p99     per s | ratio"
    " | CPU ms: create  bare ratio"
)


def _row(line: dict[str, Any]) -> str:
    return (
        f"{line['clients']:7d} {line['tenants']:7d} | {line['create_p50_ms']:8.1f} ms {line['create_p99_ms']:5.0f} ms"
        f" {line['create_per_s']:7.0f} | {line['bare_view_p50_ms']:8.1f} ms {line['bare_view_p99_ms']:5.0f} ms"
        f" {line['bare_view_per_s']:7.0f} |  {line['ratio']:.2f} |"
        f" {line['create_cpu_ms']:14.1f} {line['bare_view_cpu_ms']:5.1f}  {line['cpu_ratio']:.2f}"
    )


def main(argv: list[str] | None = None) -> int:
    """Measure, print, write bench/out/api.json; returns 1 if an aim of issue 2 is missed with --check."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 50], help="threads with keep-alive")
    parser.add_argument("--rounds", type=int, default=5, help="of each side, taking turns")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of a round")
    parser.add_argument("--starts", type=int, default=10, help="samples of request-to-active; 0 leaves it out")
    parser.add_argument("--check", action="store_true", help="exit 1 if an aim is missed")
    options = parser.parse_args(argv)
    found: dict[str, Any] = {
        "date": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        "machine": f"{os.cpu_count()} cores, {machine_of.machine()}, Python {machine_of.python_version()}",
        "load_before": [round(value, 1) for value in os.getloadavg()],
    }
    print(f"{found['machine']}; load {found['load_before'][0]}\n{HEADING}", flush=True)
    if options.rounds:
        creation = measure_creation(options)
        # Fifty clients, each a tenant of his own: one tenant's requests queue for his own lock.
        chief = creation["scenarios"][-1]
        found |= creation | {name: chief[name] for name in chief if name not in {"clients", "tenants", "answers"}}
    if options.starts:
        import api_starts

        found |= api_starts.measure(samples=options.starts)
    found["load_after"] = [round(value, 1) for value in os.getloadavg()]
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps(found, indent=1) + "\n")
    print(f"\nwritten: {OUT.relative_to(ROOT)}")
    missed = found.get("ratio", 1) < 0.25 or (found.get("overhead_p50_s") or 0) > 1.0
    return 1 if options.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
