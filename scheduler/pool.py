"""The pool as the placement engine sees it: loaded from the database, and an overlay on which decisions are tried.

What is loaded: hosts that ever served, their devices, the calendar from now on, and prices in force. Nothing is trusted
from it: the calendar's exclusion constraint has the last word when a decision is written.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, NamedTuple, cast
from uuid import UUID

from django.db.models import Q

from agents import availability
from agents.models import Device, Host
from billing.models import PriceVersion
from catalogue.models import GpuModel
from leasing import promised_price
from leasing.calendar import Seat as CalendarSeat
from leasing.models import Allocation
from scheduler.placement import Ask, Busy, Decider, DeviceView, HostView, Placement, Refusal, units_mask
from scheduler.placement.snapshot import Mode

SERVING = (Host.State.ONLINE, Host.State.SUSPECT, Host.State.LOST, Host.State.QUARANTINED)
PriceKey = tuple[str, str, str]  # sku, region, tier


def seconds(moment: datetime) -> int:
    return int(moment.timestamp())


class DeviceRow(NamedTuple):
    """What of a device a decision needs; ten thousand of them are read in each load."""

    pk: UUID
    host_id: UUID
    model_id: UUID
    health: str
    health_reason: str
    cordoned: bool
    present: bool
    nvlink_clique: int | None
    mig: dict[str, Any] | None


@dataclass
class Pool:
    """Hosts by key, `host id/model`; `take` changes this overlay only."""

    hosts: dict[str, HostView]
    prices: dict[PriceKey, PriceVersion]
    capacity: dict[UUID, Host]
    decider: Decider = field(default_factory=Decider)

    def decide(self, ask: Ask, *, explain: bool = True) -> Placement | Refusal:
        """Place a request on the overlay, or say why not."""
        return self.decider.decide(self.views(), ask, explain=explain)

    def views(self) -> list[HostView]:
        return list(self.hosts.values())

    def keys_of(self, host_ids: Iterable[str]) -> frozenset[str]:
        """Return the keys of these hosts' views, one for each model on a host."""
        wanted = set(host_ids)
        return frozenset(key for key in self.hosts if key.split("/")[0] in wanted)

    def take(self, placement: Placement, *, organization: UUID, start_s: int, end_s: int | None) -> None:
        """Mark the placement's seats as held on the overlay, so that the next decision sees them."""
        for member in placement.members:
            host = self.hosts[str(member.host)]
            held: dict[str, list[Busy]] = defaultdict(list)
            for index, seat in enumerate(member.seats):
                # A member's CPU, memory and disk are counted once, on its first seat.
                share = (member.cpu_milli, member.ram_mib, member.disk_mib) if index == 0 else (0, 0, 0)
                mask = units_mask(seat.start, seat.stop)
                held[str(seat.device)].append(Busy(mask, seat.mode, str(organization), start_s, end_s, *share))
            devices = tuple(
                replace(device, busy=(*device.busy, *held[str(device.key)])) if str(device.key) in held else device
                for device in host.devices
            )
            self.hosts[str(member.host)] = replace(host, devices=devices)


def load(*, term: str, currency: str, at: datetime) -> Pool:
    """Return the pool as it is at `at`, with the prices of one term in one currency.

    A host that is as it was at the last load in this process is the same object again, so that what the decider
    remembers of it still holds.
    """
    kind, notice_s = promised_price.term_and_notice(term)
    prices = {
        (version.series.sku, version.series.region, version.series.tier): version
        for version in PriceVersion.objects.filter(
            series__currency=currency,
            series__term=kind,
            series__use="active",
            series__notice_s=notice_s,
            during__contains=at,
        ).select_related("series")
    }
    hosts = {
        host.pk: host
        for host in Host.objects.filter(state__in=SERVING, zone__region__currency=currency).select_related(
            "zone__region"
        )
    }
    models = {model.pk: model for model in GpuModel.objects.filter(devices__host__in=hosts).distinct()}
    calendar = _calendar(at)
    groups: dict[tuple[UUID, UUID], list[DeviceRow]] = defaultdict(list)
    for row in _devices(hosts):
        groups[row.host_id, row.model_id].append(row)
    last, decider = _last.get((term, currency), ({}, Decider()))
    views = {}
    for (host_id, model_id), rows in groups.items():
        key = f"{host_id}/{models[model_id].slug}"
        view = _host_view(key, hosts[host_id], models[model_id], rows, calendar, prices, at)
        before = last.get(key)
        views[key] = before if before == view else view
    _last[term, currency] = (views, decider)
    return Pool(hosts=dict(views), prices=prices, capacity=hosts, decider=decider)


# By term and currency: the views of the last load, and what was decided over them. Threads may share it, since what is
# remembered of a host counts only while that is the very same object.
_last: dict[tuple[str, str], tuple[dict[str, HostView], Decider]] = {}


def forget() -> None:
    """Drop what is remembered between loads."""
    _last.clear()


def _devices(hosts: Iterable[UUID]) -> Iterator[DeviceRow]:
    rows = Device.objects.filter(model__isnull=False, host__in=list(hosts)).order_by("host_id", "index")
    columns = ("pk", "host_id", "model_id", "health", "health_reason", "cordoned", "present", "nvlink_clique")
    return (DeviceRow(*row) for row in rows.values_list(*columns, "readings__mig"))


def _calendar(at: datetime) -> dict[UUID, list[Busy]]:
    lines: dict[UUID, list[Busy]] = defaultdict(list)
    rows = (
        Allocation.objects.filter(released_at__isnull=True)
        .order_by("pk")
        .values_list("device_id", "units", "mode", "organization_id", "during")
    )
    for device_id, units, mode, organization_id, during in rows:
        if during.isempty:
            continue
        end = during.upper
        # What is not released is not free, however long its promised end is past: its host has not said "gone".
        end_s = None if end is None or end <= at else seconds(end)
        mask = units_mask(units.lower, units.upper)
        lines[device_id].append(Busy(mask, cast("Mode", mode), str(organization_id), seconds(during.lower), end_s))
    return lines


def _host_view(
    key: str,
    host: Host,
    model: GpuModel,
    devices: list[DeviceRow],
    calendar: dict[UUID, list[Busy]],
    prices: dict[PriceKey, PriceVersion],
    at: datetime,
) -> HostView:
    region = host.zone.region.slug

    def price(sku: str) -> int | None:
        version = prices.get((sku, region, host.tier))
        # An owner's floor withholds his host from leases that pay less; it never makes a price.
        if version is None or version.price_micros_per_hour < host.price_floor_micros:
            return None
        return version.price_micros_per_hour

    in_hours = availability.is_open(windows=host.hours, time_zone=host.hours_time_zone, at=at)
    slices = {
        name: found for name in [*model.fractions, *model.mig_profiles] if (found := price(f"{model.slug}/{name}"))
    }
    return HostView(
        key=key,
        region=region,
        zone=host.zone.slug,
        fabric=host.fabric,
        model=model.slug,
        memory_gib=model.memory_gib or 0,
        vendor=model.vendor,
        compute_capability=model.compute_capability,
        driver_version=host.driver_version,
        cuda_version=host.cuda_version,
        devices=tuple(_device_view(device, model, calendar) for device in devices),
        owner=str(host.owner_id),
        cpu_milli=host.cpu_milli,
        ram_mib=host.ram_mib,
        disk_mib=host.disk_mib,
        cpu_milli_per_gpu=host.cpu_milli_per_gpu,
        ram_mib_per_gpu=host.ram_mib_per_gpu,
        disk_mib_per_gpu=host.disk_mib_per_gpu,
        price_micros=price(model.slug),
        slice_price_micros=slices,
        reliability_bp=host.reliability_bp,
        tier=host.tier,  # type: ignore[arg-type]
        # Outside the hours that its owner gives to the market it is his alone.
        access=host.access if in_hours else "private",  # type: ignore[arg-type]
        simulated=host.simulated,
        bare_metal=host.bare_metal,
        out_of_service=_host_trouble(host),
    )


def _host_trouble(host: Host) -> str:
    if host.state != Host.State.ONLINE:
        return "silent" if host.state in {Host.State.SUSPECT, Host.State.LOST} else str(host.state)
    if host.tier == Host.Tier.UNVERIFIED:
        return "unverified"
    if host.scheduling != Host.Scheduling.OPEN:
        return str(host.scheduling)
    return ", ".join(host.conditions)[:100]


def _device_view(device: DeviceRow, model: GpuModel, calendar: dict[UUID, list[Busy]]) -> DeviceView:
    trouble = "" if device.health == Device.Health.HEALTHY else device.health_reason or device.health
    if device.cordoned:
        trouble = "cordoned"
    if not device.present:
        trouble = "missing"
    placements = (device.mig or {}).get("placements") or {}
    return DeviceView(
        key=str(device.pk),
        busy=tuple(calendar.get(device.pk, ())),
        nvlink_clique=device.nvlink_clique,
        mig_placements={name: tuple((start, size) for start, size in where) for name, where in placements.items()},
        fractions=tuple(model.fractions),
        out_of_service=trouble,
    )


def seats(placement: Placement) -> tuple[CalendarSeat, ...]:
    """Translate a placement into the calendar's seats, ranks in the order of its members."""
    return tuple(
        CalendarSeat(
            rank=rank,
            host_id=UUID(str(member.host).split("/")[0]),
            device_id=UUID(str(seat.device)),
            units=(seat.start, seat.stop),
            mode=seat.mode,
        )
        for rank, member in enumerate(placement.members)
        for seat in member.seats
    )


def busy_devices(device_ids: Iterable[UUID], *, at: datetime) -> set[UUID]:
    """Return those of the devices that somebody holds at this moment (a range that began and is not released)."""
    rows = Allocation.objects.filter(
        Q(device_id__in=list(device_ids), released_at__isnull=True, during__startswith__lte=at)
    )
    return set(rows.values_list("device_id", flat=True))
