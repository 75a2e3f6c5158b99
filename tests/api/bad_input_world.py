"""The state that bad_inputs.json speaks of (placeholders, `given`, `agent`), made through the domain."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.db import connection, transaction

from agents import enrolment
from agents.models import Host, Workload
from apikit import clock, idempotency, rate_limits
from billing import metering, price_list
from leasing.models import Lease
from leasing.states import State
from scheduler import converging
from tenants import keys, roles
from tenants.models import Organization
from tests import factories
from tests.agents.fake_agent import FakeAgent

CREDIT_MICROS = 100_000 * 1_000_000
POOL = (("A100_80G", 8), ("RTX_4090_24G", 2), ("H100_80G", 2))
TERMS = ("on_demand", "spot", "reserved:P1M")


@dataclass
class World:
    """Organization A with money, hosts and keys, at the frozen instant `at`; everything else is made when asked for."""

    at: datetime
    given: frozenset[str]
    post: Callable[..., Any]  # (path, body, headers): as the runner sends it
    base_body: dict[str, Any]
    simulated: bool = False  # where agents of the test speak: their hardware is, and so is the money
    cleanup: ExitStack = field(default_factory=ExitStack)
    agent: FakeAgent | None = None

    def __post_init__(self) -> None:
        micros = 0 if "wallet.empty" in self.given else CREDIT_MICROS
        self.a = self._tenant("A", micros=micros)
        self.zone = factories.make_zone("bj-1", simulated=self.simulated)
        for model, _ in POOL:
            factories.make_gpu_model(model, aliases=[model.rpartition("_")[0]] if "4090" in model else [])
            for term in TERMS:
                series = price_list.Series(
                    sku=model, region="bj", tier="verified", term=term, use="active", currency=self.currency,
                    notice_s=120 if term == "spot" else 0,
                )  # fmt: skip
                start = self.at - timedelta(days=1)
                price_list.publish(
                    series=series, price_micros_per_hour=3_600_000, starts_at=start, cause="test", at=start
                )
        factories.make_image()
        self.key = self._key(roles.SCOPES)
        if "rate.used_up" in self.given:
            for _ in range(60):
                rate_limits.count("lease_create", subject=self.a.public_id, at=self.at)

    @property
    def currency(self) -> str:
        return "XTS" if self.simulated else "CNY"

    def add_hosts(self) -> None:
        """A's three hosts. Not made where an agent plays one of them: the lease must land there."""
        for model, gpus in POOL:
            factories.make_host(
                owner=self.a, model=model, gpus=gpus, zone=self.zone, name=f"{model}-host", state_since=self.at,
                last_heard_at=self.at,
            )  # fmt: skip
        if "pool.full" in self.given:
            for model, gpus in POOL:
                self._active_lease(self._tenant("rich"), f"{model} x{gpus}")

    def resolve(self, text: str) -> str:
        """Return `text` with every placeholder in it replaced."""
        for name, make in self._placeholders().items():
            if name in text:
                text = text.replace(name, make())
        assert "{" not in text, f"no placeholder is known for {text}"
        return text

    def _placeholders(self) -> dict[str, Callable[[], str]]:
        return {
            "{key.readonly}": lambda: self._key(("leases:read",)),
            "{key.revoked}": self._revoked_key,
            "{key.bad_checksum}": lambda: self.key[:-1] + ("0" if self.key[-1] != "0" else "1"),
            "{key}": lambda: self.key,
            "{lease.active}": lambda: self._active_lease(self.a).public_id,
            "{lease.ended}": self._ended_lease,
            "{lease.foreign}": lambda: self._active_lease(self._tenant("B")).public_id,
            "{idempotency.used}": self._used_idempotency_key,
            "{idempotency.running}": self._running_idempotency_key,
        }

    def _tenant(self, name: str, *, micros: int = CREDIT_MICROS) -> Organization:
        return factories.make_tenant(micros=micros, currency=self.currency, name=name)

    def _key(self, scopes: tuple[str, ...]) -> str:
        _, text = keys.create(
            organization=self.a, name="k", scopes=scopes, expires_at=None, created_by=None, at=self.at
        )
        return text

    def _revoked_key(self) -> str:
        key, text = keys.create(
            organization=self.a, name="r", scopes=roles.SCOPES, expires_at=None, created_by=None, at=self.at
        )
        keys.revoke(key=key, at=self.at, actor="test")
        return text

    def _active_lease(self, tenant: Organization, request: str = "A100_80G") -> Lease:
        return factories.make_active_lease(tenant, request, at=self.at - timedelta(seconds=10))

    def _ended_lease(self) -> str:
        lease = factories.make_active_lease(self.a, at=self.at - timedelta(seconds=300))
        return factories.end_and_clean(lease, at=self.at - timedelta(seconds=100)).public_id

    def _used_idempotency_key(self) -> str:
        assert self.post("/api/v1/leases", self.base_body, {"Idempotency-Key": "used-before"}).status_code == 201
        return "used-before"

    def _running_idempotency_key(self) -> str:
        """Claim a key in a transaction of another connection that stays open until the case is over."""
        claimed, over = threading.Event(), threading.Event()

        def first_request() -> None:
            with transaction.atomic():
                idempotency._claim(organization_id=self.a.pk, key="running", fingerprint=bytes(32), at=self.at)
                claimed.set()
                over.wait(60)
                transaction.set_rollback(True)
            connection.close()

        thread = threading.Thread(target=first_request)
        thread.start()
        self.cleanup.callback(thread.join)
        self.cleanup.callback(over.set)
        assert claimed.wait(30)
        return "running"

    # What an agent needs

    def enrolled_agent(self, name: str = "node-1") -> FakeAgent:
        """An enrolled, verified host of A that speaks as the real agent does."""
        agent = FakeAgent(name=name, clock_s=int(self.at.timestamp()))
        agent.enrol(self.enrolment_token(name))
        agent.come_online()
        return agent

    def enrolment_token(self, name: str) -> str:
        _, token = enrolment.invite(
            organization=self.a, zone=self.zone.slug, name=name, access="public", created_by="test", at=clock.now()
        )
        return token

    def lease_on(self, agent: FakeAgent) -> Lease:
        """A's lease, active on this agent's host, as the agent itself reported."""
        lease = factories.make_lease(self.a, at=self.at)
        factories.place(at=self.at)
        desired = agent.sync()["desired"][0]
        agent.workloads = [agent.report(desired, "ready")]
        agent.sync()
        converging.converge(at=self.at + timedelta(seconds=1))
        lease.refresh_from_db()
        assert lease.state == State.ACTIVE, lease.why_waiting
        return lease

    def moved_to_another_host(self, lease: Lease, agent: FakeAgent) -> None:
        """The lease's first host is lost and it goes on elsewhere, under the next epoch."""
        Workload.objects.filter(reference=lease.public_id).update(last_valid_until=self.at)
        Host.objects.filter(name=agent.name).update(state=Host.State.LOST)
        factories.make_host(
            owner=self.a, gpus=1, zone=self.zone, name="second", state_since=self.at, last_heard_at=self.at
        )
        later = self.at + timedelta(seconds=400)
        with clock.frozen(later):
            converging.converge(at=later)
            factories.place(at=later)
        lease.refresh_from_db()
        assert lease.epoch == 2, (lease.state, lease.why_waiting)


def billed_s(lease: Lease, *, at: datetime) -> int:
    return metering.cost(reference=lease.public_id, at=at).seconds


@contextmanager
def world(**options: Any) -> Iterator[World]:
    made = World(**options)
    with made.cleanup:
        yield made
