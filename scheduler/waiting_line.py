"""Who waits, in the order of service: the same for the placer, for plans, and for the place that a tenant is shown."""

from collections.abc import Iterable
from datetime import datetime

from django.db.models import Q

from leasing.models import Lease
from leasing.states import State
from scheduler import fair_share
from scheduler.queue_order import Waiting, in_order


def queue(*, at: datetime, known: Iterable[Lease] = ()) -> list[Lease]:
    """Return the leases that wait, in order. Not those whose end has come meanwhile: the converger ends them.

    known: leases as they were read a moment ago; those that are still of that version are not read again.
    """
    waiting = Lease.objects.filter(Q(end_at=None) | Q(end_at__gt=at), state=State.PENDING)
    read = {(lease.pk, lease.version): lease for lease in known}
    if not read:
        return ordered(waiting, at=at)
    now = list(waiting.values_list("pk", "version"))
    fresh = Lease.objects.filter(state=State.PENDING).in_bulk([pk for pk, version in now if (pk, version) not in read])
    still = [read.get((pk, version)) or fresh.get(pk) for pk, version in now]
    return ordered([lease for lease in still if lease is not None], at=at)


def ordered(leases: Iterable[Lease], *, at: datetime) -> list[Lease]:
    """Return leases (or drafts of them) in the order of service at `at`."""
    rows = {lease.pk: lease for lease in leases}
    shares = fair_share.shares({(lease.organization_id, lease.currency) for lease in rows.values()}, at=at)
    waiting = (
        Waiting(
            key=lease.pk,
            organization=lease.organization_id,
            currency=lease.currency,
            term=str(lease.term_kind),
            requested_ms=int(lease.requested_at.timestamp() * 1000),
            hour_micros=fair_share.hour_micros(lease),
        )
        for lease in rows.values()
    )
    return [rows[row.key] for row in in_order(waiting, shares, now_ms=int(at.timestamp() * 1000))]
