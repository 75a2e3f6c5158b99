"""What is on the scratch of a lease that ends for lack of money is kept, as a volume that a new lease may mount.

Its reserve is taken before the wallet is empty: within AHEAD_S of that, for what is on the scratch by then, and only
where at least as much is left to run on. So a lease that cannot afford it ends as late as it can, and its scratch with
it. Money that comes in gives the reserve back. A loop does this (`reserve`); the end itself calls `keep`.
"""

import logging
from collections.abc import Iterable
from datetime import datetime
from itertools import count
from uuid import UUID

from django.conf import settings
from django.db import IntegrityError, transaction

from agents import volumes as on_hosts
from agents.models import Workload
from agents.protocol import scratch_place
from apikit.instants import instant
from audit import ids
from billing import holds, reserves, wallets
from billing.models import PriceVersion, Reserve
from leasing import volumes
from leasing.models import Lease
from leasing.moves import locked
from leasing.states import State as LeaseState
from leasing.volume_models import Volume
from leasing.volume_wishes import prices

log = logging.getLogger(__name__)
State = Volume.State
AHEAD_S = 24 * 3600  # when its organization is warned first
BACK_S = 26 * 3600
RUNS = (LeaseState.ACTIVE, LeaseState.PARKED)  # what burns money


def reserve(*, at: datetime) -> int:
    """Take reserves for the leases whose money is near its end, give back those of others; return how many changed."""
    near = reserves.used_up(at=at, within_s=AHEAD_S)
    far = reserves.used_up(at=at, within_s=BACK_S)
    changed = 0
    for kept in Reserve.objects.filter(reference__startswith="lease_", full_micros__gt=0).select_related("account"):
        pk = ids.decode("lease", kept.reference.partition(":")[0])
        lease = Lease.objects.filter(pk=pk).first() if pk else None
        if lease is None or lease.state not in RUNS or (kept.account.owner, kept.account.currency) not in far:
            reserves.release(reference=kept.reference, at=at)
            changed += 1
    organizations = {owner for owner, _ in near}
    running = Lease.objects.filter(organization__in=organizations, state__in=RUNS) if organizations else ()
    for lease in running:
        if (lease.organization_id, lease.currency) in near and not lease.is_bare:
            try:
                changed += _reserve_for(lease.pk, at=at)
            except Exception:  # the next look tries it again; the others must not wait for it
                log.exception("no reserve could be taken", extra={"lease": lease.public_id})
    return changed


@transaction.atomic
def _reserve_for(lease_id: UUID, *, at: datetime) -> int:
    lease, taken = locked(lease_id), 0
    if lease.state not in RUNS:
        return 0
    sold = prices(currency=lease.currency, at=at)
    for workload in _with_scratch(lease):
        price = sold.get(workload.host.zone.region.slug)
        rate = price.price_micros_per_hour * _gib(workload) if price else 0
        cost = rate * settings.STORAGE_RESERVE_DAYS * 24
        known = reserves.of(_name(workload))
        more = cost - (known.held_micros if known else 0)
        available = wallets.balance(owner=lease.organization_id, currency=lease.currency, at=at).available_micros
        if cost == 0 or more <= 0 or 2 * more > available:
            continue
        try:
            with transaction.atomic():
                reserves.release(reference=_name(workload), at=at)
                reserves.keep(
                    reference=_name(workload), owner=lease.organization_id, currency=lease.currency,
                    rate_micros_per_hour=rate, for_s=settings.STORAGE_RESERVE_DAYS * volumes.DAY_S, at=at,
                )  # fmt: skip
                taken += 1
        except holds.InsufficientFunds:
            continue
    return taken


def may_keep(lease: Lease) -> bool:
    """Return whether something is held for the scratch of the lease."""
    return Reserve.objects.filter(reference__startswith=f"{lease.public_id}:", held_micros__gt=0).exists()


def keep(lease: Lease, *, at: datetime) -> list[Volume]:
    """Make volumes of the scratch for which a reserve is held. The caller has the lease's lock, its meters stand."""
    kept = []
    sold = prices(currency=lease.currency, at=at)
    for workload in _with_scratch(lease):
        price, held = sold.get(workload.host.zone.region.slug), reserves.of(_name(workload))
        if price is not None and held is not None and held.held_micros:
            kept.append(_kept(lease, workload, price, at=at))
    return kept


def _kept(lease: Lease, workload: Workload, price: PriceVersion, *, at: datetime) -> Volume:
    volume = Volume(
        organization=lease.organization, size_gib=_gib(workload), region=workload.host.zone.region.slug,
        currency=lease.currency, simulated=lease.simulated, state=State.READY, state_since=at, host=workload.host,
        place=scratch_place(lease.public_id, workload.member), kept_from=lease.public_id, made_at=at, created_at=at,
        price_version_id=price.pk, price_micros_per_hour=price.price_micros_per_hour, created_by="system:leasing",
    )  # fmt: skip
    _save_by_a_free_name(volume, lease.public_id.replace("_", "-") + (f"-{workload.member}" if workload.member else ""))
    reserves.hand_over(
        reference=_name(workload), to=volume.public_id, rate_micros_per_hour=volumes.rate(volume),
        for_s=settings.STORAGE_RESERVE_DAYS * volumes.DAY_S, at=at,
    )  # fmt: skip
    volumes.start_meter(volume, at=at)
    on_hosts.want(
        host_id=workload.host_id, reference=volume.public_id, place=volume.place,
        size_mib=volume.size_gib * volumes.MIB_PER_GIB, at=at,
    )  # fmt: skip
    if (lease.organization_id, lease.currency) in reserves.used_up(at=at):
        reserves.begin_drawing(reference=volume.public_id, since=at, at=at)
        reserve_now = reserves.of(volume.public_id)
        volume.destroy_at = reserves.ends_at(reserve_now) if reserve_now else at
        ends = instant(volume.destroy_at or at)
        volumes.enter(volume, State.EXPIRING, at=at, destroy_at=ends, kept_from=lease.public_id)
    else:
        volumes.enter(volume, State.READY, at=at, kept_from=lease.public_id)
    return volume


def _save_by_a_free_name(volume: Volume, name: str) -> None:
    """Save it by this name, or by one with a number where its organization has given that to another volume.

    The end of a lease that nobody pays for must not fail on a name; and who makes a volume waits for no lease.
    """
    mine = Volume.objects.filter(organization=volume.organization, state__in=Volume.LIVE)
    for number in count(1):
        volume.name = f"{name}-{number}" if number > 1 else name
        if mine.filter(name=volume.name).exists():
            continue
        try:
            with transaction.atomic():
                volume.save(force_insert=True)
            return
        except IntegrityError:
            if not mine.filter(name=volume.name).exists():  # it is not the name, which somebody has taken meanwhile
                raise


def is_kept(lease: Lease) -> bool:
    """Return whether some of its scratch is a volume now, and is to stay where it is."""
    return Volume.objects.filter(kept_from=lease.public_id, state__in=Volume.LIVE).exists()


def _with_scratch(lease: Lease) -> Iterable[Workload]:
    rows = Workload.objects.filter(
        reference=lease.public_id, epoch=lease.epoch, kind=Workload.Kind.CONTAINER, scratch_mib__gt=0
    )
    return rows.select_related("host__zone__region").order_by("member")


def _gib(workload: Workload) -> int:
    """Return its size: what its host says is on it, but no more than the disk that the lease had. Owners earn by it."""
    most = workload.spec.get("disk_mib") or workload.host.disk_mib
    return -(-min(workload.scratch_mib or 0, most) // volumes.MIB_PER_GIB)


def _name(workload: Workload) -> str:
    return f"{workload.reference}:{workload.member}"
