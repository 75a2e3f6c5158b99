"""Parking a lease and taking it up again, and restarting it in place: stop never means losing the GPU unasked.

`hold` keeps the devices, for the hold fee of the price list; `queue` gives them up and costs nothing, and resuming
waits for the same kind again. A restart keeps the devices too: a new epoch on the same hosts, which stop the old one
first.
"""

from datetime import datetime
from uuid import UUID

from django.conf import settings
from django.db import transaction

from agents import workloads
from apikit.errors import DomainError
from billing import metering, price_list
from leasing import calendar, means, promised_price, starting
from leasing.models import Allocation, Lease, LeaseMember
from leasing.moves import WrongState, locked, move, record
from leasing.states import State

HOLD, QUEUE = "hold", "queue"


class NoHoldPrice(DomainError):
    slug = "not-for-sale"
    title = "These GPUs are not kept for parked leases"
    status = 422


@transaction.atomic
def park(*, lease_id: UUID, keep: str, at: datetime, last_good: datetime | None = None) -> Lease:
    """Stop a running lease and keep its GPUs (`hold`), or only its wish for them (`queue`). Idempotent.

    The meter stops at `at`, or at `last_good` if its host was not heard later. Raises WrongState, NoHoldPrice.
    """
    lease = locked(lease_id)
    if lease.state == State.PARKED:
        return lease
    if lease.state != State.ACTIVE:
        raise WrongState(f"A lease that is {lease.state} cannot be parked.", lease=lease)
    if lease.is_bare:
        raise WrongState("A whole machine cannot be parked: it is wiped when it is given back.", lease=lease)
    stopped_at = min(at, last_good) if last_good else at
    lease.meter_seq += 1
    metering.stop(reference=lease.public_id, seq=lease.meter_seq, at=stopped_at, cause="parked")
    workloads.unwant(reference=lease.public_id, at=at, reason="parked", keeps_scratch=keep == HOLD)
    lease.parked_keep = keep
    if keep == QUEUE:
        lease.leaves_at = None  # it has left
    if keep == HOLD:
        lease.meter_seq += 1
        _start_hold_meters(lease, at=at)
    return move(lease, State.PARKED, at=at, reason=f"parked_{keep}")


def _start_hold_meters(lease: Lease, *, at: datetime) -> None:
    for member in lease.members.filter(epoch=lease.epoch).select_related("host__zone__region"):
        series = promised_price.series(
            sku=lease.sku, region=member.host.zone.region.slug, tier=member.host.tier, term=lease.price_term,
            use="hold", currency=lease.currency,
        )  # fmt: skip
        try:
            version = price_list.version_at(series=series, at=lease.priced_at)
        except price_list.NotForSale:
            raise NoHoldPrice(f"There is no price for holding {lease.sku}; park it with keep: queue.") from None
        starting.start_meter(lease, member, use="hold", price_version_id=version.pk, at=at)


@transaction.atomic
def lose_hold(*, lease_id: UUID, last_good: datetime, at: datetime, reason: str, detail: str = "") -> Lease:
    """What it held is lost: the fee stops at `last_good`, and resuming goes through the queue. Idempotent."""
    lease = locked(lease_id)
    if lease.state != State.PARKED or lease.parked_keep != HOLD:
        return lease
    lease.meter_seq += 1
    metering.stop(reference=lease.public_id, seq=lease.meter_seq, at=min(last_good, at), cause=reason, received_at=at)
    workloads.drop_scratch(reference=lease.public_id)
    lease.parked_keep, lease.leaves_at, lease.version = QUEUE, None, lease.version + 1
    lease.save(update_fields=["parked_keep", "leaves_at", "version", "meter_seq"])
    record(lease, to=State.PARKED, came_from=State.PARKED, reason=reason, at=at, detail=detail)
    return lease


@transaction.atomic
def resume(*, lease_id: UUID, at: datetime) -> Lease:
    """Start a parked lease again: at once on the devices it held, or through the queue. Idempotent.

    It is a start like the first one: raises budgets.BudgetExceeded, and holds.InsufficientFunds where its first minutes
    are not in the wallet. Who gave his devices up pays what the list says by now (docs/decisions/0008).
    """
    lease = locked(lease_id)
    if lease.state in {State.PENDING, State.PROVISIONING, State.ACTIVE}:
        return lease
    if lease.state != State.PARKED:
        raise WrongState(f"A lease that is {lease.state} is not parked.", lease=lease)
    means.check_budgets(lease, at=at)
    lease.priced_at = priced_at_when_resumed(lease, at=at)
    held = lease.parked_keep == HOLD
    per_hour = lease.price_micros_per_hour or 0 if held else means.dearest_micros(lease)
    means.check_funds(lease, micros_per_hour=per_hour, at=at)
    keep, lease.parked_keep = lease.parked_keep, ""
    if keep == QUEUE:
        return move(lease, State.PENDING, at=at, reason="resumed")
    lease.meter_seq += 1
    metering.stop(reference=lease.public_id, seq=lease.meter_seq, at=at, cause="resumed")
    _next_epoch_in_place(lease, at=at)
    return move(lease, State.PROVISIONING, at=at, reason="resumed")


def priced_at_when_resumed(lease: Lease, *, at: datetime) -> datetime:
    """Return as of when a parked lease is priced if it resumes: a promise ends where its tenant gave his devices up.

    It holds where he kept them and paid for it, also if they were lost then, and for a reserved lease to its end.
    """
    parked = lease.events.filter(to_state=State.PARKED).order_by("-seq").first()
    gave_up = parked is not None and parked.reason == f"parked_{QUEUE}"
    return at if gave_up and lease.term_kind != Lease.TermKind.RESERVED else lease.priced_at


@transaction.atomic
def restart(*, lease_id: UUID, at: datetime, last_good: datetime | None = None, reason: str = "restart") -> Lease:
    """Start the containers of a running lease anew where they are; the seconds between are free."""
    lease = locked(lease_id)
    if lease.state != State.ACTIVE:
        raise WrongState(f"A lease that is {lease.state} has nothing to restart.", lease=lease)
    if lease.is_bare:
        raise WrongState("A whole machine is restarted by its tenant.", lease=lease)
    lease.meter_seq += 1
    stopped_at = min(at, last_good) if last_good else at
    metering.stop(reference=lease.public_id, seq=lease.meter_seq, at=stopped_at, cause=reason)
    lease = move(lease, State.INTERRUPTED, at=at, reason=reason)
    workloads.unwant(reference=lease.public_id, at=at, reason=reason)
    _next_epoch_in_place(lease, at=at)
    return move(lease, State.PROVISIONING, at=at, reason=reason)


@transaction.atomic
def start_anew(*, lease_id: UUID, at: datetime, reason: str) -> Lease:
    """Start the containers of an interrupted lease anew where they were, its hosts being back. Idempotent."""
    lease = locked(lease_id)
    if lease.state != State.INTERRUPTED:
        return lease
    workloads.unwant(reference=lease.public_id, at=at, reason=reason)
    _next_epoch_in_place(lease, at=at)
    return move(lease, State.PROVISIONING, at=at, reason=reason)


def _next_epoch_in_place(lease: Lease, *, at: datetime) -> None:
    """Give the same devices to a new epoch and ask their hosts for it."""
    members = list(lease.members.filter(epoch=lease.epoch))
    held = [row.pk for row in calendar.live(lease_id=lease.pk) if row.epoch == lease.epoch]
    lease.epoch += 1
    Allocation.objects.filter(pk__in=held).update(epoch=lease.epoch)
    LeaseMember.objects.bulk_create(
        LeaseMember(
            lease=lease, epoch=lease.epoch, rank=member.rank, host_id=member.host_id, gpu_count=member.gpu_count,
            price_version_id=member.price_version_id, price_micros_per_hour=member.price_micros_per_hour,
        )
        for member in members
    )  # fmt: skip
    starting.want_workloads(lease, at=at)


def restarts_left(lease: Lease, *, at: datetime) -> int:
    """Return how often `on_exit: restart` may still restart it: three times in ten minutes."""
    recent = lease.events.filter(reason="on_exit", to_state=State.PROVISIONING, at__gt=at - settings.ON_EXIT_WINDOW)
    return int(settings.ON_EXIT_RESTARTS - recent.count())
