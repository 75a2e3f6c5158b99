"""When is a device free? Units, modes and host resources over a half-open range of time."""

from collections.abc import Iterator

from scheduler.placement.snapshot import ALL_UNITS, UNITS, Busy, DeviceView, HostView, Key, Mode


def overlaps(busy: Busy, start_s: int, until_s: int | None) -> bool:
    """Tell whether a calendar line and [start_s, until_s) have a second in common."""
    return (until_s is None or busy.start_s < until_s) and (busy.end_s is None or busy.end_s > start_s)


def free_units(device: DeviceView, mode: Mode, organization: Key, start_s: int, until_s: int | None) -> int:
    """Return the mask of units that can be let in this mode for the whole range; 0 if the mode is impossible.

    A device has one mode at a time, and a shared device one organization at a time.
    """
    if device.out_of_service:
        return 0
    mask = ALL_UNITS
    for busy in device.busy:
        if overlaps(busy, start_s, until_s):
            if busy.mode != mode or mode == "whole":
                return 0
            if mode == "shared" and busy.organization != organization:
                return 0
            mask &= ~busy.units
    return mask


def most_free(device: DeviceView, organization: Key, start_s: int, until_s: int | None) -> int:
    """Return how many units can be let for the whole range in the mode that leaves most: the widest `free_units`."""
    if device.out_of_service:
        return 0
    mask, mode = ALL_UNITS, None
    for busy in device.busy:
        if overlaps(busy, start_s, until_s):
            if busy.mode == "whole" or (mode is not None and busy.mode != mode):
                return 0
            if busy.mode == "shared" and busy.organization != organization:
                return 0
            mode = busy.mode
            mask &= ~busy.units
    return mask.bit_count()


def wholly_free(host: HostView, organization: Key, start_s: int, until_s: int | None) -> int:
    """Return how many devices can be let whole for the range."""
    return sum(free_units(device, "whole", organization, start_s, until_s) == ALL_UNITS for device in host.devices)


def in_mode(device: DeviceView, start_s: int, until_s: int | None) -> bool:
    """Tell whether the device already has a mode in the range (anybody holds a unit of it)."""
    return any(overlaps(busy, start_s, until_s) for busy in device.busy)


def _held(host: HostView, busy: Busy) -> tuple[int, int, int]:
    units = busy.units.bit_count()
    return (
        busy.cpu_milli if busy.cpu_milli is not None else host.cpu_milli_per_gpu * units // UNITS,
        busy.ram_mib if busy.ram_mib is not None else host.ram_mib_per_gpu * units // UNITS,
        busy.disk_mib if busy.disk_mib is not None else host.disk_mib_per_gpu * units // UNITS,
    )


def free_resources(host: HostView, start_s: int, until_s: int | None) -> tuple[int, int, int]:
    """Return (CPU milli, RAM MiB, disk MiB) that stay free at every second of the range."""
    lines = [busy for device in host.devices for busy in device.busy if overlaps(busy, start_s, until_s)]
    if not lines:
        return host.cpu_milli, host.ram_mib, host.disk_mib
    held = [(busy, _held(host, busy)) for busy in lines]
    cpu, ram, disk = host.cpu_milli, host.ram_mib, host.disk_mib
    for moment in {start_s} | {busy.start_s for busy in lines if busy.start_s > start_s}:
        left_cpu, left_ram, left_disk = host.cpu_milli, host.ram_mib, host.disk_mib
        for busy, share in held:
            if busy.start_s <= moment and (busy.end_s is None or busy.end_s > moment):
                left_cpu, left_ram, left_disk = left_cpu - share[0], left_ram - share[1], left_disk - share[2]
        cpu, ram, disk = min(cpu, left_cpu), min(ram, left_ram), min(disk, left_disk)
    return cpu, ram, disk


def ends_after(host: HostView, start_s: int) -> Iterator[int]:
    """Yield, in order and once each, the seconds after start_s at which something on this host becomes free."""
    yield from sorted(
        {
            busy.end_s
            for device in host.devices
            for busy in device.busy
            if busy.end_s is not None and busy.end_s > start_s
        }
    )
