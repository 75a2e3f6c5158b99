"""Is this placement lawful? A slow second opinion made of sets and ranges, which shares no code with the engine.

`violations` judges a decision over a snapshot; `could_place` searches for any placement at all, to judge a refusal.
Both are for tests, and for a sample of decisions in production: disagreement refuses the decision and raises an alarm.
"""

from collections.abc import Sequence

from leasing.compat import ImageNeeds
from scheduler.placement.snapshot import Ask, Busy, DeviceView, HostView, Key, Member, Option, Placement

FOREVER = 1 << 62
PARTS = {"0.5": 4, "0.25": 2, "0.125": 1}
TIER_ORDER = ["unverified", "verified", "certified"]


def violations(hosts: Sequence[HostView], ask: Ask, placement: Placement) -> list[str]:
    """Return every rule that the placement breaks, as sentences; empty = lawful."""
    option = ask.options[placement.option_index]
    by_key = {host.key: host for host in hosts}
    unknown = [member.host for member in placement.members if member.host not in by_key]
    if unknown:
        return [f"host {key} is not in the snapshot" for key in unknown]
    found = _gang(by_key, ask, option, placement)
    for member in placement.members:
        host = by_key[member.host]
        found += [f"host {host.key}: {said}" for said in _terms(host, ask, option)]
        found += [f"host {host.key}: {said}" for said in _seats(host, ask, option, member)]
        found += [f"host {host.key}: {said}" for said in _resources(host, ask, member)]
    return found


def could_place(hosts: Sequence[HostView], ask: Ask) -> bool:
    """Tell whether any alternative could be placed at all, by exhaustive search."""
    for option in ask.options:
        groups: dict[tuple[Key, ...], int] = {}
        for host in hosts:
            if _terms(host, ask, option) or not _holds_a_member(host, ask, option):
                continue
            if ask.same_fabric and option.nodes > 1 and not host.fabric:
                continue
            zone = host.zone if ask.same_zone else ""
            fabric = host.fabric if ask.same_fabric else ""
            group = (host.model, host.region, zone, fabric)
            groups[group] = groups.get(group, 0) + 1
        if any(size >= option.nodes for size in groups.values()):
            return True
    return False


def _gang(by_key: dict[Key, HostView], ask: Ask, option: Option, placement: Placement) -> list[str]:
    chosen = [by_key[member.host] for member in placement.members]
    found = []
    if len(chosen) != option.nodes:
        found.append(f"{len(chosen)} machines instead of {option.nodes}")
    if len({host.key for host in chosen}) != len(chosen):
        found.append("two members on one machine")
    if len({host.model for host in chosen}) > 1:
        found.append("more than one model")
    if len({host.region for host in chosen}) > 1:
        found.append("more than one region")
    if option.nodes > 1 and ask.same_zone and len({host.zone for host in chosen}) > 1:
        found.append("more than one zone")
    if option.nodes > 1 and ask.same_fabric and (len({h.fabric for h in chosen}) > 1 or not chosen[0].fabric):
        found.append("no common fabric")
    return found


def _numbers(text: str) -> list[int]:
    return [int(part) if part.isdigit() else 0 for part in text.split(".")] if text else []


def _terms(host: HostView, ask: Ask, option: Option) -> list[str]:
    found = []
    own = host.owner == ask.organization
    if host.out_of_service:
        found.append("out of service")
    if not own and host.access == "private":
        found.append("private")
    if not own and TIER_ORDER.index(host.tier) < TIER_ORDER.index(ask.min_tier):
        found.append("tier too low")
    if option.model is not None and host.model != option.model:
        found.append("another model")
    if option.model is None and option.memory_gib is not None:
        most = option.memory_gib[1]
        if host.memory_gib < option.memory_gib[0] or (most is not None and host.memory_gib > most):
            found.append("memory out of range")
    if ask.only_hosts is not None and host.key not in ask.only_hosts:
        found.append("its volume is elsewhere")
    if host.key in ask.exclude_hosts or host.owner in ask.exclude_owners:
        found.append("excluded")
    if host.reliability_bp < ask.min_reliability_bp:
        found.append("reliability too low")
    if (option.region and host.region != option.region) or (ask.regions and host.region not in ask.regions):
        found.append("wrong region")
    if ask.bare_metal and not host.bare_metal:
        found.append("not let as a bare machine")
    if ask.publishes and host.ports_closed:
        found.append("its ports cannot be reached")
    if ask.vendor and host.vendor != ask.vendor:
        found.append("wrong vendor")
    if ask.image is not None:
        found += _against_image(host, ask.image)
    for need, have in (
        (ask.min_driver, host.driver_version),
        (ask.min_cuda, host.cuda_version),
        (ask.min_compute_capability, host.compute_capability),
    ):
        if _numbers(have) < _numbers(need):
            found.append(f"version {have} below {need}")
    price = _price(host, option)
    if price is None or (ask.max_price_micros is not None and price > ask.max_price_micros):
        found.append("price above the cap, or none")
    return found


def _against_image(host: HostView, image: ImageNeeds) -> list[str]:
    """The plainest of the rules for images, read anew: maker, processor, machine code, a driver of an older CUDA."""
    found = []
    if image.vendor is not None and image.vendor != host.vendor:
        found.append("image for another vendor")
    if image.cpu and image.cpu != host.cpu_architecture:
        found.append("image for another processor")
    if image.cuda is None or host.vendor != "nvidia":
        return found
    gpu, wanted, carried = (_numbers(text) for text in (host.compute_capability, image.cuda, host.cuda_version))
    if image.archs is not None and image.ptx is None and gpu:
        held = [_numbers(arch) for arch in image.archs]
        if not any(arch[:1] == gpu[:1] and arch <= gpu for arch in held):
            found.append("no code in the image for this GPU")
    if carried and not image.has_compat and carried[0] < wanted[0]:
        found.append("driver of an older CUDA")
    return found


def _price(host: HostView, option: Option) -> int | None:
    if option.slice is None:
        return host.price_micros
    if option.slice in host.slice_price_micros:
        return host.slice_price_micros[option.slice]
    if host.price_micros is None:
        return None
    eighths = host.price_micros * _eighths(host, option.slice)
    return eighths // 8 + (1 if eighths % 8 else 0)


def _eighths(host: HostView, part: str | None) -> int:
    if part is None:
        return 8
    if part in PARTS:
        return PARTS[part]
    sizes = [size for device in host.devices for _, size in device.mig_placements.get(part, ())]
    return sizes[0] if sizes else 8


def _meets(busy: Busy, ask: Ask) -> bool:
    start, end = ask.start_s, FOREVER if ask.until_s is None else ask.until_s
    return max(start, busy.start_s) < min(end, FOREVER if busy.end_s is None else busy.end_s)


def _unit_set(busy: Busy) -> set[int]:
    return {unit for unit in range(8) if busy.units >> unit & 1}


def _seats(host: HostView, ask: Ask, option: Option, member: Member) -> list[str]:
    found = []
    devices = {device.key: device for device in host.devices}
    if len(member.seats) != option.count:
        found.append(f"{len(member.seats)} seats instead of {option.count}")
    taken: dict[Key, set[int]] = {}
    for seat in member.seats:
        device = devices.get(seat.device)
        if device is None:
            found.append(f"no device {seat.device}")
            continue
        units = set(range(seat.start, seat.stop))
        if units & taken.setdefault(seat.device, set()):
            found.append(f"device {seat.device}: two seats on one unit")
        taken[seat.device] |= units
        found += [f"device {seat.device}: {said}" for said in _seat(device, ask, option, seat.mode, units)]
    if option.slice is None and ask.nvlink == "required" and option.count > 1:
        cliques = {devices[key].nvlink_clique for key in taken if key in devices}
        if len(cliques) != 1 or None in cliques:
            found.append("not on one NVLink")
    if ask.whole_machine and (set(taken) != set(devices) or option.slice is not None):
        found.append("not the whole machine")
    if option.slice in PARTS and len(taken) != len(member.seats):
        found.append("two fractions on one device")
    return found


def _seat(device: DeviceView, ask: Ask, option: Option, mode: str, units: set[int]) -> list[str]:
    found = []
    if device.out_of_service:
        found.append("out of service")
    if option.slice is None:
        lawful = mode == "whole" and units == set(range(8))
    elif option.slice in PARTS:
        size = PARTS[option.slice]
        lawful = mode == "shared" and option.slice in device.fractions and min(units) % size == 0 and len(units) == size
    else:
        legal = [set(range(start, start + size)) for start, size in device.mig_placements.get(option.slice, ())]
        lawful = mode == "mig" and units in legal
    if not lawful:
        found.append(f"units {sorted(units)} in mode {mode} are not {option.slice or 'a whole GPU'}")
    for busy in device.busy:
        if not _meets(busy, ask):
            continue
        if busy.mode != mode:
            found.append(f"already in mode {busy.mode}")
        if mode == "shared" and busy.organization != ask.organization:
            found.append("shared with another organization")
        if _unit_set(busy) & units:
            found.append("a unit is taken")
    return found


def _resources(host: HostView, ask: Ask, member: Member) -> list[str]:
    found = []
    lines = [busy for device in host.devices for busy in device.busy if _meets(busy, ask)]
    for second in sorted({ask.start_s} | {busy.start_s for busy in lines if busy.start_s >= ask.start_s}):
        cpu, ram, disk = member.cpu_milli, member.ram_mib, member.disk_mib
        for busy in lines:
            if busy.start_s <= second and (busy.end_s is None or second < busy.end_s):
                share = len(_unit_set(busy))
                cpu += host.cpu_milli_per_gpu * share // 8 if busy.cpu_milli is None else busy.cpu_milli
                ram += host.ram_mib_per_gpu * share // 8 if busy.ram_mib is None else busy.ram_mib
                disk += host.disk_mib_per_gpu * share // 8 if busy.disk_mib is None else busy.disk_mib
        if cpu > host.cpu_milli or ram > host.ram_mib or disk > host.disk_mib:
            found.append(f"CPU, RAM or disk is let twice at second {second}")
    if member.cpu_milli < ask.min_cpu_milli or member.ram_mib < ask.min_ram_mib or member.disk_mib < ask.min_disk_mib:
        found.append("less CPU, RAM or disk than asked")
    return found


def _holds_a_member(host: HostView, ask: Ask, option: Option) -> bool:
    """Tell whether the host has the seats and the resources of one member, by counting what is possible."""
    if ask.whole_machine and option.slice is not None:
        return False
    share = option.count * _eighths(host, option.slice)
    cpu = max(host.cpu_milli if ask.whole_machine else host.cpu_milli_per_gpu * share // 8, ask.min_cpu_milli)
    ram = max(host.ram_mib if ask.whole_machine else host.ram_mib_per_gpu * share // 8, ask.min_ram_mib)
    disk = max(host.disk_mib if ask.whole_machine else host.disk_mib_per_gpu * share // 8, ask.min_disk_mib)
    if _resources(host, ask, Member(host.key, (), cpu, ram, disk, 0, False, False)):
        return False
    if option.slice is None:
        return _holds_whole(host, ask, option)
    possible = 0
    for device in host.devices:
        if option.slice in PARTS:
            size, mode = PARTS[option.slice], "shared"
            places = [set(range(start, start + size)) for start in range(0, 8, size)]
        else:
            mode = "mig"
            places = [set(range(start, start + n)) for start, n in device.mig_placements.get(option.slice, ())]
        free = [units for units in places if not _seat(device, ask, option, mode, units)]
        possible += min(1, len(free)) if option.slice in PARTS else len(free)
    return possible >= option.count


def _holds_whole(host: HostView, ask: Ask, option: Option) -> bool:
    free = [device for device in host.devices if not _seat(device, ask, option, "whole", set(range(8)))]
    if ask.whole_machine and not len(free) == len(host.devices) == option.count:
        return False
    if ask.nvlink != "required" or option.count == 1:
        return len(free) >= option.count
    cliques = [device.nvlink_clique for device in free if device.nvlink_clique is not None]
    return any(cliques.count(clique) >= option.count for clique in cliques)
