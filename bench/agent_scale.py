"""How many agents one control plane of this machine bears: signed, held syncs of simulated agents against real doors.

    python bench/agent_scale.py [--agents 2000] [--seconds 120] [--gpus 4]

Brings the embedded stack up (PostgreSQL with fsync, broker, workers, loops, doors), writes the hosts of N simulated
agents, and lets one generator process speak for all of them as the agent does: each holds a connection of its own,
signs each request over its body, and sends the next as soon as the last is answered. Everything shares the CPUs of this
machine, the generator too: what it used stands beside the figures.

A sync that nothing happens to is held for `hold_s`. Its latency is what it took beyond that: waiting to be read, the
reading, and the way of the answer. Adds `agents`, `sync_p99_s` and their company to bench/out/agent.json.
"""

import argparse
import asyncio
import base64
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "platform")]

from nacl.signing import SigningKey  # noqa: E402

from agents.protocol import SIGNATURE_HEADER, digest, header_text, signed_text  # noqa: E402

SYNC = "/agent/v1/sync"
INVENTORY = {"simulated": True, "gpus": []}
STILL_SPEAKING_S = 2.0  # before the end
GRACE_S = 10.0  # an answer that takes so much longer than the hold is none: agents.node.syncing.ANSWER_MARGIN_S


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--agents", type=int, default=2000)
    parser.add_argument("--seconds", type=int, default=120)
    parser.add_argument("--warm-s", type=int, default=30)
    parser.add_argument("--gpus", type=int, default=4)
    parser.add_argument("--generate", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.generate:
        print(json.dumps(asyncio.run(generate(json.loads(options.generate.read_text())))))
        return 0
    figures = measure(options)
    out = ROOT / "bench" / "out" / "agent.json"
    out.parent.mkdir(exist_ok=True)
    kept = json.loads(out.read_text()) if out.exists() else {}
    out.write_text(json.dumps(kept | figures, indent=1) + "\n")
    for name, value in figures.items():
        print(f"{name:28} {value}")
    return 0


def measure(options: argparse.Namespace) -> dict[str, Any]:
    from embedded import stack
    from embedded.postgres import Postgres

    with tempfile.TemporaryDirectory(prefix="gyscale-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)
        path = Path(folder) / "state"
        try:
            access = stack.up(path, pool=None, within_s=400)
            server = Postgres.existing(path)
            assert server is not None
            os.environ |= {"DATABASE_URL": server.url(), "DEBUG": "1", "DJANGO_SETTINGS_MODULE": "config.settings"}
            hosts = write_hosts(options.agents, options.gpus)
            plan = {
                "url": access["agents_url"], "hosts": hosts, "seconds": options.seconds, "warm_s": options.warm_s,
                "gpus": options.gpus,
            }  # fmt: skip
            file = Path(folder) / "plan.json"
            file.write_text(json.dumps(plan))
            command = [sys.executable, __file__, "--generate", str(file)]
            load = os.getloadavg()[0]
            generator = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            time.sleep(options.warm_s)
            before, began = cpu_by_part(path), time.monotonic()
            time.sleep(max(0, options.seconds - STILL_SPEAKING_S))
            states = host_states()  # while all speak: they end one by one
            out, _ = generator.communicate(timeout=options.seconds + options.warm_s + 120)
            used = {name: spent - before.get(name, 0.0) for name, spent in cpu_by_part(path).items()}
            took = time.monotonic() - began
            found = json.loads(out)
        finally:
            stack.down(path, remove=True)
    per_core = {f"cores_{name}": round(spent / took, 3) for name, spent in sorted(used.items())}
    return {
        "agents": options.agents, **found, "hosts_by_state": states, **per_core, "scale_gpus": options.gpus,
        "scale_load_before": load,
        "scale_cpus": os.cpu_count(), "scale_date": time.strftime("%Y-%m-%d"),
    }  # fmt: skip


def write_hosts(count: int, gpus: int) -> list[str]:
    """Write enrolled, verified, simulated hosts with healthy devices; return their public ids."""
    import django

    django.setup()
    from agents.models import Device, Host
    from agents.signing import key_id
    from apikit import clock
    from catalogue.models import GpuModel, Zone
    from tenants.models import Organization

    at = clock.now()
    owner = Organization.objects.create(name="bench", slug="bench-owner")
    zone = Zone.objects.filter(region__simulated=True).first()
    model = GpuModel.objects.get(slug="A100_80G")
    hosts = []
    for number in range(count):
        public = bytes(signing_key(number).verify_key).hex()
        hosts.append(
            Host(
                owner=owner,
                zone=zone,
                name=f"bench-{number}",
                simulated=True,
                state="online",
                tier="verified",
                state_since=at,
                enrolled_at=at,
                verified_at=at,
                last_heard_at=at,
                signing_key=public,
                key_id=key_id(public),
                inventory=INVENTORY,
                inventory_hash=digest(INVENTORY),
                level="L0",
                level_at=at,
                engine="process 1",
            )
        )
    Host.objects.bulk_create(hosts, batch_size=500)
    Device.objects.bulk_create(
        [
            Device(
                host=host,
                uuid=uuid_of(number, index),
                index=index,
                model=model,
                memory_mib=81_920,
                health="healthy",
                health_since=at,
            )
            for number, host in enumerate(hosts)
            for index in range(gpus)
        ],
        batch_size=1000,
    )
    return [host.public_id for host in hosts]


def host_states() -> dict[str, int]:
    from django.db import close_old_connections
    from django.db.models import Count

    from agents.models import Host

    close_old_connections()
    return dict(Host.objects.values_list("state").annotate(n=Count("pk")).order_by())


def signing_key(number: int) -> SigningKey:
    return SigningKey(hashlib.sha256(f"bench agent {number}".encode()).digest())


def uuid_of(number: int, index: int) -> str:
    return f"SIM-bench-{number}-{index}"


class Agent:
    """One agent's side of the conversation, on a connection of its own."""

    def __init__(self, number: int, host: str, *, gpus: int, url: str) -> None:
        self.number, self.host, self.gpus = number, host, gpus
        self.key = signing_key(number)
        self.key_id = hashlib.sha256(bytes(self.key.verify_key)).hexdigest()[:32]
        self.address = urlsplit(url)
        self.seq, self.generation = 0, -1
        self.hash = digest(INVENTORY)

    def body(self) -> bytes:
        self.seq += 1
        devices = [
            {
                "uuid": uuid_of(self.number, index), "state": "ok", "age_s": 3,
                "readings": {
                    "temperature_c": random.randint(35, 45), "power_mw": random.randint(50_000, 60_000),
                    "power_limit_mw": 400_000, "energy_mj": self.seq * 1000, "utilization_percent": 0,
                    "memory_used_mib": 1, "memory_total_mib": 81_920, "sm_clock_mhz": 210, "memory_clock_mhz": 1593,
                    "ecc_corrected": 0, "ecc_uncorrected": 0, "row_remap_pending": 0, "recovery_action": 0,
                    "slowdown_bits": 1, "pcie_generation": 4, "pcie_width": 16, "pcie_width_max": 16,
                    "pcie_replays": 0, "persistence": 1, "processes": [],
                },
                "xids": [],
            }
            for index in range(self.gpus)
        ]  # fmt: skip
        return json.dumps(
            {
                "boot_no": 1, "seq": self.seq, "instance": f"i-{self.number}", "boot_id": f"boot-{self.number}",
                "have_generation": self.generation, "workloads": [], "devices": devices, "inventory_hash": self.hash,
                "inventory": None, "events": [], "receipts": [], "logs": [], "conditions": [], "version": "0.1.0",
                "rss_mib": 40, "probe": "ok",
            },
            separators=(",", ":"),
        ).encode()  # fmt: skip

    def request(self) -> bytes:
        body = self.body()
        parts: dict[str, Any] = {
            "host": self.host, "key": self.key_id, "boot": 1, "seq": self.seq, "created": int(time.time()),
        }  # fmt: skip
        text = signed_text(
            method="POST", path=SYNC, body=body, host=self.host, key=self.key_id, boot_no=1, seq=self.seq,
            created=parts["created"],
        )  # fmt: skip
        signature = base64.b64encode(self.key.sign(text).signature).decode()
        head = (
            f"POST {SYNC} HTTP/1.1\r\nHost: {self.address.netloc}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n{SIGNATURE_HEADER}: {header_text(**parts, sig=signature)}\r\n\r\n"
        )
        return head.encode() + body

    async def run(
        self, seen: list[tuple[float, float, bool]], faults: list[tuple[float, str]], *, start_s: float, end: float
    ) -> None:
        """Sync until `end` (by time.monotonic); write (when, seconds beyond the hold, held) of each answer."""
        await asyncio.sleep(start_s)
        hold_s, reader, writer, failures = 0.0, None, None, 0
        while time.monotonic() < end:
            began = time.monotonic()
            try:
                if writer is None or reader is None:
                    reader, writer = await asyncio.open_connection(self.address.hostname, self.address.port)
                began = time.monotonic()
                writer.write(self.request())
                status, answer = await asyncio.wait_for(read_answer(reader), hold_s + GRACE_S)
            except (OSError, asyncio.IncompleteReadError, TimeoutError) as fault:
                faults.append((began, type(fault).__name__))
                if writer is not None:
                    writer.close()
                reader = writer = None
                failures += 1
                await asyncio.sleep(pause_s(failures))
                continue
            took = time.monotonic() - began
            if status != 200:
                faults.append((began, f"{status} {answer[:80]!r}"))
                failures += 1
                writer.close()  # a server closes one on which nothing was asked for half a minute
                reader = writer = None
                await asyncio.sleep(pause_s(failures))
                continue
            failures = 0
            told = json.loads(answer)
            was_held = took >= told["hold_s"] > 0
            seen.append((began, max(0.0, took - told["hold_s"]) if was_held else took, was_held))
            self.generation, hold_s = told["generation"], told["hold_s"]


def pause_s(failures: int) -> float:
    """As agents.node.syncing pauses: a random part of a time that doubles, 60 s at most."""
    return max(0.2, random.uniform(0, min(60.0, 2.0 ** min(failures, 10))))


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    length = next(int(line.split(b":")[1]) for line in lines if line.lower().startswith(b"content-length:"))
    return int(lines[0].split()[1]), await reader.readexactly(length)


async def generate(plan: dict[str, Any]) -> dict[str, Any]:
    """Speak for all agents; return the figures of the time after the warm-up."""
    agents = [Agent(n, host, gpus=plan["gpus"], url=plan["url"]) for n, host in enumerate(plan["hosts"])]
    seen: list[tuple[float, float, bool]] = []
    faults: list[tuple[float, str]] = []
    began = time.monotonic()
    end = began + plan["warm_s"] + plan["seconds"]
    spread_s = plan["warm_s"] / 2
    cpu = time.process_time()
    await asyncio.gather(
        *(a.run(seen, faults, start_s=spread_s * n / len(agents), end=end) for n, a in enumerate(agents))
    )
    counted = sorted(late for when, late, held in seen if when >= began + plan["warm_s"])
    if not counted:
        raise SystemExit(
            f"no answer after the warm-up, {len(seen)} in it; {len(faults)} faults: "
            f"{sorted({kind for _, kind in faults})[:5]}"
        )
    held = sum(held for when, _, held in seen if when >= began + plan["warm_s"])
    return {
        "sync_p50_s": round(counted[len(counted) // 2], 4),
        "sync_p99_s": round(counted[len(counted) * 99 // 100], 4),
        "sync_max_s": round(counted[-1], 4),
        "syncs_per_s": round(len(counted) / plan["seconds"], 1),
        "syncs_held_percent": round(100 * held / len(counted), 1),
        "sync_faults": sum(when >= began + plan["warm_s"] for when, _ in faults),
        "sync_faults_warming_up": sum(when < began + plan["warm_s"] for when, _ in faults),
        "sync_fault_kinds": dict(Counter(kind[:30] for when, kind in faults if when >= began + plan["warm_s"])),
        "cores_generator": round((time.process_time() - cpu) / (time.monotonic() - began), 3),
    }


def cpu_by_part(path: Path) -> dict[str, float]:
    """Return the CPU seconds so far of the stack's processes: doors, workers, database."""
    from embedded.postgres import Postgres

    server = Postgres.existing(path)
    database = server.pid() if server is not None else None
    found: dict[str, float] = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            environment = (folder / "environ").read_bytes()
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ours = database is not None and database in (int(folder.name), int(fields[1]))
        part = "database" if ours else _part(line, mine=str(path).encode() in environment or str(path) in line)
        if part:
            spent = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
            found[part] = found.get(part, 0.0) + spent
    return found


def _part(line: str, *, mine: bool) -> str:
    if not mine:
        return ""
    if "granian" in line:
        return "agents_door" if "asgi" in line else "api_door"
    return "workers" if "celery" in line or "loops" in line else "broker" if "redis" in line or "valkey" in line else ""


if __name__ == "__main__":
    sys.exit(main())
