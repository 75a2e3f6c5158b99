"""A running lease goes on with other devices: more, fewer, or elsewhere, under a new epoch and meter.

The new devices are held first, in one step with everything else: where any of them is not to be had, nothing has
changed and the lease runs on. Devices that it keeps go over to the new epoch; those that it gives up stay bound to the
old one until their host says that nothing is left there (`scheduler.giving_back`). The old segment ends at the second
of the act, and the next begins when every member of the new gang is ready: the seconds between are free.

On hosts that it was on, the new containers are wanted at once, since a host stops the old epoch before it starts the
new. Where a host is among them that it was not on, they wait until nothing of the old epoch can run any more
(`begin`), so that no two epochs ever run at the same time.
"""

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from django.conf import settings
from django.db import transaction

from agents import fence, workloads
from agents.models import Workload
from apikit.instants import instant as instant_text
from billing import metering
from leasing import actions, calendar, gpu_quota, means, promised_price, starting
from leasing.assigning import Assignment
from leasing.calendar import Seat
from leasing.grammar import Request
from leasing.models import Allocation, Lease, LeaseMember
from leasing.moves import WrongState, locked, move
from leasing.states import State
from tenants.models import Organization


def as_resized(lease: Lease, request: Request, *, at: datetime) -> Lease:
    """Return the lease, not saved, as it would ask for other GPUs; of its own kind and no more, at its own price.

    Whatever is more, or of another kind, is a new promise and costs what the price list says at `at`.
    """
    asked = Lease(**{field.attname: getattr(lease, field.attname) for field in Lease._meta.concrete_fields})
    asked.request, asked.request_options = str(request), request.to_json()
    asked.gpu_count = max(option.nodes * option.count for option in request.options)
    skus = {promised_price.sku(model=o.model or "", slice_name=o.slice) for o in request.options}
    if asked.gpu_count > lease.gpu_count or skus != {lease.sku}:
        asked.priced_at = at
    return asked


class ChangedMeanwhile(Exception):
    """The lease is not any more the version that this was decided for; nothing is written."""


@transaction.atomic
def resize(
    *, lease_id: UUID, version: int, request: Request, assignment: Assignment, at: datetime,
    last_good: datetime | None = None,
) -> Lease:  # fmt: skip
    """Give a running lease other GPUs, all or none of them, at the prices of the assignment.

    version: for which it was decided. Raises ChangedMeanwhile, WrongState, DevicesTaken, gpu_quota.QuotaExceeded,
    budgets.BudgetExceeded, holds.InsufficientFunds (the first minutes at the new price must be there); nothing has
    changed then.
    """
    organization, lease = _locked(lease_id, version)
    if "resize" not in actions.of(lease):
        raise WrongState(f"A lease that is {lease.state} and {lease.term_kind} keeps its size.", lease=lease)
    asked = as_resized(lease, request, at=at)
    more = len(assignment.seats) - lease.gpu_count
    if more > 0:
        gpu_quota.check(organization=organization, gpus=more)
    if assignment.micros_per_hour > (lease.price_micros_per_hour or 0):
        means.check_budgets(lease, at=at)
        means.check_funds(lease, micros_per_hour=assignment.micros_per_hour, at=at)
    elif more > 0:
        means.check_budgets(lease, at=at)
    before = lease.request
    lease.request, lease.request_options, lease.priced_at = asked.request, asked.request_options, asked.priced_at
    facts = {"before": before, "request": lease.request}
    return _rebind(lease, assignment, reason="resized", at=at, last_good=last_good, facts=facts)


@transaction.atomic
def move_away(
    *, lease_id: UUID, version: int, assignment: Assignment, at: datetime, last_good: datetime | None = None
) -> Lease:
    """Let a running lease go on with as many GPUs of the same kind, at the same price, on other hosts.

    version: for which it was decided. Raises ChangedMeanwhile, WrongState and DevicesTaken; nothing has changed then.
    """
    _, lease = _locked(lease_id, version)
    if "move" not in actions.of(lease):
        raise WrongState(f"A lease that is {lease.state} and {lease.term_kind} stays where it is.", lease=lease)
    return _rebind(lease, assignment, reason="moved", at=at, last_good=last_good, facts={})


def _locked(lease_id: UUID, version: int) -> tuple[Organization, Lease]:
    owner = Lease.objects.values_list("organization", flat=True).get(pk=lease_id)
    organization = Organization.objects.select_for_update(no_key=True).get(pk=owner)
    lease = locked(lease_id)
    if lease.version != version:
        raise ChangedMeanwhile(f"{lease.public_id} is version {lease.version}.")
    return organization, lease


def _rebind(
    lease: Lease, assignment: Assignment, *, reason: str, at: datetime, last_good: datetime | None,
    facts: dict[str, str],
) -> Lease:  # fmt: skip
    """Go over to the seats of the assignment. The caller holds the lock of a lease that is active."""
    old_hosts = set(lease.members.filter(epoch=lease.epoch).values_list("host_id", flat=True))
    lease.meter_seq += 1
    stopped_at = min(at, last_good) if last_good else at
    metering.stop(reference=lease.public_id, seq=lease.meter_seq, at=stopped_at, cause=reason)
    lease = move(lease, State.INTERRUPTED, at=at, reason=reason, last_good=instant_text(stopped_at))
    workloads.unwant(reference=lease.public_id, at=at, reason=reason)
    before = lease.epoch
    lease.epoch += 1 + lease.epochs_lost
    _hold_seats(lease, assignment.seats, before=before, at=at)
    LeaseMember.objects.bulk_create(
        LeaseMember(
            lease=lease, epoch=lease.epoch, rank=rank, host_id=host_id, gpu_count=gpus,
            price_version_id=assignment.prices[rank][0], price_micros_per_hour=assignment.prices[rank][1],
        )
        for rank, host_id, gpus in assignment.members()
    )  # fmt: skip
    lease.option_index, lease.sku = assignment.option_index, assignment.sku
    lease.gpu_count, lease.price_micros_per_hour = len(assignment.seats), assignment.micros_per_hour
    if {seat.host_id for seat in assignment.seats} <= old_hosts:
        starting.want_workloads(lease, at=at)
    return move(lease, State.PROVISIONING, at=at, reason=reason, **facts)


def _hold_seats(lease: Lease, seats: Sequence[Seat], *, before: int, at: datetime) -> None:
    """Let the present epoch hold the seats: what epoch `before` held goes over, the rest is bound. DevicesTaken."""
    held = {
        (row.device_id, (row.units.lower, row.units.upper), row.mode): row
        for row in calendar.live(lease_id=lease.pk) if row.epoch == before
    }  # fmt: skip
    fresh = []
    for seat in seats:
        kept = held.get((seat.device_id, seat.units, seat.mode))
        if kept is None:
            fresh.append(seat)
        else:
            Allocation.objects.filter(pk=kept.pk).update(epoch=lease.epoch, rank=seat.rank)
    if calendar.in_the_way(units=[(seat.device_id, seat.units) for seat in fresh], at=at):
        raise calendar.DevicesTaken("One of the devices is not given back yet by who had it before.")
    during = calendar.range_until(start=at, end_at=lease.end_at, stop_grace_s=settings.WORKLOAD_STOP_GRACE_S)
    calendar.bind(
        seats=fresh, organization_id=lease.organization_id, during=during, lease=lease, epoch=lease.epoch
    )  # fmt: skip


@transaction.atomic
def begin(*, lease_id: UUID, at: datetime) -> bool:
    """Want the containers of an epoch that waited for the one before; True once it was done. Idempotent."""
    lease = locked(lease_id)
    mine = Workload.objects.filter(reference=lease.public_id)
    if lease.state != State.PROVISIONING or mine.filter(epoch=lease.epoch).exists():
        return False
    running = mine.filter(gone_at__isnull=True).select_related("host")
    safe = [fence.safe_at(workload) for workload in running]
    if any(moment is None or moment > at for moment in safe):
        return False
    starting.want_workloads(lease, at=at)
    return True
