"""What a spot lease was promised, and what it gets back if it was taken sooner than that.

Promised: its minimum runtime, and its notice before it is reclaimed. If its use ends before its minimum runtime for a
reason that is not its tenant's, the seconds of that run are free; if it leaves before the end of a notice, or with a
shorter one than it chose, the seconds that are missing are taken back from the end of its run. They are taken back as
downtime is: with commission and earnings, once.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta
from uuid import UUID

from django.db.models import Q

from billing import downtime
from leasing import noticing
from leasing.models import Lease, LeaseEvent
from leasing.notice_models import LEAVING
from leasing.states import State

WHY = "It was taken sooner than it was promised: these seconds are free."


def missing_s(*, ran_s: int, min_runtime_s: int, promised_s: int, given_s: int | None, early_s: int) -> int:
    """Return how many seconds at the end of a run are free. given_s: of the notice; None if there was none to give.

    early_s: how long before the end of its notice the use was lost.
    """
    if ran_s < min_runtime_s:
        return ran_s
    short_s = 0 if given_s is None else max(0, promised_s - given_s)
    return min(ran_s, max(short_s, min(early_s, promised_s)))


def keep(
    lease: Lease, *, last_good: datetime, needs_notice: bool, at: datetime, told_at: datetime | None = None
) -> int:
    """Take back what a lease should not pay for, now that its meter has stopped at `last_good`; return the seconds.

    needs_notice: it ends by a cause of which it had to be told; told_at: since when everybody could know, if no notice
    of its own was given. The caller holds its row.
    """
    spot = lease.term_kind == Lease.TermKind.SPOT
    notice = lease.notices.filter(closed_at=None).exclude(cause__in=["expiry", "balance"]).order_by("ends_at").first()
    if not (spot or (notice is not None and notice.cause in LEAVING)):
        return 0
    began = running_since([lease]).get(lease.pk)
    if began is None:
        return 0
    given_s = None
    if (notice is not None and notice.cause in LEAVING) or needs_notice:
        known_at = min([moment for moment in (told_at, notice.given_at if notice else None) if moment], default=None)
        given_s = max(0, int((last_good - known_at).total_seconds())) if known_at else 0
    early_s = max(0, int((notice.ends_at - last_good).total_seconds())) if notice and given_s is not None else 0
    seconds = missing_s(
        ran_s=max(0, int(last_good.timestamp()) - int(began.timestamp())), min_runtime_s=lease.min_runtime_s,
        promised_s=lease.notice_s, given_s=given_s, early_s=early_s,
    )  # fmt: skip
    if seconds > 0:
        whole = last_good - timedelta(seconds=seconds) <= began
        _take_back(lease, until=last_good, seconds=seconds, whole=whole, at=at)
    return seconds


def _take_back(lease: Lease, *, until: datetime, seconds: int, whole: bool, at: datetime) -> None:
    """Take the last seconds of a run back. whole: all of it is free, and with it what was given up on the way."""
    members = None if whole else list(lease.members.filter(epoch=lease.epoch).values_list("rank", flat=True))
    downtime.void_rest(
        reference=lease.public_id, members=members, start=until - timedelta(seconds=seconds), end=until,
        reason="broken promise", at=at,
    )  # fmt: skip
    noticing.tell(lease, topic="credit.posted", reason="promise_broken", detail=WHY, facts={"seconds": seconds}, at=at)


def running_since(leases: Iterable[Lease]) -> dict[UUID, datetime]:
    """Return for each lease since when it is usable on its present devices; restarts in place do not count anew."""
    found: dict[UUID, datetime] = {}
    placed = Q(reason__in=("placed", "moved"))
    events = LeaseEvent.objects.filter(placed | Q(to_state=State.ACTIVE), lease__in=[lease.pk for lease in leases])
    for event in events.order_by("lease", "seq"):
        if event.reason in ("placed", "moved"):
            found.pop(event.lease_id, None)
        elif event.lease_id not in found and event.to_state != event.from_state:
            said = event.facts.get("ready_at")
            found[event.lease_id] = datetime.fromisoformat(said) if said else event.at
    return found
