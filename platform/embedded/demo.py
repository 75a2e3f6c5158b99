"""`make demo`: the main job on this machine, end to end, played and said step by step.

A tenant is quoted and leases GPUs, sees his container run and his cost tick, a rival is refused what is taken, a host
dies under the lease, which goes on elsewhere, it ends, and the books are proved balanced. The GPUs are simulated; the
rest is what production runs: PostgreSQL, broker, workers, doors, agents, and a container engine where there is one.
The last line is one JSON object.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import gpuyard
from embedded import stack
from embedded.postgres import Postgres
from embedded.process_table import read_pool
from embedded.stack_folder import default_path

# Short, so that a dead host costs seconds of a demonstration; production waits 30 s, 60 s and 30 s.
SHORTENED = {
    "WORKLOAD_VALID_FOR_S": "8",
    "WORKLOAD_STOP_GRACE_S": "3",
    "FENCE_MARGIN_S": "2",
    "HOST_SUSPECT_AFTER_S": "8",
    "HOST_SILENCE_LIMIT_S": "12",
    "HOST_SYNC_HOLD_S": "2",
}
MODEL = "A100_80G"
REQUEST = f"{MODEL} x4"


class DemoFailed(Exception):
    """The demonstration did not show what it should; the sentence says which step."""


class Stage:
    """Says each step with the seconds since the start."""

    def __init__(self) -> None:
        self.began = time.monotonic()

    def step(self, title: str) -> None:
        print(f"\n[{time.monotonic() - self.began:5.1f} s] {title}", flush=True)

    def say(self, line: str) -> None:
        print(f"          {line}", flush=True)


def until[T](ask: Callable[[], T | None], *, within_s: float, what: str) -> T:
    """Ask until there is an answer that is not None; raise DemoFailed after `within_s`."""
    deadline = time.monotonic() + within_s
    while True:
        answer = ask()
        if answer is not None:
            return answer
        if time.monotonic() > deadline:
            raise DemoFailed(f"{what} did not happen within {within_s:g} s.")
        time.sleep(0.2)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--keep", action="store_true", help="leave the stack up afterwards")
    parser.add_argument("--state-dir", type=Path, default=default_path().with_name("demo"))
    options = parser.parse_args(argv)
    stage = Stage()
    try:
        outcome = play(stage, options.state_dir)
    except (DemoFailed, stack.UpFailed, gpuyard.GpuyardError) as fault:
        print(f"\nThe demonstration failed: {fault}\nLogs: {options.state_dir / 'log'}", file=sys.stderr)
        return 1
    finally:
        if options.keep:
            stage.say(
                f"left up; end it with: {Path(sys.executable).name} -m embedded down --state-dir {options.state_dir}"
            )
        else:
            stack.down(options.state_dir, remove=True)
    print(json.dumps(outcome), flush=True)
    return 0 if outcome["books_balanced"] else 1


def play(stage: Stage, path: Path) -> dict[str, Any]:
    stage.step("The platform starts on this machine: PostgreSQL, broker, workers, doors, and seven hosts.")
    stack.down(path, remove=True)  # what an earlier run left
    access = stack.up(path, environment=SHORTENED, progress=lambda step: stage.say(step))
    engine = access.get("container_engine", {"kind": "process", "hosts": [], "reason": "unknown"})
    stage.say("Every GPU is SIMULATED (region sim, currency XTS); agents, database, broker and doors are real.")
    if engine["kind"] == "process":
        stage.say(f"Containers are a process sandbox: {engine['reason']}.")
    else:
        stage.say(f"Host {', '.join(engine['hosts'])} runs real containers with {engine['kind']}.")
    stage.say("Shortened for the demonstration: " + ", ".join(f"{k.lower()} {v}" for k, v in SHORTENED.items()) + ".")
    with _client(access, "tenant") as tenant, _client(access, "rival") as rival, _client(access, "owner") as owner:
        return Scenes(stage, path, engine, tenant, rival, owner).play()


def _client(access: dict[str, Any], who: str) -> gpuyard.Client:
    return gpuyard.Client(api_url=access["api_url"], api_key=access[who]["api_key"])


class Scenes:
    """The demonstration's parts, in order; each leaves what the next needs."""

    def __init__(
        self, stage: Stage, path: Path, engine: dict[str, Any], tenant: gpuyard.Client, rival: gpuyard.Client,
        owner: gpuyard.Client,
    ) -> None:  # fmt: skip
        self.stage, self.path, self.engine = stage, path, engine
        self.tenant, self.rival, self.owner = tenant, rival, owner
        self.expected = sum(int(gpu.rpartition(" x")[2]) for host in read_pool(stack.DEFAULT_POOL) for gpu in host.gpus)

    def play(self) -> dict[str, Any]:
        self.show_offers()
        spare = self.cordon_the_other_host()
        lease_id = self.quote_and_lease()
        self.show_it_running(lease_id)
        self.refuse_the_rival(lease_id)
        other = self.second_tenant()
        self.owner.hosts.uncordon(spare)
        died_at = self.kill_the_host(lease_id)
        self.follow_recovery(lease_id, died_at)
        return self.settle([lease_id, other], recovered=lease_id)

    def show_offers(self) -> None:
        self.stage.step("What can be leased now (each line is an answer of the placement engine):")

        def all_verified() -> list[Any] | None:
            offers = list(self.tenant.offers.list())
            return offers if sum(offer.available for offer in offers) == self.expected else None

        for offer in until(all_verified, within_s=60, what="The verification of all hosts"):
            price = f"{offer.price['amount']} {offer.price['currency']}"
            self.stage.say(f"{offer.available:3d} x {offer.gpu_model:<18} {price} per GPU-hour  (simulated)")

    def cordon_the_other_host(self) -> str:
        """The first lease shall run on the host with a real engine, so the other host of its kind steps aside."""
        host = next(host for host in self.owner.hosts.list() if host.name == "sim-a100-1")
        self.owner.hosts.cordon(host.id, reason="maintenance, for the demonstration")
        return str(host.id)

    def quote_and_lease(self) -> str:
        self.stage.step(f"The tenant asks for a quote: {REQUEST}, for two hours.")
        quote = self.tenant.quotes.create(request=REQUEST, term="2h", ttl_s=120)
        self.stage.say(f"{quote.price_per_hour['amount']} {quote.price_per_hour['currency']} an hour, devices held")
        lease = self.tenant.leases.create(quote=quote.id, image="gpuyard_demo", name="demo")
        self.stage.say(f"{lease.id} takes the quote; image {lease.image}")
        states: list[str] = []

        def active() -> Any | None:
            now = self.tenant.leases.get(lease.id)
            member = now.members[0] if now.members else None
            seen = f"{now.state}{f': {member.state} on {member.host_name}' if member else ''}"
            if seen not in states:
                states.append(seen)
                self.stage.say(seen)
            return now if now.state == "active" else None

        until(active, within_s=40, what="The start of the lease")
        return str(lease.id)

    def show_it_running(self, lease_id: str) -> None:
        self.stage.step("Its container's own output:")

        def enough() -> list[str] | None:
            text = "".join(piece.text for piece in self.tenant.leases.logs(lease_id))
            lines = text.splitlines()
            return lines[:8] if len(lines) >= 8 else None

        for line in until(enough, within_s=20, what="The output"):
            self.stage.say(f"| {line}")
        self.stage.step("Billed by the usable second:")
        last = -1
        for _ in range(4):
            cost = self._cost_beyond(lease_id, last)
            last = int(cost["billable_seconds"])
            self.stage.say(f"{last:3d} s  {cost['charged']['amount']} {cost['charged']['currency']}")

    def _cost_beyond(self, lease_id: str, seconds: int) -> Any:
        """Wait until more than `seconds` are billable, and return the cost."""

        def beyond() -> Any | None:
            cost: Any = self.tenant.leases.get(lease_id).cost
            return cost if int(cost["billable_seconds"]) > seconds else None

        return until(beyond, within_s=20, what="The next billable second")

    def refuse_the_rival(self, lease_id: str) -> None:
        self.stage.step(f"A second tenant wants {MODEL} x8, now or not at all:")
        try:
            self.rival.leases.create(request=f"{MODEL} x8", image="gpuyard_demo", if_no_capacity="refuse")
        except gpuyard.NoCapacity as refusal:
            self.stage.say(f"409: {refusal.problem['detail']}")
            self.stage.say(f"earliest start: {refusal.problem['eta']['at']} ({refusal.problem['eta']['certainty']})")
            return
        raise DemoFailed(f"The rival was given GPUs that {lease_id} holds")

    def second_tenant(self) -> str:
        self.stage.step("He takes something else, as tenants' own schedulers ask (create_instance):")
        instance = self.rival.create_instance(
            {"gpu_model": "L40S_48G", "node_count": 1, "image_id": "pytorch_latest", "lease_term": "on_demand"}
        )
        lease = self.rival.leases.wait(instance.instance_id, until="active", timeout_s=40)
        self.stage.say(f"{instance.instance_id}: {lease.request} is {lease.state} on {_host_of(lease)}")
        return str(instance.instance_id)

    def kill_the_host(self, lease_id: str) -> float:
        name = _host_of(self.tenant.leases.get(lease_id))
        self.stage.step(f"The power of host {name} is cut, under the running lease.")
        stack.kill_host(self.path, name)
        return time.monotonic()

    def follow_recovery(self, lease_id: str, died_at: float) -> None:
        seen = 0

        def recovered() -> Any | None:
            nonlocal seen
            for event in self.tenant.leases.events(lease_id, after=seen):
                seen = event.seq
                if event.reason not in {"requested", "placed"} or seen > 4:
                    self.stage.say(
                        f"{event.at:%H:%M:%S}  {event.from_state} -> {event.to_state}: {event.reason} {event.detail}"
                    )
            lease = self.tenant.leases.get(lease_id)
            moved = lease.members and any(member.rank == 0 for member in lease.members)
            return lease if lease.state == "active" and moved and seen > 6 else None

        lease = until(recovered, within_s=90, what="The recovery of the lease")
        gap = time.monotonic() - died_at
        self.stage.say(f"It runs again, on {_host_of(lease)}, {gap:.0f} s after the cut; the gap is not billed.")
        until(
            lambda: self._cost_beyond(lease_id, int(lease.cost["billable_seconds"]) + 2), within_s=20, what="Its cost"
        )

    def settle(self, lease_ids: list[str], *, recovered: str) -> dict[str, Any]:
        self.stage.step("Both leases end; the statement, segment by segment:")
        seconds = micros = 0
        for client, lease_id in ((self.tenant, lease_ids[0]), (self.rival, lease_ids[1])):
            client.leases.end(lease_id)
            client.leases.wait(lease_id, until="ended", timeout_s=60)
            charges = client.leases.charges(lease_id)
            for line in charges.lines:
                self.stage.say(
                    f"{lease_id[-6:]}  {line['from']} to {line['to']}  {line['seconds']:4d} s x {line['quantity']} GPU"
                    f" at {line['price']['amount']}: {line['charged']['amount']} {line['charged']['currency']}"
                )
            seconds += int(charges.billable_seconds)
            micros += int(Decimal(charges.charged["amount"]) * 1_000_000)
        wallet: Any = self.tenant.wallet.get()
        for purse in wallet["balances"]:
            self.stage.say(f"the tenant's wallet: {purse['balance']['amount']} {purse['currency']}")
        self.stage.step("Every invariant of the ledger is checked (manage.py reconcile):")
        balanced = self._reconcile()
        return {
            "lease_ids": lease_ids,
            "billable_seconds": seconds,
            "charged_micros": micros,
            "currency": "XTS",
            "container_engine": self.engine["kind"],
            "recovered_lease_id": recovered,
            "books_balanced": balanced,
            "simulated": True,
            "took_s": round(time.monotonic() - self.stage.began, 1),
        }

    def _reconcile(self) -> bool:
        environment = {
            **os.environ,
            "DATABASE_URL": Postgres.in_state_dir(self.path).url(),
            "DJANGO_SETTINGS_MODULE": "config.settings",
            "DEBUG": "1",
        }
        found = subprocess.run(
            [sys.executable, "-m", "django", "reconcile"], env=environment, capture_output=True, text=True, check=False
        )
        for line in (found.stdout if found.returncode == 0 else found.stdout + found.stderr).splitlines()[-20:]:
            self.stage.say(line)
        return found.returncode == 0


def _host_of(lease: Any) -> str:
    return str(lease.members[0].host_name)


if __name__ == "__main__":
    sys.exit(main())
