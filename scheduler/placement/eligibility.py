"""The first constraint that a host fails, in the fixed order in which a refusal counts hosts.

`CODES` is that order. Each check says what was needed and what the host has, so that a refusal can be acted on.
"""

from dataclasses import dataclass, replace
from functools import lru_cache

from leasing.compat import HostOffers, ImageNeeds, compat
from scheduler.placement.availability import ends_after, free_resources, wholly_free
from scheduler.placement.seating import clique_sizes, offers_slice, seats_for
from scheduler.placement.snapshot import FRACTION_UNITS, UNITS, Ask, HostView, Option, Seat, Want

CODES = (
    "out_of_service", "volume", "excluded", "tier", "reliability", "region", "bare_metal", "ports", "vendor",
    "cpu_architecture", "compute_capability", "image_code", "driver", "cuda", "not_for_sale", "price", "devices",
    "slice", "nvlink", "cpu", "ram", "disk", "busy", "gang",
)  # fmt: skip
TIERS = {"unverified": 0, "verified": 1, "certified": 2}


@dataclass(frozen=True, slots=True)
class Shortfall:
    """Why one host cannot hold a member: need and have in the unit of the constraint; earliest_s if time cures it."""

    code: str
    need: int | str
    have: int | str
    earliest_s: int | None = None


@dataclass(frozen=True, slots=True)
class Room:
    """A host that can hold a member, with the seats and the host resources it would take."""

    host: HostView
    seats: tuple[Seat, ...]
    cpu_milli: int
    ram_mib: int
    disk_mib: int
    price_micros: int


def version(text: str) -> tuple[int, ...]:
    """Return the numbers of a dotted version, so that 550.54.15 compares with 550; unreadable parts count 0."""
    return tuple(int(part) if part.isascii() and part.isdigit() else 0 for part in text.split(".")) if text else ()


def is_visible(host: HostView, organization: object) -> bool:
    """Tell whether the organization may know of this host: a private host exists for its owner only."""
    return host.owner == organization or (host.access != "private" and host.tier != "unverified")


def has_model(host: HostView, option: Option) -> bool:
    """Tell whether the host's GPUs are what the option names: a model, or a range of memory (both ends included)."""
    if option.model is not None:
        return host.model == option.model
    least, most = option.memory_gib or (0, None)
    return least <= host.memory_gib and (most is None or host.memory_gib <= most)


def unit_price_micros(host: HostView, part: str | None, units: int) -> int | None:
    """Return the price of one GPU or slice for an hour, or None where it is not for sale."""
    if part is not None and part in host.slice_price_micros:
        return host.slice_price_micros[part]
    if host.price_micros is None or part is None:
        return host.price_micros
    return -(-host.price_micros * units // UNITS)


def examine(host: HostView, option: Option, ask: Ask) -> Room | Shortfall:
    """Return the room for one member on this host, or the first constraint it fails."""
    return _terms(host, option, ask) or _software(host, ask) or _price(host, option, ask) or _space(host, option, ask)


def _terms(host: HostView, option: Option, ask: Ask) -> Shortfall | None:
    if host.out_of_service:
        return Shortfall("out_of_service", "in service", host.out_of_service)
    if ask.only_hosts is not None and host.key not in ask.only_hosts:
        return Shortfall("volume", "its volume", "none")
    if host.key in ask.exclude_hosts or host.owner in ask.exclude_owners:
        return Shortfall("excluded", "not excluded", "excluded")
    own = host.owner == ask.organization
    if not own and TIERS[host.tier] < TIERS[ask.min_tier]:
        return Shortfall("tier", ask.min_tier, host.tier)
    if host.reliability_bp < ask.min_reliability_bp:
        return Shortfall("reliability", ask.min_reliability_bp, host.reliability_bp)
    if option.region is not None and host.region != option.region:
        return Shortfall("region", option.region, host.region)
    if ask.regions and host.region not in ask.regions:
        return Shortfall("region", ", ".join(sorted(ask.regions)), host.region)
    if ask.bare_metal and not host.bare_metal:
        return Shortfall("bare_metal", "SSH access", "none")
    if ask.publishes and host.ports_closed:
        return Shortfall("ports", "ports that can be reached", "none")
    return None


def _software(host: HostView, ask: Ask) -> Shortfall | None:
    if ask.vendor and host.vendor != ask.vendor:
        return Shortfall("vendor", ask.vendor, host.vendor)
    for code, need, have in (
        ("compute_capability", ask.min_compute_capability, host.compute_capability),
        ("driver", ask.min_driver, host.driver_version),
        ("cuda", ask.min_cuda, host.cuda_version),
    ):
        if need and version(have) < version(need):
            return Shortfall(code, need, have or "unknown")
    return _image(host, ask) if ask.image is not None else None


def _image(host: HostView, ask: Ask) -> Shortfall | None:
    """Return what stands against the image on this host: its GPUs, its processor or its driver."""
    assert ask.image is not None
    return _runs(
        ask.image, host.vendor, host.cpu_architecture, host.driver_version, host.compute_capability, host.segment,
        host.cuda_version,
    )  # fmt: skip


@lru_cache(maxsize=4096)  # hosts of a market are of few kinds
def _runs(
    image: ImageNeeds, vendor: str, cpu: str, driver: str, capability: str, segment: str, cuda: str
) -> Shortfall | None:
    is_cuda = vendor == "nvidia"
    offers = HostOffers(
        vendor=vendor,
        cpu=cpu,
        driver=_readable(driver),
        cc=_readable(capability) if is_cuda else None,
        segment=segment or None,
        cuda=_readable(cuda) if is_cuda else None,
    )
    verdict = compat(replace(image, cpu=image.cpu or cpu), offers)
    need = verdict.need or "another"
    if verdict.runs:
        return None
    if verdict.result == "vendor":
        return Shortfall("vendor", image.vendor or "", vendor)
    if verdict.result == "cpu_arch":
        return Shortfall("cpu_architecture", image.cpu, cpu)
    if verdict.result == "gpu_too_old_for_image":
        return Shortfall("compute_capability", need, capability)
    if verdict.result == "no_code_for_gpu":
        return Shortfall("image_code", capability, "none")
    return Shortfall("driver", need, driver or "unknown")


def _readable(text: str) -> str | None:
    """Return a version of numbers and dots, or None: what cannot be read is not known."""
    parts = text.split(".")
    return text if all(part.isascii() and part.isdigit() for part in parts) else None


def _price(host: HostView, option: Option, ask: Ask) -> Shortfall | None:
    price = unit_price_micros(host, option.slice, slice_units(host, option.slice))
    if price is None:
        return Shortfall("not_for_sale", "a price", "none")
    if ask.max_price_micros is not None and price > ask.max_price_micros:
        return Shortfall("price", ask.max_price_micros, price)
    return None


def slice_units(host: HostView, part: str | None) -> int:
    """Return how many of the eight units one slice takes on this host (8 for a whole GPU, or an unknown slice)."""
    if part is None:
        return UNITS
    if part in FRACTION_UNITS:
        return FRACTION_UNITS[part]
    sizes = [size for device in host.devices for _, size in device.mig_placements.get(part, ())]
    return sizes[0] if sizes else UNITS


def _needs(host: HostView, option: Option, ask: Ask) -> tuple[int, int, int]:
    """CPU, RAM and disk of one member: the host's fixed share (a whole machine: all), raised by what the ask names."""
    if ask.whole_machine:
        share = host.cpu_milli, host.ram_mib, host.disk_mib
    else:
        units = option.count * slice_units(host, option.slice)
        per_gpu = host.cpu_milli_per_gpu, host.ram_mib_per_gpu, host.disk_mib_per_gpu
        share = per_gpu[0] * units // UNITS, per_gpu[1] * units // UNITS, per_gpu[2] * units // UNITS
    return max(share[0], ask.min_cpu_milli), max(share[1], ask.min_ram_mib), max(share[2], ask.min_disk_mib)


def _space(host: HostView, option: Option, ask: Ask) -> Room | Shortfall:
    room = None if ask.whole_machine else _room(host, option, ask)
    if room is not None:
        return room  # what has room is not too small; a whole machine must also be of just this size
    never = _too_small(host, option, ask)
    if never is not None:
        return never
    room = _room(host, option, ask) if ask.whole_machine else None
    if room is not None:
        return room
    earliest = earliest_start(host, option, ask)
    return Shortfall("busy", option.count, _free_count(host, option, ask), earliest)


def _too_small(host: HostView, option: Option, ask: Ask) -> Shortfall | None:
    """What the host could not give even if it were empty."""
    alive = sum(1 for device in host.devices if not device.out_of_service)
    if option.slice is not None and (ask.whole_machine or not offers_slice(host, option.slice)):
        return Shortfall("slice", option.slice, "not sold in this slice")
    if ask.whole_machine and (len(host.devices) != option.count or alive < option.count):
        return Shortfall("devices", option.count, len(host.devices))
    if option.slice is None and alive < option.count:
        return Shortfall("devices", option.count, alive)
    widest = max(clique_sizes(host).values(), default=0)
    if option.slice is None and ask.nvlink == "required" and widest < option.count:
        return Shortfall("nvlink", option.count, widest)
    needs = _needs(host, option, ask)
    for code, need, have in zip(
        ("cpu", "ram", "disk"), needs, (host.cpu_milli, host.ram_mib, host.disk_mib), strict=True
    ):
        if need > have:
            return Shortfall(code, need, have)
    # Whole GPUs that are in service, in a clique wide enough, all can be had when nobody has them.
    if option.slice is not None and seats_for(_emptied(host), option, ask) is None:
        return Shortfall("devices", option.count, alive)
    return None


def _emptied(host: HostView) -> HostView:
    return replace(host, devices=tuple(replace(device, busy=()) for device in host.devices))


def _room(host: HostView, option: Option, ask: Ask) -> Room | None:
    cpu, ram, disk = _needs(host, option, ask)
    free_cpu, free_ram, free_disk = free_resources(host, ask.start_s, ask.until_s)
    if free_cpu < cpu or free_ram < ram or free_disk < disk:
        return None
    seats = seats_for(host, option, ask)
    price = unit_price_micros(host, option.slice, slice_units(host, option.slice))
    if seats is None or price is None:
        return None
    return Room(host, seats, cpu, ram, disk, price)


def _free_count(host: HostView, option: Option, ask: Ask) -> int:
    """How many of the wanted GPUs or slices the host could give now (0 where CPU, RAM or disk are what is short)."""
    most = option.count - 1
    if option.slice is None:
        most = min(most, wholly_free(host, ask.organization, ask.start_s, ask.until_s))
    for count in range(most, 0, -1):
        if _room(host, resized(option, count=count, nodes=1), ask) is not None:
            return count
    return 0


def resized(option: Option, *, count: int, nodes: int) -> Want:
    """Return the option with another count of GPUs and machines."""
    return Want(option.model, count, nodes, option.slice, option.memory_gib, option.region)


def earliest_start(host: HostView, option: Option, ask: Ask) -> int | None:
    """Return the first second >= ask.start_s from which this host could hold a member for as long as asked.

    Counts on the ends that the calendar knows; None if some needed unit has an open end.
    """
    length = None if ask.until_s is None else ask.until_s - ask.start_s
    for moment in (ask.start_s, *ends_after(host, ask.start_s)):
        until = None if length is None else moment + length
        later = ask if moment == ask.start_s else replace(ask, start_s=moment, until_s=until)
        if _room(host, option, later) is not None:
            return moment
    return None
