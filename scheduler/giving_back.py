"""Devices go back to the pool: only when their lease has moved on, and their host says that nothing of it is left."""

from datetime import datetime
from uuid import UUID

from django.db import transaction
from django.db.models import F, Q

from agents.models import Workload
from leasing import calendar, parking
from leasing.models import Allocation, Lease
from leasing.states import State
from scheduler import pool as pools


def release_devices(*, at: datetime) -> int:
    """Let the devices again whose lease has moved on and whose host says that nothing is left; return how many."""
    over = (
        Allocation.objects.filter(released_at__isnull=True, lease__isnull=False)
        .filter(
            ~Q(epoch=F("lease__epoch"))
            | Q(lease__state__in=[State.PENDING, State.ENDED])
            | Q(lease__state=State.PARKED, lease__parked_keep=parking.QUEUE)
        )
        .exclude(epoch=calendar.HELD_EPOCH)  # nothing of it is there yet
        .select_related("lease", "device")
    )
    held = {(row.lease.public_id, row.lease.pk, row.epoch, row.rank, row.device.host_id) for row in over if row.lease}
    released = 0
    freed: set[UUID] = set()
    for reference, lease_id, epoch, rank, host_id in sorted(held, key=str):
        if _is_gone(reference, epoch=epoch, host_id=host_id):
            of_it = Q(lease=lease_id, epoch=epoch, rank=rank, device__host=host_id)
            with transaction.atomic():
                freed |= set(Allocation.objects.filter(of_it, released_at=None).values_list("device_id", flat=True))
                released += calendar.release(at=at, of=of_it)
    _look_at_next(freed, at=at)
    return released


def _look_at_next(freed: set[UUID], *, at: datetime) -> None:
    """Have the leases looked at now that are scheduled behind those that have left: they may begin sooner."""
    if freed:
        behind = Allocation.objects.filter(device__in=freed, released_at=None, lease__state=State.SCHEDULED)
        Lease.objects.filter(pk__in=behind.values("lease"), check_at__gt=at).update(check_at=at)


def _is_gone(reference: str, *, epoch: int, host_id: UUID) -> bool:
    # Its containers of earlier epochs too: a restart keeps the devices. None at all: it was given up before it began.
    on_them = Workload.objects.filter(reference=reference, epoch__lte=epoch, host_id=host_id)
    return not on_them.filter(gone_at=None).exists()


def drifted_devices(*, at: datetime) -> set[UUID]:
    """Return devices whose calendar still holds them though their promised end is past: for the operator's page."""
    late = Allocation.objects.filter(released_at__isnull=True, during__endswith__lte=at)
    return pools.busy_devices(late.values_list("device_id", flat=True), at=at)
