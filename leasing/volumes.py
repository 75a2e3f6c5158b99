"""Named volumes: made, given to leases, charged, deleted. What befalls them by themselves is in `volume_keeping`.

A volume is charged by GiB and hour at the price of its creation, from the second in which the first lease with it is
ready until it is deleted; STORAGE_RESERVE_DAYS of that are held from the start (`billing.reserves`). Locks: the
organization, leases, volumes, then wallets and hosts. What a lease may do with a volume it has stands in the lease.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import transaction

from agents import volumes as on_hosts
from agents import workloads
from agents.models import Host
from apikit.errors import DomainError, InvalidInput
from audit import ids, log
from billing import commission, metering, price_list, reserves
from billing.models import PriceVersion
from leasing import catalogue_view
from leasing.models import Lease, LeaseMember
from leasing.moves import WrongState
from leasing.volume_models import Volume
from leasing.volume_wishes import VolumeWish, prices, refuse_if_in_use
from outbox import messages
from tenants import organizations
from tenants.models import Organization

State = Volume.State
DAY_S = 86_400
MIB_PER_GIB = 1024
EVENTS = {
    State.READY: "volume.ready", State.EXPIRING: "volume.expiring", State.UNREACHABLE: "volume.unreachable",
    State.LOST: "volume.lost", State.DELETED: "volume.deleted",
}  # fmt: skip


class TooManyVolumes(DomainError):
    slug = "volume-quota-exceeded"
    title = "The organization has as many volumes as it may"


@transaction.atomic
def create(
    *, organization_id: UUID, name: str, size_gib: int, region: str | None, at: datetime, actor: str,
    request_id: str = "",
) -> Volume:  # fmt: skip
    """Make a volume that the first lease with it binds to a host. region: where that must be.

    Raises InvalidInput (the name is taken, the region is unknown or sells no storage), TooManyVolumes,
    holds.InsufficientFunds for its reserve, organizations.Banned.
    """
    organization = Organization.objects.select_for_update(no_key=True).get(pk=organization_id)
    organizations.refuse_banned(organization)
    currency = _currency_of(organization, region)
    if Volume.objects.filter(organization=organization, name=name, state__in=Volume.LIVE).exists():
        raise _invalid("/name", "Another volume has this name.")
    volume = _made(organization, name=name, size_gib=size_gib, region=region or "", currency=currency, by=actor, at=at)
    log.record(
        actor=actor, organization=organization.pk, action="volume.created", target=volume.public_id,
        after={"name": name, "size_gib": size_gib, "region": region or ""}, request_id=request_id, at=at,
    )  # fmt: skip
    return volume


def _currency_of(organization: Organization, region: str | None) -> str:
    if region is None:
        return organization.currency
    known = catalogue_view.current().currency_of_region
    if region not in known:
        raise _invalid("/region", f"No such region; there are {', '.join(known)}.")
    return known[region]


def _made(
    organization: Organization, *, name: str, size_gib: int, region: str, currency: str, by: str, at: datetime,
    for_lease: bool = False,
) -> Volume:  # fmt: skip
    """Write a volume and hold its reserve, at the highest price that it may come to."""
    refuse_if_too_many(organization)
    sold = {slug: row for slug, row in prices(currency=currency, at=at).items() if region in ("", slug)}
    if not sold:
        where = region or f"any region that is paid in {currency}"
        raise _invalid("/region", f"No storage is sold in {where}.")
    volume = Volume(
        organization=organization, name=name, size_gib=size_gib, region=region, currency=currency, state_since=at,
        simulated=currency == settings.SIMULATED_CURRENCY, created_at=at, created_by=by[:60], made_for_lease=for_lease,
        price_micros_per_hour=max(row.price_micros_per_hour for row in sold.values()),
    )  # fmt: skip
    volume.place = f"gy-{volume.public_id}"
    volume.save(force_insert=True)
    keep_reserve(volume, at=at)
    return volume


def refuse_if_too_many(organization: Organization) -> None:
    most = settings.VOLUMES_PER_ORGANIZATION
    if Volume.objects.filter(organization=organization, state__in=Volume.LIVE).count() >= most:
        raise TooManyVolumes(f"At most {most} volumes; delete one first.", limit=most)


def keep_reserve(volume: Volume, *, at: datetime) -> None:
    """Hold so many days of its storage. Raises holds.InsufficientFunds."""
    reserves.keep(
        reference=volume.public_id, owner=volume.organization_id, currency=volume.currency,
        rate_micros_per_hour=rate(volume), for_s=settings.STORAGE_RESERVE_DAYS * DAY_S, at=at,
    )  # fmt: skip


def rate(volume: Volume) -> int:
    """Return what all of it costs for an hour, in micro-units."""
    return volume.price_micros_per_hour * volume.size_gib


# A lease and its volumes


def plan(wishes: Sequence[VolumeWish]) -> list[dict[str, Any]]:
    """Return the wishes as a draft of a lease says them: what is to be made has no id yet."""
    return [
        {
            "name": wish.name, "path": wish.path, "size_gib": wish.size_gib,
            "volume": ids.encode("volume", wish.volume_id) if wish.volume_id else None,
        }
        for wish in wishes
    ]  # fmt: skip


def take(organization: Organization, wishes: Sequence[VolumeWish], *, lease: Lease, at: datetime) -> list[Volume]:
    """Return the volumes for a lease that is being made, locked; what is missing is made. The organization is locked.

    Raises VolumeInUse, InvalidInput if one went meanwhile, holds.InsufficientFunds.
    """
    found = []
    for index, wish in enumerate(wishes):
        mine = Volume.objects.select_for_update(of=("self",)).select_related("lease")
        row = mine.filter(organization=organization, name=wish.name, state__in=Volume.LIVE).first()
        if row is None and wish.volume_id is not None:
            raise _invalid(f"/volumes/{index}/name", "It has been deleted.")
        if row is not None:
            refuse_if_in_use(row)
        found.append(
            row
            or _made(
                organization, name=wish.name, size_gib=wish.size_gib, region="", currency=lease.currency,
                by=lease.created_by, at=at, for_lease=True,
            )
        )  # fmt: skip
    lease.volumes = [
        {
            "volume": row.public_id, "name": row.name, "path": wish.path, "place": row.place, "size_gib": row.size_gib,
        }
        for row, wish in zip(found, wishes, strict=True)
    ]  # fmt: skip
    return found


def give(taken: Sequence[Volume], *, lease: Lease) -> None:
    """Write down whose they are now, once the lease's row is there."""
    if not taken:
        return
    Volume.objects.filter(pk__in=[row.pk for row in taken]).update(lease=lease)


def of_lease(lease: Lease) -> list[Volume]:
    """Return the volumes that the lease has, locked."""
    rows = Volume.objects.select_for_update(no_key=True, of=("self",)).filter(lease=lease)
    return list(rows.select_related("organization", "host").order_by("pk"))


def bind(lease: Lease, *, host_id: UUID, at: datetime) -> None:
    """The lease was placed: what was never mounted yet is to be made on its host. Raises WrongState elsewhere."""
    host = Host.objects.select_related("zone__region").get(pk=host_id)
    for volume in of_lease(lease):
        if volume.made_at is not None:
            if volume.host_id != host_id:
                raise WrongState(f"Its volume {volume.name} is on another host.", lease=lease)
            continue
        if volume.host_id not in (None, host_id):
            on_hosts.drop(reference=volume.public_id, but_host=host_id, at=at)
        on_hosts.want(
            host_id=host_id, reference=volume.public_id, place=volume.place,
            size_mib=volume.size_gib * MIB_PER_GIB, at=at,
        )  # fmt: skip
        _price(volume, host, at=at)
        volume.host = host
        volume.save(update_fields=["host", "price_version_id", "price_micros_per_hour"])


def _price(volume: Volume, host: Host, *, at: datetime) -> None:
    """Freeze the price of the host's region as of the volume's creation; its reserve is never more than was held."""
    region = host.zone.region.slug
    version = prices(currency=volume.currency, at=volume.created_at).get(region)
    version = version or prices(currency=volume.currency, at=at).get(region)
    if version is None:
        raise price_list.NotForSale(f"No storage is sold in {region}.", sku="storage", region=region)
    volume.price_version_id, volume.price_micros_per_hour = version.pk, version.price_micros_per_hour
    reserves.lower(reference=volume.public_id, rate_micros_per_hour=rate(volume), at=at)


def mounted(lease: Lease, *, at: datetime) -> None:
    """Every member was seen ready at `at`: what it mounts for the first time is there, and charged from then on."""
    for volume in of_lease(lease):
        if volume.made_at is None:
            volume.made_at = at
            start_meter(volume, at=at)
            enter(volume, State.READY, at=at)


def let_go(lease: Lease, *, at: datetime) -> None:
    """The lease is over and nothing of it runs: its volumes are free. What it never came to use is as it was before."""
    for volume in of_lease(lease):
        volume.lease = None
        if volume.made_at is None:
            on_hosts.drop(reference=volume.public_id, at=at)
            volume.host = None
            if volume.made_for_lease:
                over(volume, State.DELETED, reason="never_used", at=at)
                continue
        volume.version += 1
        volume.save(update_fields=["lease", "host", "version"])


@transaction.atomic
def delete(*, volume_id: UUID, at: datetime, actor: str, request_id: str = "") -> Volume:
    """Have a volume destroyed; it is charged until now. Idempotent. Raises VolumeInUse while a lease has it."""
    owner = Volume.objects.values_list("organization", flat=True).get(pk=volume_id)
    Organization.objects.select_for_update(no_key=True).get(pk=owner)
    volume = locked(volume_id)
    if volume.state not in Volume.LIVE:
        return volume
    refuse_if_in_use(volume)
    destroy(volume, reason="tenant", at=at)
    log.record(
        actor=actor, organization=owner, action="volume.deleted", target=volume.public_id,
        before={"name": volume.name, "size_gib": volume.size_gib}, request_id=request_id, at=at,
    )  # fmt: skip
    return volume


# What happens to one volume; the caller holds its lock


def locked(volume_id: UUID) -> Volume:
    rows = Volume.objects.select_for_update(no_key=True, of=("self",))
    return rows.select_related("organization", "host__zone__region", "lease").get(pk=volume_id)


def start_meter(volume: Volume, *, at: datetime) -> None:
    host = volume.host
    assert host is not None  # it is bound: `bind` set both
    assert volume.price_version_id is not None
    volume.meter_seq, volume.metered = volume.meter_seq + 1, True
    metering.start(
        payer=volume.organization_id, payee=host.owner_id, currency=volume.currency, reference=volume.public_id,
        member=0, use="storage", price_version_id=volume.price_version_id, quantity=volume.size_gib,
        commission_bp=commission.rate_bp(
            owner=host.owner_id, currency=volume.currency, host_class=host.tier, at=at
        ),
        labels={"volume": volume.name}, seq=volume.meter_seq, at=at, simulated=volume.simulated,
    )  # fmt: skip


def stop_meter(volume: Volume, *, stopped_at: datetime, at: datetime, cause: str) -> None:
    """End what is charged at `stopped_at`. A reserve that is drawn on has freed first what is posted by this."""
    if volume.metered:
        reserves.draw(reference=volume.public_id, at=at)
        volume.meter_seq, volume.metered = volume.meter_seq + 1, False
        metering.stop(
            reference=volume.public_id, seq=volume.meter_seq, at=min(stopped_at, at), cause=cause, received_at=at
        )


def enter(volume: Volume, state: str, *, at: datetime, reason: str = "", **facts: Any) -> None:
    """Change its state, and tell its organization; the row is saved whole."""
    volume.state, volume.state_since, volume.version = state, at, volume.version + 1
    volume.save()
    if state in EVENTS:
        tell(volume, EVENTS[State(state)], at=at, **({"reason": reason} if reason else {}), **facts)


def tell(volume: Volume, topic: str, *, at: datetime, **facts: Any) -> None:
    payload = {"id": volume.public_id, "version": volume.version, "name": volume.name, **facts}
    messages.post(
        topic=topic, key=f"{topic}:{volume.public_id}:{volume.version}", payload=payload,
        organization_id=volume.organization_id, at=at,
    )  # fmt: skip


def destroy(volume: Volume, *, reason: str, at: datetime) -> None:
    """Order its removal; it is over once no host has it any more."""
    stopped_at = at
    if volume.host is not None and volume.metered:
        stopped_at = at if volume.state != State.UNREACHABLE else volume.host.last_heard_at or at
    settle(volume, stopped_at=stopped_at, at=at, cause=reason)
    on_hosts.drop(reference=volume.public_id, at=at)
    forget_scratch(volume)
    volume.ended_reason, volume.destroy_at = reason, None
    if on_hosts.is_there(volume.public_id):
        enter(volume, State.DELETING, at=at, reason=reason)
    else:
        over(volume, State.DELETED, reason=reason, at=at)


def forget_scratch(volume: Volume) -> None:
    """What was the scratch of a lease is kept for nobody any more, once the last of its members' is over."""
    mine = Volume.objects.filter(kept_from=volume.kept_from, state__in=Volume.LIVE).exclude(pk=volume.pk)
    if volume.kept_from and not mine.exists():
        workloads.drop_scratch(reference=volume.kept_from)


def settle(volume: Volume, *, stopped_at: datetime, at: datetime, cause: str) -> None:
    """Charge it up to `stopped_at` for good, and give back what was held."""
    stop_meter(volume, stopped_at=stopped_at, at=at, cause=cause)
    if volume.meter_seq:
        metering.finish(reference=volume.public_id, at=at, ended_by=cause)
    reserves.release(reference=volume.public_id, at=at)


def over(volume: Volume, state: str, *, reason: str, at: datetime) -> None:
    """It is not there any more."""
    reserves.release(reference=volume.public_id, at=at)
    volume.ended_at, volume.ended_reason, volume.lease, volume.destroy_at = at, reason, None, None
    enter(volume, state, at=at, reason=reason)


def bind_placed(leases: Iterable[Lease], *, at: datetime) -> None:
    """Bind the volumes of the leases that were just placed; most have none."""
    for lease in leases:
        if lease.volumes:
            hosts = LeaseMember.objects.filter(lease=lease, epoch=lease.epoch).values_list("host", flat=True)
            bind(lease, host_id=hosts[0], at=at)


def where(lease: Lease) -> tuple[set[UUID], int]:
    """Return the hosts on which a lease's volumes are (one, if any), and how many MiB are still to be made."""
    if not lease.volumes:
        return set(), 0
    known = [pk for each in lease.volumes if each["volume"] and (pk := ids.decode("volume", each["volume"]))]
    there = Volume.objects.filter(pk__in=known, made_at__isnull=False)
    hosts = dict(there.values_list("pk", "host"))
    new = [each for each in lease.volumes if ids.decode("volume", each["volume"] or "") not in hosts]
    return {pk for pk in hosts.values() if pk}, sum(each["size_gib"] for each in new) * MIB_PER_GIB


def price_version(volume: Volume) -> PriceVersion | None:
    return PriceVersion.objects.filter(pk=volume.price_version_id).first() if volume.price_version_id else None


def _invalid(pointer: str, detail: str) -> InvalidInput:
    return InvalidInput(detail, errors=[{"pointer": pointer, "code": "bad_value", "detail": detail}])
