"""What the API answers, class by class. Fields that no class names stay reachable (see gpuyard.json_object)."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any

from gpuyard.json_object import Object


class Money(Object):
    amount: Decimal
    currency: str
    per: str | None  # "gpu_hour" if it is a price

    def __str__(self) -> str:
        return f"{self._json['amount']} {self.currency}" + (f" per {self.per.replace('_', ' ')}" if self.per else "")


class WhyWaiting(Object):
    text: str | None
    counts: dict[str, int] | None


class Eta(Object):
    """When a waiting lease starts."""

    at: datetime | None
    certainty: str | None  # certain (never late while nothing fails), estimated, unknown
    basis: str | None  # what an estimate rests on


class Cost(Object):
    billable_seconds: int | None  # left out in lists
    charged: Money
    running: bool | None


class Endpoint(Object):
    """Where a port of a container is published."""

    port: int  # of the container
    address: str  # of the host
    host_port: int
    service: str | None  # ssh, jupyter or tcp


class WayIn(Object):
    """How a tenant signs in to a whole machine."""

    host: str
    port: int
    user: str
    host_key: str | None  # `ssh-ed25519 AAAA...`: whoever shows another is not this machine


class Execution(Object):
    """A command in a container. state: running, done, or lost (no answer came, and whether it ran is not known)."""

    id: str
    member: int
    command: list[str]
    state: str
    exit_code: int | None
    output: str
    truncated: bool
    failure: str
    simulated: bool


class Member(Object):
    """One host's part of a lease."""

    rank: int
    host: str | None
    region: str | None
    zone: str | None
    state: str | None
    detail: str | None
    gpus: list[Any] | None
    container: str | None  # its name on the host
    endpoints: list[Endpoint] | None
    ssh: WayIn | None  # of a whole machine


class Lease(Object):
    id: str
    version: int
    state: str
    request: str
    image: str | None
    term: Object | None
    name: str | None
    labels: dict[str, str] | None
    command: list[str] | None
    created_at: datetime
    state_since: datetime | None
    ended_at: datetime | None
    end_reason: str | None
    end_detail: str | None
    exit_code: int | None  # of its command, where that ended it
    actions: list[str]
    why_waiting: WhyWaiting | None
    queue_place: int | None
    eta: Eta | None
    price: Money | None
    cost: Cost | None
    members: list[Member] | None
    notices: list[Notice] | None
    simulated: bool | None
    on_interrupt: str | None


class Plan(Object):
    """The answer of a dry run: what would happen, and nothing promised."""

    plan: Object | None


class Notice(Object):
    """What a tenant was told would end, and when."""

    cause: str | None
    ends_at: datetime | None
    detail: str | None


class LeaseEvent(Object):
    seq: int
    at: datetime
    from_state: str | None
    to_state: str | None
    reason: str | None
    detail: Any


class EventPage(Object):
    items: list[LeaseEvent]


class LogPiece(Object):
    """A stretch of output as it was printed, line breaks included."""

    offset: int  # in bytes, of its beginning
    text: str
    stream: str | None  # "stdout" or "stderr" where the two are told apart


class LogPage(Object):
    items: list[LogPiece]
    next_offset: int
    end: bool | None  # nothing will follow


class ChargeLine(Object):
    member: int
    use: str
    seconds: int | None
    price: Money | None
    charged: Money | None


class Charges(Object):
    lines: list[ChargeLine]
    billable_seconds: int
    charged: Money


class Figures(Object):
    """Of one GPU, a value for each step; None where nothing was measured."""

    mean: list[int | None]
    max: list[int | None]


class MeasuredGpu(Object):
    """What one GPU of a lease measured; the units stand in the names."""

    member: int
    epoch: int
    gpu: str
    gpu_model: str | None
    memory_total_mib: int | None
    simulated: bool
    utilization_percent: Figures
    memory_used_mib: Figures
    power_mw: Figures
    temperature_c: Figures


class Metrics(Object):
    """at: when each step begins; the figures of `series` are in the same order."""

    step_s: int
    at: list[datetime]
    series: list[MeasuredGpu]
    simulated: bool


class Offer(Object):
    model: str | None
    region: str | None
    tier: str | None
    price: Money | None
    simulated: bool | None


class Quote(Object):
    id: str
    request: str | None
    price: Money | None
    expires_at: datetime | None
    simulated: bool | None


class Image(Object):
    id: str | None
    slug: str | None
    reference: str | None


class GpuModel(Object):
    slug: str
    vendor: str | None
    memory_gib: int | None
    simulated: bool | None


class Region(Object):
    slug: str
    name: str | None
    currency: str | None
    simulated: bool | None


class Balance(Object):
    """What an organization has in one currency."""

    currency: str
    balance: Money | None
    held: Money | None
    accrued: Money | None
    available: Money | None
    owed: Money | None
    exhausts_at: datetime | None


class Wallet(Object):
    balances: list[Balance]


class Host(Object):
    id: str
    version: int
    name: str | None
    state: str | None
    scheduling: str | None
    region: str | None
    zone: str | None
    tier: str | None
    access: str | None
    price_floor: Money | None
    last_heard_at: datetime | None
    drain_deadline: datetime | None
    detected: Object | None
    actions: list[str] | None
    simulated: bool | None


class ApiKey(Object):
    id: str
    name: str | None
    scopes: list[str] | None
    created_at: datetime | None
    expires_at: datetime | None
    secret: str | None  # only in the answer that made it


class Enrolment(Object):
    id: str
    token: str | None  # only in the answer that made it
    expires_at: datetime | None


class Webhook(Object):
    id: str
    url: str | None
    secret: str | None  # only in the answer that made it


class LedgerEntry(Object):
    """A transfer that touched the organization's accounts; gains are above zero."""

    kind: str | None
    amount: Money | None
    effective_at: datetime | None
    posted_at: datetime | None


class Invoice(Object):
    id: str
    number: str | None
    due: Money | None
    tax: Money | None
    issued_at: datetime | None


class MarketPrice(Object):
    model: str | None
    region: str | None
    price: Money | None
    simulated: bool | None
