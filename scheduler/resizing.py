"""Other GPUs for a running lease: decided like any request that comes last, with its own GPUs counted as free.

Its own hosts are asked first, so that as a rule what it has stays and only the difference moves. What waiting leases
will take is not taken from them: nobody overtakes the queue by growing.
"""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Any

from django.conf import settings
from django.db import transaction

from leasing import calendar, rebinding, requesting
from leasing.calendar import DevicesTaken
from leasing.grammar import Request
from leasing.models import Lease
from leasing.rebinding import ChangedMeanwhile
from scheduler import asks, planning, recovery, second_opinion
from scheduler import pool as pools
from scheduler.placement import Ask, Placement, Refusal
from scheduler.placement.snapshot import ALL_UNITS
from scheduler.planning import RACES, Decision, NoCapacity
from scheduler.pool import Pool

type Check = Callable[[int], None]


def consider(*, lease: Lease, request: Request, at: datetime) -> Decision:
    """Decide what the lease would get instead; nothing is written."""
    requesting.check_places(request, currency=lease.currency, regions=lease.constraints.get("regions", ()))
    asked = rebinding.as_resized(lease, request, at=at)
    pool, waiting = planning.after_queue(term=asked.price_term, currency=asked.currency, at=at)
    if all(option.slice is None for option in request.options):
        _free_own(pool, lease, at=at)
    ask = asks.ask_for(asked, pool, at=at, grace_s=int(settings.WORKLOAD_STOP_GRACE_S))
    answer = _at_home_or_elsewhere(pool, lease, ask)
    if isinstance(answer, Placement):
        second_opinion.check(pool, ask, answer)
    return Decision(asked, answer, pool, len(waiting) + 1, waiting, at)


def _free_own(pool: Pool, lease: Lease, *, at: datetime) -> None:
    """Take the whole GPUs that the lease runs on for free in the overlay; a slice that it has stays where it is."""
    own = {
        str(row.device_id)
        for row in calendar.live(lease_id=lease.pk)
        if row.epoch == lease.epoch and (row.units.lower, row.units.upper) == calendar.WHOLE
    }
    now = pools.seconds(at)
    for key, host in pool.hosts.items():
        if any(str(device.key) in own for device in host.devices):
            devices = tuple(
                replace(d, busy=tuple(b for b in d.busy if b.units != ALL_UNITS or b.start_s > now))
                if str(d.key) in own else d
                for d in host.devices
            )  # fmt: skip
            pool.hosts[key] = replace(host, devices=devices)


def _at_home_or_elsewhere(pool: Pool, lease: Lease, ask: Ask) -> Placement | Refusal:
    at_home = pool.keys_of({str(row.host_id) for row in lease.members.filter(epoch=lease.epoch)})
    views = [view for key, view in pool.hosts.items() if key in at_home]
    answer = pool.decider.decide(views, ask, explain=False)
    return answer if isinstance(answer, Placement) else pool.decide(ask)


def consider_elsewhere(*, lease: Lease, at: datetime) -> Decision:
    """Decide on which other hosts the lease would have the same; nothing is written."""
    pool, waiting = planning.after_queue(term=lease.price_term, currency=lease.currency, at=at)
    ask = asks.ask_for(lease, pool, at=at, grace_s=int(settings.WORKLOAD_STOP_GRACE_S))
    here = pool.keys_of({str(row.host_id) for row in lease.members.filter(epoch=lease.epoch)})
    index = lease.option_index or 0  # of several that it would have taken, the one that it has
    ask = replace(ask, options=(ask.options[index],), exclude_hosts=ask.exclude_hosts | here)
    answer = pool.decide(ask)
    if isinstance(answer, Placement):
        second_opinion.check(pool, ask, answer)
        answer = replace(answer, option_index=index)
    return Decision(lease, answer, pool, len(waiting) + 1, waiting, at)


def plan_of_move(*, lease: Lease, at: datetime) -> dict[str, Any]:
    """Return where a move would lead, as a dry run does; raise NoCapacity, and write nothing."""
    return _plan(consider_elsewhere(lease=lease, at=at), request=lease.request)


def _read_again(lease: Lease, check: Check) -> Lease:
    lease = Lease.objects.select_related("organization").get(pk=lease.pk)
    check(lease.version)
    return lease


@transaction.atomic
def move(*, lease: Lease, at: datetime, check: Check = lambda _: None) -> Lease:
    """Give the lease the same on other hosts at once or raise NoCapacity; nothing is given up before that is held.

    check: raises if a version of the lease is not to be acted on; asked again where it changes before it is locked.
    """
    for _ in range(RACES):
        decision = consider_elsewhere(lease=lease, at=at)
        if isinstance(decision.answer, Refusal):
            raise planning.refusal(decision)
        act = asks.assignment(decision.draft, decision.answer, decision.pool, at=at)
        try:
            return rebinding.move_away(
                lease_id=lease.pk, version=lease.version, assignment=act, at=at,
                last_good=recovery.usable_until(lease, at=at),
            )  # fmt: skip
        except DevicesTaken:
            continue
        except ChangedMeanwhile:
            lease = _read_again(lease, check)
    raise NoCapacity("Somebody else took the devices in the same moment.", reasons=[], would_help=[])


def plan(*, lease: Lease, request: Request, at: datetime) -> dict[str, Any]:
    """Return what resizing would give and cost, as a dry run does; raise NoCapacity, and write nothing."""
    return _plan(consider(lease=lease, request=request, at=at), request=str(request))


def _plan(decision: Decision, *, request: str) -> dict[str, Any]:
    if isinstance(decision.answer, Refusal):
        raise planning.refusal(decision)
    act = asks.assignment(decision.draft, decision.answer, decision.pool, at=decision.at)
    return {
        "request": request,
        "currency": decision.draft.currency,
        "placement": [planning.member(decision, rank) for rank in range(len(decision.answer.members))],
        "price_micros_per_hour": act.micros_per_hour,
        "start": {"at": decision.at, "certainty": "certain"},
        "restarts": True,
        "why_waiting": None,
        "queue_place": None,
    }


@transaction.atomic
def resize(*, lease: Lease, request: Request, at: datetime, check: Check = lambda _: None) -> Lease:
    """Give the lease other GPUs at once or raise NoCapacity; nothing is given up before the new ones are held.

    check: as in `move`.
    """
    for _ in range(RACES):
        decision = consider(lease=lease, request=request, at=at)
        if isinstance(decision.answer, Refusal):
            raise planning.refusal(decision)
        act = asks.assignment(decision.draft, decision.answer, decision.pool, at=at)
        try:
            return rebinding.resize(
                lease_id=lease.pk, version=lease.version, request=request, assignment=act, at=at,
                last_good=recovery.usable_until(lease, at=at),
            )  # fmt: skip
        except DevicesTaken:
            continue
        except ChangedMeanwhile:
            lease = _read_again(lease, check)
    raise NoCapacity("Somebody else took the devices in the same moment.", reasons=[], would_help=[])
