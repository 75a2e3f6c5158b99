"""How the platform is, on one page: what is free, who waits and why, today's money, what is sick, what is late."""

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from uuid import UUID

from django.db.models import Q, Sum, prefetch_related_objects

from agents.models import Alarm, Device, Host, Sweep
from apikit.money import Money
from billing.models import AccountBalance, Transfer
from billing.models.accounts import AccountKind
from console import readiness
from console.models import InvariantCheck
from console.readiness import Loop
from leasing.models import Allocation, Lease
from leasing.states import State
from scheduler import waiting_line

SHOWN = 12  # lines of a list; the rest is a link away


@dataclass
class PoolLine:
    """GPUs of one model in one region, each counted once. out: why they are in nobody's service, {reason: GPUs}."""

    region: str
    model: str
    model_id: UUID | None
    simulated: bool
    total: int = 0
    free: int = 0
    held: int = 0  # for a quote, or for a lease that is parked
    leased: int = 0
    out: Counter[str] = field(default_factory=Counter)

    @property
    def out_of_service(self) -> int:
        return self.out.total()

    @property
    def why_out(self) -> str:
        return ", ".join(f"{count} {reason}" for reason, count in self.out.most_common())


@dataclass(frozen=True)
class Waiting:
    lease: Lease
    waits_s: int
    why: str


@dataclass(frozen=True)
class Queue:
    """first: the leases that are served next. reasons: how many of all wait for what, most frequent first."""

    length: int
    first: list[Waiting]
    reasons: list[tuple[str, int]]


@dataclass(frozen=True)
class Day:
    """Today's money (UTC) in one currency, as posted; `per_hour` is what runs now."""

    currency: str
    simulated: bool
    paid_in: Money
    used: Money
    commission: Money
    carried: Money  # usage after the money was out: the platform's loss
    per_hour: Money


@dataclass(frozen=True)
class Overview:
    at: datetime
    pool: list[PoolLine]
    queue: Queue
    money: list[Day]
    sick_hosts: list[Host]
    sick_devices: list[Device]
    late_loops: list[Loop]
    alarms: list[Alarm]
    findings: list[InvariantCheck]
    breaker_since: datetime | None

    @property
    def needs_attention(self) -> bool:
        return bool(self.sick_hosts or self.sick_devices or self.late_loops or self.alarms or self.findings) or bool(
            self.breaker_since
        )


def overview(*, simulated_currency: str, at: datetime) -> Overview:
    """Return the whole page; a fixed number of queries."""
    return Overview(
        at=at,
        pool=pool(at=at),
        queue=queue(at=at),
        money=money(simulated_currency=simulated_currency, at=at),
        sick_hosts=_sick_hosts(),
        sick_devices=_sick_devices(),
        late_loops=[loop for loop in readiness.loops(at=at) if loop.late],
        alarms=list(Alarm.objects.filter(closed_at=None).order_by("opened_at")[:SHOWN]),
        findings=list(InvariantCheck.objects.filter(findings__gt=0)),
        breaker_since=Sweep.objects.values_list("breaker_since", flat=True).filter(pk=1).first(),
    )


def pool(*, at: datetime) -> list[PoolLine]:
    """Return one line per region and model of what is enrolled and not retired."""
    uses = _uses(at)
    lines: dict[tuple[str, str], PoolLine] = {}
    devices = Device.objects.exclude(host__state=Host.State.RETIRED).filter(present=True)
    for device in devices.select_related("host__zone__region", "model"):
        region = device.host.zone.region
        model = device.model.slug if device.model else "unlisted"
        line = lines.setdefault(
            (region.slug, model), PoolLine(region.slug, model, device.model_id, device.host.simulated)
        )
        line.total += 1
        use, reason = uses.get(device.pk), _why_out(device)
        if use == "leased":
            line.leased += 1
        elif reason is not None:
            line.out[reason] += 1
        elif use == "held":
            line.held += 1
        else:
            line.free += 1
    return sorted(lines.values(), key=lambda line: (line.region, line.model))


def _uses(at: datetime) -> dict[UUID, str]:
    """Return what each device is taken for now. Leased goes before held, where parts of one are both."""
    now = Allocation.objects.filter(released_at=None, during__contains=at)
    found: dict[UUID, str] = {}
    for device, lease, state in now.values_list("device_id", "lease_id", "lease__state"):
        leased = lease is not None and state != State.PARKED
        if leased or device not in found:
            found[device] = "leased" if leased else "held"
    return found


def _why_out(device: Device) -> str | None:
    """Return why nobody may lease the device now, None if somebody may."""
    host = device.host
    if host.state != Host.State.ONLINE:
        return f"host {host.state}"
    if device.health != Device.Health.HEALTHY:
        return f"GPU {device.health}"
    if host.scheduling != Host.Scheduling.OPEN:
        return str(host.scheduling)
    return "cordoned" if device.cordoned else None


def queue(*, at: datetime) -> Queue:
    """Return who waits, in the order of service, and for what."""
    waiting = waiting_line.queue(at=at)
    prefetch_related_objects(waiting[:SHOWN], "organization")
    reasons: Counter[str] = Counter()
    for lease in waiting:
        codes = {str(reason["code"]).replace("_", " ") for reason in (lease.why_waiting or {}).get("counts", ())}
        reasons.update(codes or {"not looked at yet" if lease.why_waiting is None else "no host has it"})
    first = [
        Waiting(lease, int((at - lease.requested_at).total_seconds()), str((lease.why_waiting or {}).get("text", "")))
        for lease in waiting[:SHOWN]
    ]
    return Queue(len(waiting), first, reasons.most_common(SHOWN))


def money(*, simulated_currency: str, at: datetime) -> list[Day]:
    """Return today's money, one line per currency that has any."""
    midnight = at.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    moved: dict[str, Counter[tuple[str, str]]] = defaultdict(Counter)
    today = Transfer.objects.filter(journal__effective_at__gte=midnight, journal__effective_at__lte=at)
    for currency, debit, credit, micros in today.values_list("currency", "debit__kind", "credit__kind").annotate(
        micros=Sum("amount_micros")
    ):
        moved[currency][debit, credit] += micros
    burn = dict(
        AccountBalance.objects.filter(account__kind=AccountKind.WALLET)
        .values_list("account__currency")
        .annotate(micros=Sum("burn_micros_per_hour"))
    )
    return [
        _day(currency, moved[currency], burn.get(currency, 0), simulated=currency == simulated_currency)
        for currency in sorted({*moved, *burn})
    ]


def _day(currency: str, moved: Counter[tuple[str, str]], burn_micros: int, *, simulated: bool) -> Day:
    def net(inside: Callable[[str, str], bool]) -> Money:
        gained = sum(micros for (debit, credit), micros in moved.items() if inside(debit, credit))
        given_back = sum(micros for (debit, credit), micros in moved.items() if inside(credit, debit))
        return Money(gained - given_back, currency)

    clearing = AccountKind.USAGE_CLEARING
    payers = {AccountKind.WALLET, AccountKind.PROMO_GRANT, AccountKind.PREPAID_TERM, AccountKind.OVERRUN_EXPENSE}
    return Day(
        currency=currency,
        simulated=simulated,
        paid_in=net(lambda debit, credit: debit == AccountKind.CASH and credit == AccountKind.WALLET),
        used=net(lambda debit, credit: debit in payers and credit == clearing),
        commission=net(lambda debit, credit: debit == clearing and credit == AccountKind.COMMISSION),
        carried=net(lambda debit, credit: debit == AccountKind.OVERRUN_EXPENSE and credit == clearing),
        per_hour=Money(burn_micros, currency),
    )


def _sick_hosts() -> list[Host]:
    healthy = Q(state=Host.State.ONLINE, conditions=[])
    rows = Host.objects.exclude(healthy).exclude(state=Host.State.RETIRED).select_related("owner", "zone")
    return list(rows.order_by("state_since", "pk")[:SHOWN])


def _sick_devices() -> list[Device]:
    rows = Device.objects.filter(present=True, host__state=Host.State.ONLINE).exclude(
        health__in=[Device.Health.HEALTHY, Device.Health.SELFTEST]
    )
    return list(rows.select_related("host", "model").order_by("health_since", "pk")[:SHOWN])
