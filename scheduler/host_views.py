"""A host's rows as the placement engine sees them: prices of one term put in, and the hours of its owner."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import cast
from uuid import UUID

from agents import availability
from agents.models import Device, Host
from billing.models import PriceVersion
from catalogue.models import GpuModel
from scheduler.placement import Busy, DeviceView, HostView, units_mask
from scheduler.placement.snapshot import Mode
from scheduler.pool_rows import DeviceRow, HostRow, HostRows, Line

FOREVER = 1 << 62
PriceKey = tuple[str, str, str]  # sku, region, tier
Prices = Mapping[PriceKey, PriceVersion]


@dataclass(frozen=True)
class Views:
    """A host's views by key, one for each model on it; as they are in [made_s, good_until_s) if no row changes."""

    by_key: Mapping[str, HostView]
    made_s: int
    good_until_s: int

    def kept(self, later: "Views") -> "Views":
        """Return the later views, with the objects of these where they are equal."""
        same = {key: self.by_key[key] if self.by_key.get(key) == view else view for key, view in later.by_key.items()}
        return Views(same, later.made_s, later.good_until_s)


def of_host(rows: HostRows, models: Mapping[UUID, GpuModel], prices: Prices, *, at: datetime) -> Views:
    """Return the views of one host at `at`."""
    now_s = int(at.timestamp())
    groups: dict[UUID, list[DeviceRow]] = {}
    for device in rows.devices:
        groups.setdefault(device.model_id, []).append(device)
    ends = [line.end_s for lines in rows.lines.values() for line in lines if line.end_s is not None]
    later = [end for end in ends if end > now_s]
    # The owner's hours may begin or end with any second: what has hours is looked at each time.
    good_until = now_s if rows.host.hours else min(later, default=FOREVER)
    in_hours = availability.is_open(windows=rows.host.hours, time_zone=rows.host.hours_time_zone, at=at)
    found = {}
    for model_id, devices in groups.items():
        model = models[model_id]
        shown = tuple(_device(device, model, rows.lines.get(device.pk, ()), now_s) for device in devices)
        found[f"{rows.host.pk}/{model.slug}"] = _view(rows.host, model, shown, prices, in_hours=in_hours)
    return Views(found, now_s, good_until)


def _view(
    host: HostRow, model: GpuModel, devices: tuple[DeviceView, ...], prices: Prices, *, in_hours: bool
) -> HostView:  # fmt: skip
    def price(sku: str) -> int | None:
        version = prices.get((sku, host.region, host.tier))
        # An owner's floor withholds his host from leases that pay less; it never makes a price.
        if version is None or version.price_micros_per_hour < host.price_floor_micros:
            return None
        return version.price_micros_per_hour

    slices = {
        name: found for name in [*model.fractions, *model.mig_profiles] if (found := price(f"{model.slug}/{name}"))
    }
    return HostView(
        key=f"{host.pk}/{model.slug}",
        region=host.region,
        zone=host.zone,
        fabric=host.fabric,
        model=model.slug,
        memory_gib=model.memory_gib or 0,
        vendor=model.vendor,
        compute_capability=model.compute_capability,
        driver_version=host.driver_version,
        cuda_version=host.cuda_version,
        segment=model.segment,
        devices=devices,
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
        ports_closed=host.ports_open is False,
        out_of_service=_trouble(host),
    )


def _trouble(host: HostRow) -> str:
    if host.state != Host.State.ONLINE:
        return "silent" if host.state in {Host.State.SUSPECT, Host.State.LOST} else host.state
    if host.tier == Host.Tier.UNVERIFIED:
        return "unverified"
    if host.scheduling != Host.Scheduling.OPEN:
        return host.scheduling
    return ", ".join(host.conditions)[:100]


def _device(device: DeviceRow, model: GpuModel, lines: tuple[Line, ...], now_s: int) -> DeviceView:
    trouble = "" if device.health == Device.Health.HEALTHY else device.health_reason or device.health
    if device.cordoned:
        trouble = "cordoned"
    if not device.present:
        trouble = "missing"
    placements = (device.mig or {}).get("placements") or {}
    return DeviceView(
        key=str(device.pk),
        busy=tuple(_busy(lines, now_s)),
        nvlink_clique=device.nvlink_clique,
        mig_placements={name: tuple((start, size) for start, size in where) for name, where in placements.items()},
        fractions=tuple(model.fractions),
        out_of_service=trouble,
    )


def _busy(lines: tuple[Line, ...], now_s: int) -> Iterator[Busy]:
    for line in lines:
        # What is not released is not free, however long its promised end is past: its host has not said "gone".
        end_s = None if line.end_s is None or line.end_s <= now_s else line.end_s
        mask = units_mask(line.first, line.end)
        yield Busy(mask, cast("Mode", line.mode), line.organization, line.start_s, end_s)
