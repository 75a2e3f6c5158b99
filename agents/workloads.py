"""What should run on which host. Whoever wants it is an opaque `reference`; the host is told the whole list at a sync.

Each change bumps the host's `generation`, which ends the held sync of that host. Order of locks: the caller's own rows,
the reference (an advisory lock), hosts by id, workloads. A caller that wants several members in one transaction calls
`want` in the order of the hosts' ids, or `want_all` once.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import connection, transaction
from django.db.models import F, QuerySet

from agents import machines
from agents.models import Device, Host, Workload
from agents.protocol import WorkloadSpec, digest
from apikit import statements
from apikit.errors import DomainError


class StaleEpoch(DomainError):
    slug = "stale-epoch"
    title = "A later epoch of this workload is known"


class WorkloadConflict(DomainError):
    slug = "workload-conflict"
    title = "This epoch of the workload is something else already"


class UnknownDevices(DomainError):
    slug = "unknown-devices"
    title = "The host has no such devices"


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """One container that is wanted on a host, or the whole machine: see `want`."""

    reference: str
    member: int
    host_id: UUID
    epoch: int
    spec: Mapping[str, Any]
    valid_for_s: int
    stop_grace_s: int
    not_after: datetime | None
    kind: str = Workload.Kind.CONTAINER
    sealed: str = ""


def want(
    *,
    reference: str,
    member: int,
    host_id: UUID,
    epoch: int,
    spec: Mapping[str, Any],
    valid_for_s: int,
    stop_grace_s: int,
    not_after: datetime | None,
    at: datetime,
    kind: str = Workload.Kind.CONTAINER,
    sealed: str = "",
) -> Workload:
    """Want one container on a host, or the whole machine; return its row. The same call again changes nothing.

    spec: a protocol.WorkloadSpec as JSON. valid_for_s: how long it may run on without hearing from us. not_after: no
    renewal reaches beyond it (end of the term, or of the money); calling again with another one moves it. sealed: what
    `sealed_values.seal` made for it; it stays as it was first given.

    Raises StaleEpoch (a higher epoch of the reference was seen, or this one was given up), WorkloadConflict (the epoch
    exists with another host or spec), UnknownDevices, ProtocolError (the spec cannot be read).
    """
    one = Wanted(
        reference=reference, member=member, host_id=host_id, epoch=epoch, spec=spec, valid_for_s=valid_for_s,
        stop_grace_s=stop_grace_s, not_after=not_after, kind=kind, sealed=sealed,
    )  # fmt: skip
    return want_all([one], at=at)[0]


@transaction.atomic
def want_all(wanted: Sequence[Wanted], *, at: datetime) -> list[Workload]:
    """Want many containers, each as `want` does, in a few statements; all or none."""
    if not wanted:
        return []
    for one in wanted:
        WorkloadSpec.from_json(dict(one.spec))
    references = {one.reference for one in wanted}
    _lock_references(references)
    known: dict[str, list[Workload]] = defaultdict(list)
    for row in Workload.objects.filter(reference__in=references):
        known[row.reference].append(row)
    rows = [_row(one, known[one.reference], at=at) for one in wanted]
    new = [row for row in rows if row._state.adding]
    # Hosts in the order of their ids, once: two who want the same hosts cannot deadlock.
    _bump(Host.objects.filter(pk__in={row.host_id for row in new}))
    _require_devices((row.host_id, row.spec["devices"]) for row in new)
    statements.insert_all(new)
    machines.begin((row for row in new if row.kind == Workload.Kind.MACHINE), at=at)
    return rows


def _row(one: Wanted, known: Sequence[Workload], *, at: datetime) -> Workload:
    """Return the row that is there already, renewed, or a new one that is not written yet."""
    highest = max((row.epoch for row in known), default=one.epoch)
    if one.epoch < highest:
        raise StaleEpoch(f"Epoch {one.epoch} of {one.reference} is below {highest}.", epoch=one.epoch, highest=highest)
    spec_hash = digest(dict(one.spec))
    for row in known:
        if (row.member, row.epoch) == (one.member, one.epoch):
            return _want_again(row, one.host_id, spec_hash, one.valid_for_s, one.stop_grace_s, one.not_after)
    return Workload(
        host_id=one.host_id,
        kind=one.kind,
        reference=one.reference,
        member=one.member,
        epoch=one.epoch,
        spec=dict(one.spec),
        spec_hash=spec_hash,
        valid_for_s=one.valid_for_s,
        stop_grace_s=one.stop_grace_s,
        not_after=one.not_after,
        sealed=one.sealed,
        wanted_at=at,
    )


def _want_again(
    workload: Workload,
    host_id: UUID,
    spec_hash: str,
    valid_for_s: int,
    stop_grace_s: int,
    not_after: datetime | None,
) -> Workload:
    if not workload.wanted:
        raise StaleEpoch(f"{workload} was given up.", epoch=workload.epoch, highest=workload.epoch)
    if (workload.host_id, workload.spec_hash) != (host_id, spec_hash):
        raise WorkloadConflict(f"{workload} is wanted on another host or with another spec.")
    terms = {"valid_for_s": valid_for_s, "stop_grace_s": stop_grace_s, "not_after": not_after}
    if any(getattr(workload, name) != value for name, value in terms.items()):
        _bump(Host.objects.filter(pk=host_id))
        Workload.objects.filter(pk=workload.pk).update(**terms)
        workload.refresh_from_db()
    return workload


@transaction.atomic
def move_end(*, reference: str, epoch: int, not_after: datetime | None, at: datetime) -> int:
    """Let no renewal of this epoch reach beyond another instant (None: no end); return how many workloads moved."""
    _lock_reference(reference)
    moved = Workload.objects.filter(reference=reference, epoch=epoch, wanted=True).exclude(not_after=not_after)
    _bump(Host.objects.filter(pk__in=moved.values("host")))
    machines.wake(moved.filter(kind=Workload.Kind.MACHINE).values_list("pk", flat=True), at=at)
    return moved.update(not_after=not_after)


@transaction.atomic
def change_validity(*, reference: str, epoch: int, valid_for_s: int) -> int:
    """Let this epoch run on unheard for another time from the next answer on; return how many workloads changed.

    What earlier answers allowed stays in `last_valid_until`, which the fence goes by, until it has passed.
    """
    _lock_reference(reference)
    changed = Workload.objects.filter(reference=reference, epoch=epoch, wanted=True).exclude(valid_for_s=valid_for_s)
    _bump(Host.objects.filter(pk__in=changed.values("host")))
    return changed.update(valid_for_s=valid_for_s)


@transaction.atomic
def notify(*, reference: str, epoch: int, notice: Mapping[str, Any] | None) -> int:
    """Have the containers of this epoch told of an end ahead (None: of none); return how many were told otherwise."""
    _lock_reference(reference)
    told = Workload.objects.filter(reference=reference, epoch=epoch, wanted=True)
    changed = [workload for workload in told if workload.notice != notice]
    if not changed:
        return 0
    _bump(Host.objects.filter(pk__in={workload.host_id for workload in changed}))
    return told.filter(pk__in=[workload.pk for workload in changed]).update(notice=notice)


@transaction.atomic
def unwant(
    *,
    reference: str,
    at: datetime,
    reason: str,
    epoch: int | None = None,
    member: int | None = None,
    keeps_scratch: bool = False,
) -> int:
    """Give up all workloads of the reference, or those of one epoch or member; return how many were still wanted.

    A container that no answer ever named cannot be running anywhere: that is gone at once. A machine is taken back.
    keeps_scratch: they may come back to the same hosts, whose scratch of them stays until `drop_scratch`.
    """
    _lock_reference(reference)
    wanted = Workload.objects.filter(reference=reference, wanted=True)
    if epoch is not None:
        wanted = wanted.filter(epoch=epoch)
    if member is not None:
        wanted = wanted.filter(member=member)
    hosts = Host.objects.filter(pk__in=wanted.values("host"))
    generations = _bump(hosts)
    given_up = 0
    for host_id, generation in generations.items():
        there = wanted.filter(host=host_id)
        there.filter(last_valid_until__isnull=True, kind=Workload.Kind.CONTAINER).update(gone_at=at)
        machines.wake(there.filter(kind=Workload.Kind.MACHINE).values_list("pk", flat=True), at=at)
        given_up += there.update(
            wanted=False,
            sealed="",
            keeps_scratch=keeps_scratch,
            unwanted_at=at,
            unwanted_reason=reason[:100],
            unwanted_generation=generation,
        )
    return given_up


@transaction.atomic
def drop_scratch(*, reference: str) -> int:
    """Let the hosts remove what they kept of the reference on their disks; return on how many workloads' behalf."""
    kept = Workload.objects.filter(reference=reference, keeps_scratch=True)
    if not kept.exists():
        return 0
    _bump(Host.objects.filter(pk__in=kept.values("host")))
    return kept.update(keeps_scratch=False)


def kept_scratch(host_id: UUID) -> list[str]:
    """Return the references whose scratch on the host is to stay though nothing of them is to run there."""
    kept = Workload.objects.filter(host=host_id, keeps_scratch=True)
    return sorted(set(kept.values_list("reference", flat=True)))


def of(reference: str) -> list[Workload]:
    """Return the workloads of the reference of which something may still be running, by epoch and member."""
    live = Workload.objects.filter(reference=reference, gone_at__isnull=True)
    return list(live.select_related("host").order_by("epoch", "member"))


def all_gone(reference: str, epoch: int) -> bool:
    """Return whether nothing is left of this epoch and of those before it, as acknowledged by the hosts."""
    return not Workload.objects.filter(reference=reference, epoch__lte=epoch, gone_at__isnull=True).exists()


def live_on(host_id: UUID) -> QuerySet[Workload]:
    """Return what should run on the host, or may still be running there."""
    return Workload.objects.filter(host=host_id, gone_at__isnull=True)


def _lock_reference(reference: str) -> None:
    _lock_references({reference})


def _lock_references(references: set[str]) -> None:
    # Two epochs of one reference are wanted on two hosts, so no host's lock would make "look, then insert" one step.
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_advisory_xact_lock(hashtextextended(reference, 20261130))"
            " FROM (SELECT unnest(%s::text[]) AS reference ORDER BY 1) AS wanted",
            [sorted(references)],
        )


def _bump(hosts: QuerySet[Host]) -> dict[UUID, int]:
    """Lock the hosts in the order of their ids and move each one's generation; return the new ones."""
    locked = list(hosts.order_by("pk").select_for_update(no_key=True).values_list("pk", flat=True))
    Host.objects.filter(pk__in=locked).update(generation=F("generation") + 1)
    return dict(Host.objects.filter(pk__in=locked).values_list("pk", "generation"))


def _require_devices(wanted: Iterable[tuple[UUID, list[str]]]) -> None:
    asked = list(wanted)
    there: dict[UUID, set[str]] = defaultdict(set)
    rows = Device.objects.filter(host__in={host_id for host_id, _ in asked}) if asked else Device.objects.none()
    for host_id, uuid in rows.values_list("host_id", "uuid"):
        there[host_id].add(uuid)
    for host_id, uuids in asked:
        if missing := sorted(set(uuids) - there[host_id]):
            raise UnknownDevices(f"Host {host_id} has no {', '.join(missing)}.", devices=missing)
