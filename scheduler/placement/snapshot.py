"""What the decider is shown: hosts, devices, their calendars, and what a tenant asks for.

Plain frozen values without behaviour that matters. Times are whole seconds since the epoch (UTC), `end_s=None` is an
open end; prices are micro-units an hour for ONE unit that is let (a GPU, or a slice); a device has eight units.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from leasing.compat import ImageNeeds

Key = int | str
Mode = Literal["whole", "mig", "shared"]

UNITS = 8
ALL_UNITS = (1 << UNITS) - 1
FRACTION_UNITS: Mapping[str, int] = {"0.5": 4, "0.25": 2, "0.125": 1}


def units_mask(start: int, stop: int) -> int:
    """Return the bit mask of the units [start, stop) of a device."""
    return ((1 << (stop - start)) - 1) << start


@dataclass(frozen=True, slots=True)
class Busy:
    """One line of a device's calendar: units held by somebody in [start_s, end_s).

    cpu_milli, ram_mib, disk_mib: what the holder has of the host; None = the host's fixed share for these units.
    Cleaning margins are the caller's: put them into end_s.
    """

    units: int
    mode: Mode
    organization: Key
    start_s: int
    end_s: int | None
    cpu_milli: int | None = None
    ram_mib: int | None = None
    disk_mib: int | None = None


@dataclass(frozen=True, slots=True)
class DeviceView:
    """One GPU. `mig_placements`: legal (start, size) per profile, as the agent read them; empty = no MIG.

    nvlink_clique: devices of one host with the same clique are joined by NVLink; None = by none.
    out_of_service: why it cannot be let ("lost", "xid 79", ...); empty = it can.
    """

    key: Key
    busy: tuple[Busy, ...] = ()
    nvlink_clique: Key | None = None
    mig_placements: Mapping[str, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    fractions: tuple[str, ...] = ()
    out_of_service: str = ""


@dataclass(frozen=True, slots=True)
class HostView:
    """One machine with GPUs of one model, as far as a decision needs it.

    cpu_milli, ram_mib, disk_mib: all that is let on this host; what is held stands in the devices' calendars.
    *_per_gpu: the fixed share that goes with one whole GPU. price_micros None = not for sale.
    segment: what its GPUs are made for, as the catalogue says ("datacenter", ...).
    slice_price_micros: price of a slice by its name; a slice that is not in it costs its part of price_micros.
    out_of_service: why nothing new starts here ("silent", "cordoned", "draining", ...); empty = it may.
    """

    key: Key
    region: str
    model: str
    memory_gib: int
    devices: tuple[DeviceView, ...]
    owner: Key
    cpu_milli: int
    ram_mib: int
    disk_mib: int
    cpu_milli_per_gpu: int
    ram_mib_per_gpu: int
    disk_mib_per_gpu: int
    price_micros: int | None
    slice_price_micros: Mapping[str, int] = field(default_factory=dict)
    zone: str = ""
    fabric: str = ""
    vendor: str = "nvidia"
    compute_capability: str = ""
    driver_version: str = ""
    cuda_version: str = ""
    cpu_architecture: str = "amd64"
    segment: str = ""
    reliability_bp: int = 10_000
    tier: Literal["unverified", "verified", "certified"] = "verified"
    access: Literal["private", "shared_when_idle", "public"] = "public"
    simulated: bool = False
    bare_metal: bool = False  # may be given as a whole machine over SSH
    ports_closed: bool = False  # what it publishes cannot be reached from outside
    out_of_service: str = ""


class Option(Protocol):
    """One alternative of a request: what `leasing.grammar.Option` has."""

    @property
    def nodes(self) -> int: ...
    @property
    def count(self) -> int: ...
    @property
    def model(self) -> str | None: ...
    @property
    def slice(self) -> str | None: ...
    @property
    def memory_gib(self) -> tuple[int, int | None] | None: ...
    @property
    def region(self) -> str | None: ...


@dataclass(frozen=True, slots=True)
class Want:
    """An `Option` for callers that have no parsed request at hand."""

    model: str | None = None
    count: int = 1
    nodes: int = 1
    slice: str | None = None
    memory_gib: tuple[int, int | None] | None = None
    region: str | None = None


@dataclass(frozen=True, slots=True)
class Ask:
    """A request with its constraints, for the range [start_s, until_s).

    max_price_micros: a hard bound on the price of one unit (GPU or slice) for one hour.
    min_cpu_milli, min_ram_mib, min_disk_mib: for each machine; they raise the host's fixed share, never lower it.
    image: what is known of the image, judged against each host by `leasing.compat`; None = nothing.
    vendor, min_compute_capability, min_driver, min_cuda: what the tenant insists on beside it ("" = anything).
    regions: data residency; empty = anywhere. until_s None = open end.
    only_hosts: those that have its volumes; None = it has none, and may stand on any.
    """

    options: tuple[Option, ...]
    organization: Key
    now_s: int
    start_s: int
    until_s: int | None = None
    max_price_micros: int | None = None
    image: ImageNeeds | None = None
    vendor: str = ""
    min_compute_capability: str = ""
    min_driver: str = ""
    min_cuda: str = ""
    min_tier: Literal["verified", "certified"] = "verified"
    min_reliability_bp: int = 0
    regions: frozenset[str] = frozenset()
    exclude_hosts: frozenset[Key] = frozenset()
    exclude_owners: frozenset[Key] = frozenset()
    only_hosts: frozenset[Key] | None = None
    same_zone: bool = False
    same_fabric: bool = False
    nvlink: Literal["any", "wanted", "required"] = "any"
    whole_machine: bool = False
    bare_metal: bool = False
    publishes: bool = False  # ports, which must be reached
    min_cpu_milli: int = 0
    min_ram_mib: int = 0
    min_disk_mib: int = 0


@dataclass(frozen=True, slots=True)
class Seat:
    """Units [start, stop) of one device, in one mode."""

    device: Key
    start: int
    stop: int
    mode: Mode


@dataclass(frozen=True, slots=True)
class Member:
    """One host's part of a placement. `reclaimable`: its owner may take it back by spot rules."""

    host: Key
    seats: tuple[Seat, ...]
    cpu_milli: int
    ram_mib: int
    disk_mib: int
    price_micros: int
    reclaimable: bool
    simulated: bool

    @property
    def device_keys(self) -> tuple[Key, ...]:
        """The devices it sits on, each once, in the order of the seats."""
        return tuple(dict.fromkeys(seat.device for seat in self.seats))


@dataclass(frozen=True, slots=True)
class Placement:
    """A yes: members in rank order, for the alternative `option_index` of the request.

    score: packing score of all members (higher is better; comparable within one version of the weights only).
    reasons: what decided, as short codes, for the lease's event ("option:0", "score", "hosts_compared:7", ...).
    """

    members: tuple[Member, ...]
    option_index: int
    score: int
    reasons: tuple[str, ...]
