"""Durable leases per second: waiting leases to bound ones, decided and committed, on a pool of 10,000 GPUs.

The database is an embedded PostgreSQL of its own with fsync on and nothing else to do. What is measured is the placer
of the product, `scheduler.placing.place_pending`: the queue read and ordered, each lease decided on the warm pool, and
in the same transaction allocations under the exclusion constraints, members, workloads for the hosts, events and
notices. Not measured: the requests (a lease of each kind is made by the domain, the others are copies of its row) and
the agents. Afterwards a second connection counts what is there. Merges its figures into bench/out/placement.json.

Two loads: `plain`, one model in four counts, where nearly every lease asks what another has asked before; and `mixed`,
three models in two regions, alternatives, gangs, requests for any GPU of some memory, known ends, 24 asks in all.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "platform")]

import psycopg  # noqa: E402

from embedded import raising  # noqa: E402
from embedded.postgres import Postgres  # noqa: E402
from embedded.stack_folder import StackFolder  # noqa: E402

OUT = ROOT / "bench" / "out" / "placement.json"
GPUS_A_HOST = 8
TENANTS = 20


@dataclass(frozen=True)
class Load:
    """What is asked of which pool. models: (slug, memory in GiB); hosts take them in turns, and the regions too.

    mix: (request, further fields of it, how many of them). end_h in the fields: the end, so many hours from now.
    """

    models: tuple[tuple[str, int], ...]
    regions: tuple[str, ...]
    mix: tuple[tuple[str, dict[str, Any], int], ...]


PLAIN = Load(
    (("A100_80G", 80),), ("sim",),
    (("A100_80G", {}, 10), ("A100_80G x2", {}, 4), ("A100_80G x4", {}, 4), ("A100_80G x8", {}, 2)),
)  # fmt: skip
MIXED = Load(
    (("A100_80G", 80), ("H100_80G", 80), ("RTX_4090", 24)),
    ("sim", "sim-far"),
    (
        *((f"{model}{count}", {}, often) for model in ("A100_80G", "H100_80G", "RTX_4090")
          for count, often in (("", 8), (" x2", 4), (" x4", 2), (" x8", 1))),
        ("A100_80G x2 @sim", {}, 3), ("H100_80G @sim-far", {}, 3), ("RTX_4090 x2", {"end_h": 5}, 3),
        ("A100_80G", {"end_h": 1}, 3), ("H100_80G x4", {"end_h": 30}, 2), ("H100_80G x2 | A100_80G x2", {}, 4),
        ("RTX_4090 x8 | A100_80G x4", {}, 1), ("any:40G+ x2", {}, 3), ("any:20G..30G", {}, 3),
        ("2*A100_80G x4", {}, 1), ("3*H100_80G x2", {}, 1), ("2*RTX_4090 x8", {"end_h": 8}, 1),
    ),
)  # fmt: skip
LOADS = {"plain": PLAIN, "mixed": MIXED}
CHECKS = {
    "leases": "SELECT count(*) FROM leasing_lease WHERE state = 'provisioning' AND epoch = 1",
    "gpus": "SELECT count(*) FROM leasing_allocation WHERE released_at IS NULL",
    "devices": "SELECT count(DISTINCT device_id) FROM leasing_allocation WHERE released_at IS NULL",
    "members": "SELECT count(*) FROM leasing_leasemember",
    "workloads": "SELECT count(*) FROM agents_workload WHERE wanted",
    "events": "SELECT count(*) FROM leasing_leaseevent WHERE to_state = 'provisioning'",
    "notices": "SELECT count(*) FROM outbox_message WHERE topic = 'lease.provisioning'",
}


@contextmanager
def database() -> Iterator[str]:
    """Raise a server for this run alone, migrated; yield its URL. Django of this process is set up on it."""
    with tempfile.TemporaryDirectory(prefix="gybench-") as temporary:
        Path(temporary).chmod(0o755)
        folder = StackFolder(Path(temporary) / "state")
        postgres = Postgres.in_state_dir(folder.path)
        try:
            url = postgres.start().url()
            os.environ.update(raising.environment(folder, folder.ports("api", "streams"), {}) | {"DATABASE_URL": url})
            command = [sys.executable, "-m", "django", "migrate", "--no-input"]
            search = os.pathsep.join([str(ROOT), str(ROOT / "platform")])
            environment = os.environ | {"PYTHONPATH": search}
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
            import django

            django.setup()
            yield url
        finally:
            postgres.stop()


def set_up(load: Load, *, hosts: int, leases: int, at: datetime) -> None:
    """Make the pool, tenants with money, and the leases that wait."""
    from audit import ids
    from billing import price_list
    from catalogue.models import Region, Zone
    from leasing.models import Image, Lease
    from tenants.models import Organization

    zones = []
    for slug in load.regions:
        region = Region.objects.create(slug=slug, name="Simulated", currency="XTS", simulated=True)
        zones.append(Zone.objects.create(slug=f"{slug}-1", name="Simulated", region=region))
        for sku, _ in load.models:
            series = price_list.Series(sku, slug, "verified", "on_demand", "active", "XTS")
            price_list.publish(series=series, price_micros_per_hour=3_600_000, starts_at=at, cause="bench", at=at)
    make_hosts(load, zones, Organization.objects.create(name="Owner", slug="owner", currency="XTS"), hosts, at)
    image = {"name": "Demo", "reference": "docker.io/library/demo:latest", "vendor": ""}
    Image.objects.create(organization=None, slug="demo", **image)
    patterns = [lease for number in range(TENANTS) for lease in ask(load, number, at=at)]
    copies = []
    for number in range(leases - TENANTS * len(load.mix)):
        pattern = patterns[number * 7919 % len(patterns)]
        copy = Lease(**{field.attname: getattr(pattern, field.attname) for field in Lease._meta.concrete_fields})
        copy.pk, copy.requested_at = ids.new(), at + timedelta(milliseconds=number)
        copies.append(copy)
    Lease.objects.bulk_create(copies, batch_size=1000)


def make_hosts(load: Load, zones: list[Any], owner: Any, hosts: int, at: datetime) -> None:
    """Make hosts with eight GPUs each, and enough of all else."""
    from agents.models import Device, Host
    from catalogue.models import GpuModel

    models = [
        GpuModel.objects.create(slug=slug, vendor="nvidia", name=slug, memory_gib=gib, pci_ids=[], driver_names=[])
        for slug, gib in load.models
    ]
    share = {"cpu_milli_per_gpu": 12_000, "ram_mib_per_gpu": 98_304, "disk_mib_per_gpu": 500_000}
    whole = {name.removesuffix("_per_gpu"): value * GPUS_A_HOST for name, value in share.items()}
    made = Host.objects.bulk_create(
        Host(
            owner=owner, zone=zones[number // len(models) % len(zones)], name=f"host-{number}", simulated=True,
            state=Host.State.ONLINE, state_since=at, tier=Host.Tier.VERIFIED, last_heard_at=at, **share, **whole,
        )
        for number in range(hosts)
    )  # fmt: skip
    Device.objects.bulk_create(
        (
            Device(
                host=host, uuid=f"SIM-{host.pk.hex[-12:]}-{index}", index=index, model=models[number % len(models)],
                memory_mib=models[number % len(models)].memory_gib * 1024, health=Device.Health.HEALTHY,
                health_since=at,
            )
            for number, host in enumerate(made)
            for index in range(GPUS_A_HOST)
        ),
        batch_size=2000,
    )  # fmt: skip


def ask(load: Load, number: int, *, at: datetime) -> list[Any]:
    """Make a tenant with money and one lease of each kind by the domain; return each as often as its kind is asked."""
    from apikit import clock
    from billing import wallets
    from leasing import requesting
    from tenants.models import Organization

    tenant = Organization.objects.create(
        name=f"Tenant {number}", slug=f"tenant-{number}", currency="XTS", gpu_quota=1_000_000
    )
    wallets.top_up(
        owner=tenant.pk, currency="XTS", amount_micros=10**12, key=f"topup:bench:{number}", by="bench", reason="bench",
        at=at,
    )  # fmt: skip
    patterns = []
    for request, fields, often in load.mix:
        asked: dict[str, Any] = {"request": request, "image": "demo"}
        if "end_h" in fields:
            asked["end_at"] = (clock.now() + timedelta(hours=fields["end_h"])).replace(microsecond=0)
        wanted = requesting.understand(organization=tenant, asked=asked, at=at)
        lease = requesting.request_lease(organization_id=tenant.pk, wanted=wanted, at=at, created_by="bench")
        patterns += [lease] * often
    return patterns


def measure(load: Load = PLAIN, *, hosts: int = 1250, leases: int = 3000, keep: dict[str, Any] | None = None) -> float:
    """Return the durable leases per second of one fill of a fresh pool; keep: takes the conditions and the counts.

    Once in a process: Django is set up on the run's own database.
    """
    with database() as url:
        from django.conf import settings
        from django.db import connection

        from apikit import clock
        from scheduler import placing
        from scheduler import pool as pools

        at = clock.now().replace(microsecond=0) - timedelta(minutes=10)
        set_up(load, hosts=hosts, leases=leases, at=at)
        connection.cursor().execute("ANALYZE")
        pools.load(term="on_demand", currency="XTS", at=at)  # a worker that runs has its pool
        cpu, start = time.process_time(), time.perf_counter()
        done = placing.place_pending(at=clock.now(), grace_s=settings.WORKLOAD_STOP_GRACE_S)
        wall_s, cpu_s = time.perf_counter() - start, time.process_time() - cpu
        connection.close()
        with psycopg.connect(url) as other:
            found = {name: (other.execute(query).fetchone() or (0,))[0] for name, query in CHECKS.items()}
            durable = {name: (other.execute(f"SHOW {name}").fetchone() or ("",))[0] for name in
                       ("fsync", "synchronous_commit", "full_page_writes")}  # fmt: skip
    leases_agree = done.placed == found["leases"] == found["events"] == found["notices"]
    if not (leases_agree and found["members"] == found["workloads"] and found["gpus"] == found["devices"]):
        raise SystemExit(f"what was committed is not what was placed: {done.placed}, {found}")
    if keep is not None:
        keep |= {
            "hosts": hosts, "gpus": hosts * GPUS_A_HOST, "asked": leases, "placed": done.placed, "read_back": found,
            "wall_s": round(wall_s, 3), "placer_cpu_s": round(cpu_s, 3), "engine_decisions": done.decisions,
            "database": durable, "cpus": os.cpu_count(),
        }  # fmt: skip
    return done.placed / wall_s


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--hosts", type=int, default=1250)
    parser.add_argument("--leases", type=int, default=3000)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--load", choices=LOADS, default="plain")
    options = parser.parse_args()
    conditions: dict[str, Any] = {}
    rate = measure(LOADS[options.load], hosts=options.hosts, leases=options.leases, keep=conditions)
    print(f"durable leases/s, {options.load}: {rate:.0f}  {json.dumps(conditions)}")
    conditions |= {"at": datetime.now(UTC).isoformat(timespec="seconds"), "load_average": list(os.getloadavg())}
    result = json.loads(options.out.read_text()) if options.out.exists() else {}
    name = "durable" if options.load == "plain" else f"durable_{options.load}"
    result |= {f"{name}_leases_per_s": round(rate, 1), name: conditions}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
