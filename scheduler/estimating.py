"""When a waiting lease may start, where no known end says so: from how long past leases of its kind went on.

An estimate, and labelled so, with what it rests on. It counts units of one kind (a model, or a slice of one), as if any
machine would do: those before it in the queue take what comes free first.
"""

from collections import defaultdict
from datetime import UTC, datetime, timedelta
from typing import Any

from leasing import promised_price
from leasing.models import Lease
from leasing.states import HOLDS_DEVICES, State
from scheduler import survival

FEWEST = 5  # past leases, below which nothing is said
NEWEST = 200
STEP_S = 300  # an estimate is no more exact than that, and so does not change with every pass
UNKNOWN: dict[str, Any] = {"at": None, "certainty": "unknown"}


class Estimates:
    """The estimates of one pass. Leases are told to it in the order of the queue."""

    def __init__(self, at: datetime) -> None:
        self._at, self._now_s = at, int(at.timestamp())
        self._ahead: dict[tuple[str, str], int] = defaultdict(int)  # units that those before it wait for
        self._lengths: dict[tuple[str, str], list[int]] = {}
        self._ends: dict[tuple[str, str], list[tuple[int, int]]] = {}

    def count(self, lease: Lease, *, option_index: int = 0) -> None:
        """Let a lease of the queue be before those that come after it."""
        kind, units = _kind(lease, option_index)
        self._ahead[kind] += units

    def eta(self, lease: Lease, *, option_index: int = 0) -> dict[str, Any]:
        """Return {"at", "certainty": "estimated", "basis"} for the next in the queue, or that it is unknown."""
        (sku, currency), units = _kind(lease, option_index)
        lengths = self._lengths_of(sku, str(lease.term_kind))
        if len(lengths) < FEWEST:
            return dict(UNKNOWN)
        needed = self._ahead[sku, currency] + units
        free_s = survival.free_at_s(ends=self._ends_of(sku, currency), needed=needed)
        if free_s is None:
            return dict(UNKNOWN)
        rounded = -(-max(free_s, self._now_s + 1) // STEP_S) * STEP_S
        return {
            "at": datetime.fromtimestamp(rounded, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "certainty": "estimated",
            "basis": f"median of {len(lengths)} past leases",
        }

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

    def _ends_of(self, sku: str, currency: str) -> list[tuple[int, int]]:
        """Return when units of a kind come free: known ends as they are, the others as past leases went."""
        if (sku, currency) not in self._ends:
            running = Lease.objects.filter(state__in=HOLDS_DEVICES, sku=sku, currency=currency)
            columns = ("term_kind", "gpu_count", "first_active_at", "end_at", "renew")
            self._ends[sku, currency] = [(self._end_s(sku, *row), row[1]) for row in running.values_list(*columns)]
        return self._ends[sku, currency]

    def _end_s(
        self, sku: str, term: str, _: int, began: datetime | None, end_at: datetime | None, renews: bool
    ) -> int:  # fmt: skip
        if end_at is not None and not renews:
            return int((end_at + timedelta(seconds=1)).timestamp())
        age_s = max(0, self._now_s - int(began.timestamp())) if began else 0
        return self._now_s + survival.remaining_s(lengths=self._lengths_of(sku, term), age_s=age_s)


def _kind(lease: Lease, option_index: int) -> tuple[tuple[str, str], int]:
    option = lease.request_options["options"][option_index]
    sku = promised_price.sku(model=option.get("model") or "", slice_name=option.get("slice"))
    return (sku, lease.currency), option["count"] * option["nodes"]
