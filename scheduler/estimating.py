"""When a waiting lease may start, where no known end says so: from how long past leases of its kind went on.

An estimate, and labelled so, with what it rests on. It counts units of one kind (a model, or a slice of one): those
before it in the queue take what comes free first. For whole GPUs it is also no earlier than the moment from which as
many machines as are asked for have as many free as are asked for of each. A request for any GPU of some memory starts
with the first of the kinds that fit, and whoever is before others with such a request is before them at each of these.
"""

from collections import defaultdict
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from django.db.models import F

from agents.models import Device, Host
from leasing import catalogue_view, promised_price
from leasing.grammar import Option
from leasing.models import Lease, LeaseMember
from leasing.states import HOLDS_DEVICES, State
from scheduler import survival
from scheduler.survival import Machine

FEWEST = 5  # past leases, below which nothing is said
NEWEST = 200
STEP_S = 300  # an estimate is no more exact than that, and so does not change with every pass
UNKNOWN: dict[str, Any] = {"at": None, "certainty": "unknown"}


@dataclass(frozen=True)
class _Wanted:
    """What one alternative of a request waits for: any of these kinds."""

    skus: tuple[str, ...]
    currency: str
    count: int  # of each machine
    nodes: int
    whole: bool

    @property
    def units(self) -> int:
        return self.count * self.nodes


class Estimates:
    """The estimates of one pass. Leases are told to it in the order of the queue."""

    def __init__(self, at: datetime) -> None:
        self._at, self._now_s = at, int(at.timestamp())
        self._ahead: dict[tuple[str, str], int] = defaultdict(int)  # units that those before it wait for
        self._lengths: dict[tuple[str, str], list[int]] = {}
        self._ends: dict[tuple[str, str], list[tuple[int, int, UUID]]] = {}
        self._machines: dict[tuple[str, str], list[Machine]] = {}
        self._together: dict[tuple[str, str, int, int], int | None] = {}
        self._view: catalogue_view.View | None = None

    def count(self, lease: Lease, *, option_index: int = 0) -> None:
        """Let a lease of the queue be before those that come after it."""
        wanted = self._wanted(lease, option_index)
        for sku in wanted.skus:
            self._ahead[sku, wanted.currency] += wanted.units

    def eta(self, lease: Lease, *, option_index: int = 0) -> dict[str, Any]:
        """Return {"at", "certainty": "estimated", "basis"} for the next in the queue, or that it is unknown."""
        wanted = self._wanted(lease, option_index)
        of_kinds = [(sku, self._lengths_of(sku, str(lease.term_kind))) for sku in wanted.skus]
        known = [(sku, len(lengths)) for sku, lengths in of_kinds if len(lengths) >= FEWEST]
        moments = [(moment, sku, past) for sku, past in known if (moment := self._free_s(sku, wanted)) is not None]
        if not moments:
            return dict(UNKNOWN)
        free_s, sku, past = min(moments)
        rounded = -(-max(free_s, self._now_s + 1) // STEP_S) * STEP_S
        return {
            "at": datetime.fromtimestamp(rounded, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "certainty": "estimated",
            "basis": f"median of {past} past leases" + (f" of {sku}" if len(wanted.skus) > 1 else ""),
        }

    def _free_s(self, sku: str, wanted: _Wanted) -> int | None:
        """Return when enough of one kind has come free, for those ahead too, and on machines where it is of use."""
        needed = self._ahead[sku, wanted.currency] + wanted.units
        ends = [(second, units) for second, units, _ in self._ends_of(sku, wanted.currency)]
        enough_s = survival.free_at_s(ends=ends, needed=needed)
        if enough_s is None or not wanted.whole or wanted.count == 1 == wanted.nodes:
            return enough_s
        together_s = self._together_s(sku, wanted)
        return None if together_s is None else max(enough_s, together_s)

    def _together_s(self, sku: str, wanted: _Wanted) -> int | None:
        """Return when that many are free at once on as many machines, whoever is ahead: the same for all who ask so."""
        asked = (sku, wanted.currency, wanted.count, wanted.nodes)
        if asked not in self._together:
            machines = self._machines_of(sku, wanted.currency)
            self._together[asked] = survival.machines_at_s(
                machines, count=wanted.count, nodes=wanted.nodes, now_s=self._now_s
            )
        return self._together[asked]

    def _wanted(self, lease: Lease, option_index: int) -> _Wanted:
        option = lease.request_options["options"][option_index]
        model, name, memory = option.get("model"), option.get("slice"), option.get("memory_gib")
        if memory is None:
            skus = [promised_price.sku(model=model, slice_name=name)]
        else:
            self._view = self._view or catalogue_view.current()
            skus = promised_price.skus(Option(memory_gib=(memory["min"], memory["max"])), self._view)
        return _Wanted(tuple(skus), lease.currency, option["count"], option["nodes"], whole=name is None)

    def _lengths_of(self, sku: str, term: str) -> list[int]:
        """Return the lengths of past leases of a kind, of the same term if there are enough, else of any."""
        if (sku, term) not in self._lengths:
            ended = Lease.objects.filter(
                state=State.ENDED, sku=sku, first_active_at__isnull=False, ended_at__lte=self._at
            )
            same = self._newest(ended.filter(term_kind=term))
            self._lengths[sku, term] = same if len(same) >= FEWEST else self._newest(ended)
        return self._lengths[sku, term]

    def _newest(self, ended: Any) -> list[int]:
        rows = ended.order_by("-ended_at", "pk").values_list("first_active_at", "ended_at")[:NEWEST]
        return [max(1, int((end - start).total_seconds())) for start, end in rows]

    def _ends_of(self, sku: str, currency: str) -> list[tuple[int, int, UUID]]:
        """Return when units of a kind come free and where: known ends as they are, the others as past leases went."""
        if (sku, currency) not in self._ends:
            running = LeaseMember.objects.filter(
                lease__state__in=HOLDS_DEVICES, lease__sku=sku, lease__currency=currency, epoch=F("lease__epoch")
            )
            columns = ("lease__term_kind", "lease__first_active_at", "lease__end_at", "lease__renew")
            rows = running.order_by().values_list("gpu_count", "host_id", *columns)
            self._ends[sku, currency] = sorted((self._end_s(sku, *row), units, host) for units, host, *row in rows)
        return self._ends[sku, currency]

    def _machines_of(self, model: str, currency: str) -> list[Machine]:
        """Return the machines in service that have GPUs of a model: what is free there, and what comes free."""
        if (model, currency) not in self._machines:
            well = Device.objects.filter(
                model__slug=model, health=Device.Health.HEALTHY, cordoned=False, present=True,
                host__state=Host.State.ONLINE, host__scheduling=Host.Scheduling.OPEN,
                host__zone__region__currency=currency,
            )  # fmt: skip
            found: dict[UUID, Machine] = defaultdict(Machine)
            for host_id in well.order_by().values_list("host_id", flat=True):
                found[host_id].free += 1
            for second, units, host_id in self._ends_of(model, currency):
                if host_id in found:
                    found[host_id].free -= units
                    found[host_id].ends.append((second, units))
            self._machines[model, currency] = list(found.values())
        return self._machines[model, currency]

    def _end_s(self, sku: str, term: str, began: datetime | None, end_at: datetime | None, renews: bool) -> int:
        if end_at is not None and not renews:
            return int((end_at + timedelta(seconds=1)).timestamp())
        age_s = max(0, self._now_s - int(began.timestamp())) if began else 0
        return self._now_s + survival.remaining_s(lengths=self._lengths_of(sku, term), age_s=age_s)
