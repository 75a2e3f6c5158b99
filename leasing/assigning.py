"""Decisions are carried out: devices bound, hosts asked to run it, the move written; for one lease or for hundreds.

One path for both, some twenty statements however many leases there are. What is written together and cannot be (the
calendar's constraint refused a range, a row is poisoned) is tried by halves, each half under its own savepoint, until
the one that is to blame stands alone: it is told so, and the others are assigned.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import connection, transaction

from agents import fence
from agents.models import Host, Workload
from apikit import statements
from apikit.errors import DomainError
from leasing import calendar, moves, starting, volumes
from leasing.calendar import DevicesTaken, Seat
from leasing.models import Lease, LeaseMember
from leasing.moves import WrongState
from leasing.states import State

Outcome = Lease | Exception

UNKNOWN_HOST = "a host that this database does not know of"  # it was restored to an earlier state


class NotYet(DomainError):
    """An earlier epoch may still run somewhere: the fence is not safe."""

    slug = "no-capacity"
    title = "The lease's earlier containers are not proven stopped yet"


@dataclass(frozen=True)
class Assignment:
    """A decision to carry out: which seats, of which alternative, at which price."""

    option_index: int
    seats: tuple[Seat, ...]
    sku: str
    prices: dict[int, tuple[int, int]]  # by rank: price version, micro-units per GPU or slice and hour
    facts: dict[str, Any]
    begins_at: datetime | None = None  # when others have left its seats, where that is later than it may start

    @property
    def micros_per_hour(self) -> int:
        return sum(self.prices[seat.rank][1] for seat in self.seats)

    def members(self) -> list[tuple[int, UUID, int]]:
        """Return (rank, host, GPUs) of each member, by rank."""
        hosts = {seat.rank: seat.host_id for seat in self.seats}
        return [(rank, hosts[rank], sum(seat.rank == rank for seat in self.seats)) for rank in sorted(hosts)]


def assign(*, lease_id: UUID, assignment: Assignment, at: datetime) -> Lease:
    """Bind the devices and ask their hosts to run it: `pending` -> `provisioning`, or `scheduled` for a later start.

    Raises DevicesTaken (the calendar's constraint refused), NotYet (the fence), WrongState (it was cancelled, or
    assigned already). Nothing is written then.
    """
    outcome = assign_all([(lease_id, assignment)], at=at)[lease_id]
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


@transaction.atomic
def assign_all(
    acts: Sequence[tuple[UUID, Assignment]], *, at: datetime, known: Mapping[UUID, Lease] | None = None
) -> dict[UUID, Outcome]:
    """Carry out many decisions; return for each lease what it is now, or why it is as it was (what `assign` raises).

    known: the leases as they were read a moment ago (`moves.all_locked`).
    """
    try:
        with transaction.atomic():
            return _together(acts, known, at=at)
    except Exception as fault:
        if len(acts) == 1:
            return {acts[0][0]: fault}
    half = len(acts) // 2
    return assign_all(acts[:half], at=at, known=known) | assign_all(acts[half:], at=at, known=known)


def _together(
    acts: Sequence[tuple[UUID, Assignment]], known: Mapping[UUID, Lease] | None, *, at: datetime
) -> dict[UUID, Outcome]:
    """Assign all that may be; raise, and write nothing, where one of them cannot be written."""
    decided = dict(acts)
    leases = moves.all_locked(decided, known=known)
    refused = _refusals(leases, decided, at=at)
    going = [lease for lease in leases if lease.pk not in refused]
    for lease in going:
        _take_over(lease, decided[lease.pk])
    seats = {lease.pk: decided[lease.pk].seats for lease in going}
    starts = {lease.pk: _starts_later(lease, decided[lease.pk], at) or at for lease in going}
    grace_s = settings.WORKLOAD_STOP_GRACE_S
    calendar.bind_lines(
        (
            lease, seats[lease.pk],
            calendar.range_until(start=starts[lease.pk], end_at=lease.end_at, stop_grace_s=grace_s),
        )
        for lease in going
    )  # fmt: skip
    statements.insert_lines(
        LeaseMember, _MEMBER, [row for lease in going for row in _members(lease, decided[lease.pk])]
    )
    now = [lease for lease in going if starts[lease.pk] == at]
    devices = _devices({seat.device_id for lease in now for seat in seats[lease.pk]})
    starting.want_all(
        [(lease, starting.bound((seat.rank, devices[seat.device_id], seat.units) for seat in seats[lease.pk]))
         for lease in now],
        at=at,
    )  # fmt: skip
    volumes.bind_placed(going, at=at)
    for lease in going:
        moves.enter(lease, State.PROVISIONING if starts[lease.pk] == at else State.SCHEDULED, at=at)
    _write(going)
    moves.record_all(
        [
            moves.Move(lease, State.PENDING, State(lease.state), "placed", "", decided[lease.pk].facts)
            for lease in going
        ],
        at=at,
    )
    return refused | {lease.pk: lease for lease in going}


_OF_A_HOST = (
    "owner_id",
    "address",
    "fabric",
    "sealing_key",
    "cpu_milli_per_gpu",
    "ram_mib_per_gpu",
    "disk_mib_per_gpu",
)


_DEVICES = "SELECT id, uuid, index, host_id FROM agents_device WHERE id = ANY(%s::uuid[])"


def _devices(device_ids: set[UUID]) -> dict[UUID, starting.BoundDevice]:
    """Return the devices with their hosts: of both, what a start needs to know, and not their long reports."""
    with connection.cursor() as cursor:
        cursor.execute(_DEVICES, [statements.uuids(device_ids)])
        found = cursor.fetchall()
    hosts = Host.objects.only(*_OF_A_HOST).in_bulk({host_id for *_, host_id in found})
    return {pk: starting.BoundDevice(uuid, index, hosts[host_id]) for pk, uuid, index, host_id in found}


def _starts_later(lease: Lease, assignment: Assignment, at: datetime) -> datetime | None:
    later = [moment for moment in (lease.start_at, assignment.begins_at) if moment and moment > at]
    return max(later, default=None)


def _refusals(leases: Iterable[Lease], decided: Mapping[UUID, Assignment], *, at: datetime) -> dict[UUID, Outcome]:
    """Return why some of the leases cannot be assigned as they stand."""
    refused: dict[UUID, Outcome] = {}
    now = [lease for lease in leases if not _starts_later(lease, decided[lease.pk], at)]
    unsafe = _unsafe(now, at=at)  # what starts later waits for the fence then
    in_the_way = calendar.all_in_the_way(
        {lease.pk: [(seat.device_id, seat.units) for seat in decided[lease.pk].seats] for lease in now}, at=at
    )
    for lease in leases:
        if lease.state != State.PENDING:
            refused[lease.pk] = WrongState(f"It is {lease.state}, not waiting for devices.", lease=lease)
        elif lease.end_at and lease.end_at <= at:
            refused[lease.pk] = WrongState("Its end has come while it waited.", lease=lease)
        elif lease.pk in unsafe:
            refused[lease.pk] = NotYet(f"Its container on {unsafe[lease.pk]} is not proven stopped.")
        elif lease.pk in in_the_way:
            refused[lease.pk] = DevicesTaken("One of the devices is not given back yet by who had it before.")
    return refused


def _unsafe(leases: Iterable[Lease], *, at: datetime) -> dict[UUID, str]:
    """Return the leases of an earlier epoch that may still run, each with a host on which it may."""
    candidates = list(leases)
    fenced = {lease.pk: UNKNOWN_HOST for lease in candidates if lease.fenced_until and lease.fenced_until > at}
    by_reference = {lease.public_id: lease.pk for lease in candidates if lease.epoch}
    if not by_reference:
        return fenced
    running = Workload.objects.filter(reference__in=by_reference, gone_at__isnull=True)
    return fenced | {
        by_reference[workload.reference]: str(workload.host_id)
        for workload in running
        if (safe_at := fence.safe_at(workload)) is None or safe_at > at
    }


def unsafe_among(leases: Iterable[Lease], *, at: datetime) -> set[UUID]:
    """Return those of the waiting leases whose earlier containers are not proven stopped: `assign` would say NotYet."""
    return set(_unsafe(leases, at=at))


def _take_over(lease: Lease, assignment: Assignment) -> None:
    lease.epoch += 1 + lease.epochs_lost
    lease.option_index = assignment.option_index
    lease.sku = assignment.sku
    lease.price_micros_per_hour = assignment.micros_per_hour
    lease.gpu_count = len(assignment.seats)


_MEMBER = ("lease_id", "epoch", "rank", "host_id", "gpu_count", "price_version_id", "price_micros_per_hour")


def _members(lease: Lease, assignment: Assignment) -> list[tuple[Any, ...]]:
    return [
        (lease.pk, lease.epoch, rank, host_id, gpus, *assignment.prices[rank])
        for rank, host_id, gpus in assignment.members()
    ]


# What an assignment changes on the lease's row: all of `_take_over` and of `moves.enter`.
_WRITE = """
UPDATE leasing_lease AS lease
SET state = new.state, state_since = new.since, version = new.version, check_at = new.check_at, attempts = 0,
    epoch = new.epoch, option_index = new.option_index, sku = new.sku, price_micros_per_hour = new.price,
    gpu_count = new.gpus, why_waiting = NULL, queue_place = NULL, eta = NULL
FROM unnest(%s::uuid[], %s::text[], %s::timestamptz[], %s::int[], %s::timestamptz[], %s::bigint[], %s::smallint[],
            %s::text[], %s::bigint[], %s::int[])
     AS new(id, state, since, version, check_at, epoch, option_index, sku, price, gpus)
WHERE lease.id = new.id
"""


def _write(leases: Sequence[Lease]) -> None:
    rows = [
        (
            lease.pk, str(lease.state), lease.state_since, lease.version, lease.check_at, lease.epoch,
            lease.option_index, lease.sku, lease.price_micros_per_hour, lease.gpu_count,
        )
        for lease in leases
    ]  # fmt: skip
    if rows:
        with connection.cursor() as cursor:
            cursor.execute(_WRITE, [list(column) for column in zip(*rows, strict=True)])
