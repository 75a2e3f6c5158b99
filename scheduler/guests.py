"""Leases that run, as candidates to give way: how long they ran, what they hold, what the pool is without them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from uuid import UUID

from leasing import broken_promises
from leasing.models import Allocation, Lease
from scheduler import spot_victims
from scheduler.placement import Ask, Busy, HostView
from scheduler.pool import Pool, seconds
from scheduler.spot_victims import Machine


@dataclass(frozen=True)
class Guest:
    """A lease that runs, as a candidate to give way."""

    lease: Lease
    ran_s: int
    rows: tuple[Allocation, ...]

    @property
    def key(self) -> str:
        return str(self.lease.pk)

    @property
    def lost_micros(self) -> int:
        return spot_victims.lost_micros(micros_per_hour=self.lease.price_micros_per_hour or 0, ran_s=self.ran_s)


def guests_of(leases: Sequence[Lease], *, at: datetime, but_young: bool = True) -> Iterator[Guest]:
    """Yield these running leases with what they hold; but_young: not those before the end of their minimum runtime."""
    began = broken_promises.running_since(leases)
    held: dict[UUID, list[Allocation]] = {}
    rows = Allocation.objects.filter(lease__in=leases, released_at=None).select_related("device")
    for row in rows.order_by("pk"):
        held.setdefault(row.lease_id, []).append(row)  # type: ignore[arg-type]
    for lease in leases:
        since = began.get(lease.pk)
        mine = tuple(row for row in held.get(lease.pk, ()) if row.epoch == lease.epoch)
        old = since is not None and at - since >= timedelta(seconds=lease.min_runtime_s)
        if since is not None and mine and (old or not but_young):
            yield Guest(lease, int((at - since).total_seconds()), mine)


def machines_of(views: Sequence[HostView], guests: dict[str, Guest], ask: Ask) -> list[Machine]:
    """Return the machines, with the GPUs that are free or can be cleared of guests: nobody else holds a unit of them.

    What is bound to somebody for later is the engine's to see.
    """
    of_device: dict[str, list[str]] = {}
    for key, guest in guests.items():
        for row in guest.rows:
            of_device.setdefault(str(row.device_id), []).append(key)
    machines = []
    for view in views:
        holders = {}
        for device in view.devices:
            mine = of_device.get(str(device.key), [])
            lines = [b for b in device.busy if (b.end_s is None or b.end_s > ask.start_s) and b.start_s <= ask.now_s]
            if not device.out_of_service and len(lines) == len(mine):
                holders[str(device.key)] = frozenset(mine)
        machines.append(Machine(str(view.key), holders))
    return machines


def clear(pool: Pool, victims: Sequence[Guest], *, until_s: int) -> Pool:
    """Return a copy of the overlay on which these leases hold their devices until a second, and no longer."""
    cut = {
        (str(row.device_id), row.units.lower, row.units.upper, seconds(row.during.lower))
        for guest in victims
        for row in guest.rows
    }
    devices = {device for device, *_ in cut}
    hosts = dict(pool.hosts)
    for key, view in pool.hosts.items():
        if any(str(device.key) in devices for device in view.devices):
            hosts[key] = replace(
                view,
                devices=tuple(
                    replace(
                        device,
                        busy=tuple(
                            replace(busy, end_s=until_s) if _is_cut(str(device.key), busy, cut, until_s) else busy
                            for busy in device.busy
                        ),
                    )
                    for device in view.devices
                ),
            )
    return Pool(hosts=hosts, prices=pool.prices, capacity=pool.capacity)


def _is_cut(device: str, busy: Busy, cut: set[tuple[str, int, int, int]], until_s: int) -> bool:
    first = (busy.units & -busy.units).bit_length() - 1
    line = (device, first, busy.units.bit_length(), busy.start_s)
    return line in cut and (busy.end_s is None or busy.end_s > until_s)
