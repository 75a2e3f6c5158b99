"""What Prometheus reads of the installation as a whole: counted in the database when it is asked for, and only then."""

from collections.abc import Iterable, Iterator
from datetime import datetime

from django.db.models import Count, Min, Q, Sum
from prometheus_client.core import CollectorRegistry, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import REGISTRY, Collector

from agents.models import Alarm, Device, Host
from console import readiness
from console.models import InvariantCheck
from leasing.models import Lease, Quote
from leasing.notice_models import LeaseMove, Notice
from leasing.states import State
from outbox.models import Delivery, DeliveryState, Message

OVERDUE_S = 60  # RELIABILITY.md section 6: no live row's check_at is further in the past


def exposition(*, at: datetime) -> bytes:
    """Return the text of /metrics: this process's counters, and the state of the installation at `at`."""
    registry = CollectorRegistry()
    registry.register(Installation(at))
    return generate_latest(REGISTRY) + generate_latest(registry)


class Installation(Collector):
    """A dozen small queries; each family is one of them."""

    def __init__(self, at: datetime) -> None:
        self.at = at

    def describe(self) -> Iterable[Metric]:
        return []  # asked at registration; it must not query

    def collect(self) -> Iterator[Metric]:
        yield from _leases(self.at)
        yield from _machines()
        yield from _loops(self.at)
        yield from _outbox(self.at)
        yield _family(
            "invariant_findings", "Rows that break an invariant of the books, at its last check", ["invariant"],
            InvariantCheck.objects.values_list("name", "findings"),
        )  # fmt: skip
        checked = InvariantCheck.objects.aggregate(oldest=Min("checked_at"))["oldest"]
        if checked is not None:
            yield _single("invariant_check_age_seconds", "Age of the oldest check of the books", _age(checked, self.at))


def _leases(at: datetime) -> Iterator[Metric]:
    live = Lease.objects.exclude(state=State.ENDED)
    found = dict(live.values_list("state").annotate(n=Count("pk")))
    states = [state.value for state in State if state != State.ENDED]
    yield _family("leases", "Live leases", ["state"], [(state, found.get(state, 0)) for state in states])
    ahead = Notice.objects.filter(closed_at=None).values_list("cause").annotate(n=Count("pk"))
    yield _family("notices_open", "Ends ahead of which tenants were told", ["cause"], ahead)
    moved = LeaseMove.objects.filter(done_at__isnull=False).aggregate(n=Count("pk"), milli=Sum("gpu_milli"))
    yield _single("lease_moves", "Leases that were restarted elsewhere for a large request, or by hand", moved["n"])
    yield _single("lease_moves_gpu_milli", "What they moved, in thousandths of a GPU", moved["milli"] or 0)
    oldest = live.filter(state=State.PENDING, start_at=None).aggregate(oldest=Min("requested_at"))["oldest"]
    yield _single("queue_oldest_seconds", "Age of the oldest lease that waits for a device", _age(oldest, at))
    due = live.aggregate(oldest=Min("check_at"))["oldest"]
    overdue_s = max(0.0, _age(due, at) - OVERDUE_S)
    yield _single("lease_overdue_seconds", "How far the most neglected lease is past its time of care", overdue_s)
    yield _single("quotes_open", "Quotes that hold devices", Quote.objects.filter(state=Quote.State.OPEN).count())


def _machines() -> Iterator[Metric]:
    hosts = Host.objects.exclude(state=Host.State.RETIRED).values_list("state", "scheduling", "simulated")
    yield _family(
        "hosts", "Hosts that are not retired", ["state", "scheduling", "simulated"], hosts.annotate(n=Count("pk"))
    )
    devices = Device.objects.exclude(host__state=Host.State.RETIRED).filter(present=True)
    by_model = devices.values_list("model__slug", "health", "host__simulated").annotate(n=Count("pk"))
    yield _family("devices", "GPUs of those hosts", ["model", "health", "simulated"], by_model)
    open_alarms = Alarm.objects.filter(closed_at=None).values_list("kind").annotate(n=Count("pk"))
    yield _family("alarms_open", "Alarms that a person must look at", ["kind"], open_alarms)


def _loops(at: datetime) -> Iterator[Metric]:
    loops = readiness.loops(at=at)
    ages = [(loop.name, loop.age_s) for loop in loops if loop.age_s is not None]
    yield _family("loop_success_age_seconds", "Seconds since a loop's last success", ["loop"], ages)
    yield _family("loop_late", "1: the loop has missed its ticks", ["loop"], [(x.name, int(x.late)) for x in loops])


def _outbox(at: datetime) -> Iterator[Metric]:
    messages = Message.objects.filter(relayed_at=None, available_at__lte=at)
    waiting = messages.aggregate(n=Count("pk"), oldest=Min("available_at"))
    yield _single("outbox_messages", "Messages that nobody has passed on yet", waiting["n"])
    yield _single("outbox_oldest_seconds", "Age of the oldest of them", _age(waiting["oldest"], at))
    failed_before = Count("pk", filter=Q(attempts__gt=0))
    pending = Delivery.objects.filter(state=DeliveryState.PENDING)
    deliveries = pending.aggregate(due=Count("pk", filter=Q(due_at__lte=at)), retrying=failed_before)
    yield _single("webhook_deliveries_due", "Webhook deliveries that are due", deliveries["due"])
    yield _single("webhook_deliveries_retrying", "Webhook deliveries that failed before", deliveries["retrying"])


def _family(name: str, text: str, labels: list[str], rows: Iterable[tuple[object, ...]]) -> Metric:
    """Return a gauge with a sample per row: its labels' values, then the number."""
    family = GaugeMetricFamily(f"gpuyard_{name}", text, labels=labels)
    for *values, number in rows:
        family.add_metric([_word(value) for value in values], float(str(number)))
    return family


def _single(name: str, text: str, number: float) -> Metric:
    return GaugeMetricFamily(f"gpuyard_{name}", text, value=number)


def _word(value: object) -> str:
    return "unknown" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _age(moment: datetime | None, at: datetime) -> float:
    return max(0.0, (at - moment).total_seconds()) if moment else 0.0
