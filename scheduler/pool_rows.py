"""What the pool is made of, as rows kept in memory: hosts that ever served, their devices, the calendar from now on.

Level with the database by its change log: whatever changes what can be placed on a host has its line there (triggers
write it, so that nobody can forget), and the host is read again, whole. Every CHECK_S seconds everything is read and
compared: what differs without a line in the log is drift, counted and put right.
"""

import threading
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple
from uuid import UUID

from django.db import connection
from django.db.models import F
from django.db.models.functions import Greatest
from prometheus_client import Counter

from agents import capacity
from agents.models import Device, Host
from audit import ids
from catalogue.models import GpuModel

CHECK_S = 30
SERVING = (Host.State.ONLINE, Host.State.SUSPECT, Host.State.LOST, Host.State.QUARANTINED)
DRIFT = Counter("gpuyard_placement_drift", "Hosts that differed from the database without a line in the change log")


class HostRow(NamedTuple):
    """What of a host a decision needs."""

    pk: UUID
    owner_id: UUID
    access: str
    tier: str
    state: str
    scheduling: str
    conditions: list[str]
    fabric: str
    price_floor_micros: int
    hours: list[Any]
    hours_time_zone: str
    reliability_bp: int
    driver_version: str
    cuda_version: str
    cpu_milli: int
    ram_mib: int
    disk_mib: int
    cpu_milli_per_gpu: int
    ram_mib_per_gpu: int
    disk_mib_per_gpu: int
    simulated: bool
    bare_metal: bool
    zone: str
    region: str
    currency: str
    ports_open: bool | None  # None: nobody knows

    @property
    def public_id(self) -> str:
        return ids.encode("host", self.pk)


class DeviceRow(NamedTuple):
    """What of a device a decision needs; ten thousand of them are kept."""

    pk: UUID
    host_id: UUID
    model_id: UUID
    health: str
    health_reason: str
    cordoned: bool
    present: bool
    nvlink_clique: int | None
    mig: dict[str, Any] | None


class Line(NamedTuple):
    """Units of a device that are not given back: [first, end) of eight; end_s None = nobody knows the end."""

    first: int
    end: int
    mode: str
    organization: str
    start_s: int
    end_s: int | None


class HostRows(NamedTuple):
    """One host, whole: compared as one value."""

    host: HostRow
    devices: tuple[DeviceRow, ...]
    lines: Mapping[UUID, tuple[Line, ...]]


# Its disk is what volumes have left of it.
_OWN_COLUMNS = ["disk_left_mib" if name == "disk_mib" else name for name in HostRow._fields[:22]]
_ZONE_COLUMNS = ("zone__slug", "zone__region__slug", "zone__region__currency")
_HOST_COLUMNS = (*_OWN_COLUMNS, *_ZONE_COLUMNS, "port_check__reachable")
_DEVICE_COLUMNS = (*DeviceRow._fields[:8], "readings__mig")
# A start that is not a whole second counts from the second it lies in, an end until the next: never too early. What
# renews itself has no end that anybody could count on.
_LINES = """
SELECT device.host_id, held.device_id, lower(held.units), upper(held.units), held.mode, held.organization_id::text,
       floor(extract(epoch FROM lower(held.during)))::bigint,
       CASE WHEN lease.renew AND lease.period <> '' THEN NULL
            ELSE ceil(extract(epoch FROM upper(held.during)))::bigint END
FROM leasing_allocation AS held JOIN agents_device AS device ON device.id = held.device_id
LEFT JOIN leasing_lease AS lease ON lease.id = held.lease_id
WHERE held.released_at IS NULL AND NOT isempty(held.during) AND (%(all)s OR device.host_id = ANY(%(hosts)s))
ORDER BY held.id
"""


def read(host_ids: Collection[UUID] | None) -> dict[UUID, HostRows]:
    """Return these hosts as the database has them, or all; one that serves no more is not among them."""
    left = Greatest(F("disk_mib") - F("volumes_mib"), 0)
    hosts = Host.objects.filter(state__in=SERVING).annotate(disk_left_mib=left).order_by("pk")
    devices = Device.objects.filter(model__isnull=False, host__state__in=SERVING).order_by("host_id", "index")
    if host_ids is not None:
        hosts, devices = hosts.filter(pk__in=host_ids), devices.filter(host__in=host_ids)
    found = [HostRow(*row) for row in hosts.values_list(*_HOST_COLUMNS)]
    of_host: dict[UUID, list[DeviceRow]] = defaultdict(list)
    for row in devices.values_list(*_DEVICE_COLUMNS):
        of_host[row[1]].append(DeviceRow(*row))
    lines: dict[UUID, dict[UUID, list[Line]]] = defaultdict(lambda: defaultdict(list))
    with connection.cursor() as sql:
        sql.execute(_LINES, {"all": host_ids is None, "hosts": list(host_ids or ())})
        for host_id, device_id, *line in sql.fetchall():
            lines[host_id][device_id].append(Line(*line))
    return {
        host.pk: HostRows(host, tuple(of_host[host.pk]), {key: tuple(held) for key, held in lines[host.pk].items()})
        for host in found
    }


class Rows:
    """All hosts in memory, and a number for each that grows when it is another one than before."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.forget()

    def forget(self) -> None:
        """Know nothing: the next refresh reads everything."""
        self.hosts: dict[UUID, HostRows] = {}
        self.versions: dict[UUID, int] = {}
        self.models: dict[UUID, GpuModel] = {}
        self.models_version = 0
        self._cursor: int | None = None
        self._unsettled: frozenset[UUID] = frozenset()
        self._checked = 0.0
        self._version = 0

    def refresh(self) -> None:
        """Read again what the log names; everything at first, and when CHECK_S have passed."""
        changes = capacity.changed_since(self._cursor, unsettled=True)
        if changes.everything:
            self._put(read(None), gone=self.hosts.keys())
        elif again := changes.hosts | self._unsettled:
            # What was seen of a transaction that had not settled may have been taken back, and its line with it.
            self._put(read(again), gone=again)
        self._cursor, self._unsettled = changes.cursor, changes.unsettled
        if changes.everything:
            self._checked = time.monotonic()
        elif time.monotonic() - self._checked >= CHECK_S:
            self.check()
        self._know_models()

    def check(self) -> set[UUID]:
        """Compare with the whole database; put right and return what differs and is not in the log."""
        self._checked = time.monotonic()
        now = read(None)
        # What was written between the last look at the log and this reading is no drift.
        known = capacity.changed_since(self._cursor, unsettled=True).hosts
        differs = {pk for pk in now.keys() | self.hosts.keys() if now.get(pk) != self.hosts.get(pk)} - known
        if differs:
            DRIFT.inc(len(differs))
            self._put({pk: now[pk] for pk in differs if pk in now}, gone=differs)
        self._know_models(again=True)
        return differs

    def _put(self, found: Mapping[UUID, HostRows], *, gone: Iterable[UUID]) -> None:
        for pk in set(gone) - found.keys():
            self.hosts.pop(pk, None)
            self.versions.pop(pk, None)
        for pk, rows in found.items():
            if self.hosts.get(pk) != rows:
                self._version += 1
                self.hosts[pk], self.versions[pk] = rows, self._version

    def _know_models(self, *, again: bool = False) -> None:
        needed = {device.model_id for rows in self.hosts.values() for device in rows.devices} if again else set()
        if not again:
            fresh = [rows for pk, rows in self.hosts.items() if self.versions[pk] > self.models_version]
            needed = {device.model_id for rows in fresh for device in rows.devices} - self.models.keys()
        self.models_version = self._version
        if not needed:
            return
        found = GpuModel.objects.in_bulk(needed)
        changed = {
            pk for pk, model in found.items() if pk in self.models and _figures(model) != _figures(self.models[pk])
        }
        self.models |= found
        for pk, rows in self.hosts.items():
            if changed and any(device.model_id in changed for device in rows.devices):
                self._version += 1
                self.versions[pk] = self._version


def _figures(model: GpuModel) -> tuple[Any, ...]:
    return (
        model.slug, model.memory_gib, model.vendor, model.segment, model.compute_capability, model.fractions,
        model.mig_profiles,
    )  # fmt: skip
