"""Choose the devices of one host for one member: whole GPUs, MIG slices, fractions, NVLink."""

from collections import Counter

from scheduler.placement import mig
from scheduler.placement.availability import free_units, in_mode
from scheduler.placement.snapshot import (
    ALL_UNITS,
    FRACTION_UNITS,
    UNITS,
    Ask,
    DeviceView,
    HostView,
    Option,
    Seat,
    units_mask,
)


def seats_for(host: HostView, option: Option, ask: Ask) -> tuple[Seat, ...] | None:
    """Return the seats for one member on this host over the range of the ask, or None if it has no room."""
    if option.slice is None:
        return _whole(host, option.count, ask)
    if option.slice in FRACTION_UNITS:
        return _fractions(host, option.slice, option.count, ask)
    return _slices(host, option.slice, option.count, ask)


def offers_slice(host: HostView, part: str) -> bool:
    """Tell whether any device of the host is sold in this slice."""
    return any(part in device.fractions or part in device.mig_placements for device in host.devices)


def clique_sizes(host: HostView) -> Counter[object]:
    """Count the devices in service by NVLink clique; a device without one is its own clique."""
    return Counter(_clique(index, device) for index, device in enumerate(host.devices) if not device.out_of_service)


def shares_clique(host: HostView, seats: tuple[Seat, ...]) -> bool:
    """Tell whether all seats lie in one NVLink clique (one device always does)."""
    used = {seat.device for seat in seats}
    return len({_clique(i, d) for i, d in enumerate(host.devices) if d.key in used}) <= 1


def _clique(index: int, device: DeviceView) -> object:
    return ("alone", index) if device.nvlink_clique is None else ("clique", device.nvlink_clique)


def _whole(host: HostView, count: int, ask: Ask) -> tuple[Seat, ...] | None:
    free = [
        (index, device)
        for index, device in enumerate(host.devices)
        if free_units(device, "whole", ask.organization, ask.start_s, ask.until_s) == ALL_UNITS
    ]
    if len(free) < count or (ask.whole_machine and len(free) != len(host.devices)):
        return None
    left = Counter(_clique(index, device) for index, device in free)
    # The clique with the fewest free devices that is still large enough: larger ones stay whole for others.
    fitting = min((n for n in left.values() if n >= count), default=0)
    if ask.nvlink != "any" and fitting:
        chosen = next(c for c, n in left.items() if n == fitting)
        free = [item for item in free if _clique(*item) == chosen]
    elif ask.nvlink == "required":
        return None
    else:
        # A clique that fits exactly, then those that are broken most: what stays is worth most to NVLink leases.
        free.sort(key=lambda item: (left[_clique(*item)] != count, left[_clique(*item)], str(_clique(*item)), item[0]))
    return tuple(Seat(device.key, 0, UNITS, "whole") for _, device in free[:count])


def _slices(host: HostView, profile: str, count: int, ask: Ask) -> tuple[Seat, ...] | None:
    """Seat each slice on the device that has least room for it, devices already in MIG mode before whole ones."""
    free = [free_units(device, "mig", ask.organization, ask.start_s, ask.until_s) for device in host.devices]
    opened = [in_mode(device, ask.start_s, ask.until_s) for device in host.devices]
    seats: list[Seat] = []
    for _ in range(count):
        room = [
            (not opened[index], free[index].bit_count(), index, place)
            for index, device in enumerate(host.devices)
            if (place := mig.best_start(free[index], profile, device.mig_placements)) is not None
        ]
        if not room:
            return None
        _, _, index, (start, size) = min(room)
        free[index] &= ~units_mask(start, start + size)
        opened[index] = True
        seats.append(Seat(host.devices[index].key, start, start + size, "mig"))
    return tuple(seats)


def _fractions(host: HostView, fraction: str, count: int, ask: Ask) -> tuple[Seat, ...] | None:
    """Seat each fraction on its own device: one that is shared already and fullest first, then the next."""
    size = FRACTION_UNITS[fraction]
    room = []
    for index, device in enumerate(host.devices):
        if fraction not in device.fractions:
            continue
        free = free_units(device, "shared", ask.organization, ask.start_s, ask.until_s)
        start = mig.best_buddy(free, size)
        if start is not None:
            opened = in_mode(device, ask.start_s, ask.until_s)
            room.append((not opened, free.bit_count(), index, start))
    if len(room) < count:
        return None
    return tuple(Seat(host.devices[i].key, start, start + size, "shared") for _, _, i, start in sorted(room)[:count])
