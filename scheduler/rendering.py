"""Leases, their events and charges as the API shows them. A page of leases costs as many queries as one lease."""

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from agents import machines
from agents.models import Host, Workload
from apikit.instants import instant_or_none as instant
from apikit.language import chosen
from apikit.money import Money
from billing import metering
from leasing import actions
from leasing.models import Allocation, Lease, LeaseEvent, LeaseMember
from leasing.notice_models import Notice
from leasing.states import State
from leasing.terms import Term
from scheduler import endpoints

_RUNS = {"ready": "running"}
_STOPS = frozenset({State.PARKED, State.ENDING, State.ENDED})


def leases(rows: Sequence[Lease], *, at: datetime, with_cost: bool) -> list[dict[str, Any]]:
    """Return the leases with their members. with_cost: also what each has cost until `at`, from its segments."""
    bound = [row for row in rows if row.epoch > 0]  # before its first assignment a lease has none of these
    members = _members(bound)
    notices = _notices(bound)
    workloads = _workloads(bound)
    devices = _devices(bound)
    return [
        _lease(
            row, members[row.pk], workloads[row.public_id], devices[row.pk], notices[row.pk], at=at, with_cost=with_cost
        )
        for row in rows
    ]


def lease(row: Lease, *, at: datetime) -> dict[str, Any]:
    return leases([row], at=at, with_cost=True)[0]


def _lease(
    row: Lease, members: list[LeaseMember], workloads: dict[tuple[int, int], Workload],
    devices: dict[tuple[int, int], list[Allocation]], notices: list[Notice], *, at: datetime, with_cost: bool,
) -> dict[str, Any]:  # fmt: skip
    # A lease that waits again has given its members up, whatever their hosts said last.
    current = [member for member in members if member.epoch == row.epoch and row.state != State.PENDING]
    term = Term(row.term_kind, row.period, row.renew, row.start_at, row.end_at, row.duration_s)
    return {
        "id": row.public_id,
        "version": row.version,
        "state": row.state,
        "state_since": instant(row.state_since),
        "actions": actions.of(row),
        "request": row.request,
        "image": row.image,
        "image_reference": row.image_reference,
        "term": term.to_json(),
        "name": row.name,
        "labels": row.labels,
        "command": row.command,
        "ssh_keys": row.ssh_keys,
        "secrets": row.secrets,
        "registry_secret": row.registry_secret or None,
        "volumes": [{"name": each["name"], "path": each["path"], "id": each["volume"]} for each in row.volumes],
        "jupyter": row.jupyter,
        "health": row.health,
        "read_only": row.read_only,
        "on_interrupt": row.on_interrupt,
        "on_exit": row.on_exit,
        "notice_s": row.notice_s,
        "min_runtime_s": row.min_runtime_s,
        "may_move": row.may_move,
        "notices": [_notice(told) for told in notices],
        "starts_at": _starts_at(row, devices),
        "gpu_count": row.gpu_count,
        "bare": row.is_bare,
        "simulated": row.simulated,
        "created_at": instant(row.requested_at),
        "active_since": instant(row.first_active_at),
        "ended_at": instant(row.ended_at),
        "end_reason": row.ending_reason or None,
        "end_detail": row.ending_detail or None,
        "exit_code": row.exit_code,
        "why_waiting": chosen(row.why_waiting) if row.why_waiting else None,
        "queue_place": row.queue_place,
        "eta": row.eta,
        "price": _price(row, current),
        "held": Money(_held_micros(row), row.currency).to_json(),
        "cost": _cost(row, at) if with_cost else _final_cost(row),
        "members": _members_shown(row, current, workloads, devices),
    }


def _held_micros(row: Lease) -> int:
    """Return what is held for its first minutes: until it burns for the first time, or is over."""
    return 0 if row.first_active_at or row.state == State.ENDED else row.held_micros


def _members_shown(
    row: Lease, current: list[LeaseMember], workloads: dict[tuple[int, int], Workload],
    devices: dict[tuple[int, int], list[Allocation]],
) -> list[dict[str, Any]]:  # fmt: skip
    whole = [w.pk for w in workloads.values() if w.kind == Workload.Kind.MACHINE]
    ways_in = machines.doors(whole) if whole else {}
    shown = []
    for member in current:
        workload = workloads.get((member.epoch, member.rank))
        line = _member(row, member, workload, devices.get((member.epoch, member.rank), []))
        shown.append(line | {"ssh": ways_in.get(workload.pk) if workload else None})
    return shown


def _starts_at(row: Lease, devices: dict[tuple[int, int], list[Allocation]]) -> str | None:
    """Return when a scheduled lease begins: as asked for, or when others have left its GPUs."""
    if row.state != State.SCHEDULED:
        return None
    mine = [held.during.lower for (epoch, _), rows in devices.items() if epoch == row.epoch for held in rows]
    return instant(max(mine, default=row.start_at))


def _notice(told: Notice) -> dict[str, Any]:
    return {
        "cause": told.cause,
        "given_at": instant(told.given_at),
        "ends_at": instant(told.ends_at),
        "detail": told.detail,
    }


def _price(row: Lease, members: list[LeaseMember]) -> dict[str, Any] | None:
    if not members:
        return None
    dearest = max(member.price_micros_per_hour for member in members)
    total = sum(member.price_micros_per_hour * member.gpu_count for member in members)
    return Money(dearest, row.currency).to_json() | {
        "per": "gpu_hour",
        "total_per_hour": Money(total, row.currency).to_json(),
    }


def _cost(row: Lease, at: datetime) -> dict[str, Any]:
    if row.meter_seq == 0:  # no meter of it ever ran, so there is nothing to add up
        return {
            "billable_seconds": 0,
            "charged": Money(row.charged_micros or 0, row.currency).to_json(),
            "running": False,
            "final": row.charged_micros is not None,
        }
    cost = metering.cost(reference=row.public_id, at=row.ended_at or at)
    charged = row.charged_micros if row.charged_micros is not None else cost.charged_micros
    return {
        "billable_seconds": cost.seconds,
        "charged": Money(charged, row.currency).to_json(),
        "running": cost.running,
        "final": row.charged_micros is not None,
    }


def _final_cost(row: Lease) -> dict[str, Any] | None:
    if row.charged_micros is None:
        return None
    return {"charged": Money(row.charged_micros, row.currency).to_json(), "running": False, "final": True}


def _member(row: Lease, member: LeaseMember, workload: Workload | None, held: list[Allocation]) -> dict[str, Any]:
    step = workload.step if workload else "absent"
    if workload and workload.gone_at:
        step = "gone"  # also where its host was never told of it
    elif workload and member.host.state == Host.State.LOST and not workload.exited_at:
        step = "unknown"  # what it said last is no news any more
    elif workload and not workload.exited_at and (row.state in _STOPS or not workload.wanted):
        step = "stopping"  # whatever it said last: it is told to, or will be in a moment
    return {
        "rank": member.rank,
        "host": member.host.public_id,
        "host_name": member.host.name,
        "host_state": member.host.state,
        "region": member.host.zone.region.slug,
        "zone": member.host.zone.slug,
        "state": _RUNS.get(step, step),
        "detail": workload.detail if workload else "",
        "progress": workload.progress if workload else {},
        "container": (workload.container or None) if workload else None,
        "image_digest": (workload.image_digest or None) if workload else None,
        "ports": workload.ports if workload else {},
        "endpoints": endpoints.of(member.host, workload, row.service_ports),
        "unhealthy": (workload.unhealthy or None) if workload else None,
        "gpu_count": member.gpu_count,
        "gpus": [
            {
                "uuid": one.device.uuid,
                "model": one.device.model.slug if one.device.model else None,
                "units": [one.units.lower, one.units.upper],
            }
            for one in held
        ],
        "simulated": member.host.simulated,
    }


def _notices(rows: Sequence[Lease]) -> dict[UUID, list[Notice]]:
    """Return what the leases have been told of ends ahead, the nearest first."""
    found: dict[UUID, list[Notice]] = defaultdict(list)
    if rows:
        told = Notice.objects.filter(lease__in=[row.pk for row in rows], closed_at=None)
        for notice in told.order_by("lease", "ends_at"):
            found[notice.lease_id].append(notice)
    return found


def _members(rows: Sequence[Lease]) -> dict[UUID, list[LeaseMember]]:
    found: dict[UUID, list[LeaseMember]] = defaultdict(list)
    if not rows:
        return found
    wanted = LeaseMember.objects.filter(lease__in=[row.pk for row in rows]).select_related("host__zone__region")
    for member in wanted.order_by("lease", "epoch", "rank"):
        found[member.lease_id].append(member)
    return found


def _workloads(rows: Sequence[Lease]) -> dict[str, dict[tuple[int, int], Workload]]:
    found: dict[str, dict[tuple[int, int], Workload]] = defaultdict(dict)
    if not rows:
        return found
    for workload in Workload.objects.filter(reference__in=[row.public_id for row in rows]):
        found[workload.reference][workload.epoch, workload.member] = workload
    return found


def _devices(rows: Sequence[Lease]) -> dict[UUID, dict[tuple[int, int], list[Allocation]]]:
    found: dict[UUID, dict[tuple[int, int], list[Allocation]]] = defaultdict(lambda: defaultdict(list))
    if not rows:
        return found
    held = Allocation.objects.filter(lease__in=[row.pk for row in rows]).select_related("device__model")
    for allocation in held.order_by("lease", "rank", "device__index"):
        if allocation.lease_id is not None:
            found[allocation.lease_id][allocation.epoch, allocation.rank].append(allocation)
    return found


def event(row: LeaseEvent) -> dict[str, Any]:
    return {
        "seq": row.seq,
        "at": instant(row.at),
        "from_state": row.from_state or None,
        "to_state": row.to_state,
        "reason": row.reason,
        "detail": row.detail,
        "facts": row.facts,
    }


def charges(row: Lease, *, at: datetime) -> dict[str, Any]:
    """Return what a lease has cost, segment by segment."""
    cost = metering.cost(reference=row.public_id, at=row.ended_at or at)
    lines = [
        {
            "member": line.member,
            "use": line.use,
            "what": line.what,
            "from": instant(line.start),
            "to": instant(line.end),
            "seconds": line.seconds,
            "quantity": line.quantity,
            "price": Money(line.price_micros_per_hour, row.currency).to_json() | {"per": "gpu_hour"},
            "charged": Money(line.micros, row.currency).to_json(),
        }
        for line in cost.lines
    ]
    charged = row.charged_micros if row.charged_micros is not None else cost.charged_micros
    return {
        "id": row.public_id,
        "lines": lines,
        "billable_seconds": cost.seconds,
        "charged": Money(charged, row.currency).to_json(),
        "simulated": row.simulated,
    }
