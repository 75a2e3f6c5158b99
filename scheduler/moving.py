"""Large requests get through: a few small leases are restarted elsewhere, off one host. And an operator's moves.

At most MOST leases of one GPU or less, each at most once a day; altogether no more than a small part of the GPUs that
were asked for in the last week (`MOVES_ALLOWANCE_BP`). Every destination is found first, on the overlay, and held; the
leases are told, and move at the end of their notice (`leasing.giving_way`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import islice
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models import Q, Sum

from apikit.errors import DomainError
from billing.models import PriceVersion
from leasing import giving_way
from leasing.assigning import Assignment
from leasing.giving_way import Leaver, NotNow
from leasing.models import Lease
from leasing.notice_models import LeaseMove, Notice
from leasing.states import State
from scheduler import asks, clearing, second_opinion
from scheduler import pool as pools
from scheduler.clearing import Times
from scheduler.guests import Guest, guests_of
from scheduler.overlay import Overlay
from scheduler.placement import Ask, Placement, Refusal, decide
from scheduler.pool import Pool, seconds

MOST = 8
CHOICES_TRIED = 16
WHOLE_GPU_MILLI = 1000
UNIT_MILLI = 125
ONCE_IN = timedelta(days=1)
COUNTED = timedelta(days=7)
WHY = "It is restarted on other GPUs, so that a large request finds room."
Take = tuple[Placement, UUID, int, int | None]


class CannotMove(DomainError):
    slug = "no-capacity"
    title = "The lease cannot be moved now"


def for_request(lease: Lease, ask: Ask, refusal: Refusal, overlay: Overlay, *, at: datetime) -> bool:
    """Move small leases off one host for a refused request for several whole GPUs of it; False if that is not possible.

    Raises giving_way.NotNow and calendar.DevicesTaken.
    """
    if lease.term_kind == Lease.TermKind.SPOT:
        return False
    large = tuple(o for o in ask.options if o.nodes == 1 and o.slice is None and o.count > 1)
    budget = allowance_milli(at=at) if large else 0
    if budget <= 0:
        return False
    guests = {guest.key: guest for guest in _movable(lease.currency, at=at)}
    sizes = {key: _milli(guest) for key, guest in guests.items()}
    pool = overlay.pool(lease.price_term, lease.currency)
    found = clearing.possible(pool, replace(ask, options=large), guests, sizes)
    able = (c for c in found if len(c.leases) <= MOST and c.lost_micros <= budget)  # here it is milli that is weighed
    for choice in islice(able, CHOICES_TRIED):
        victims = [guests[key] for key in choice.leases]
        times = clearing.times_of(ask, notice_s=max(guest.lease.notice_s for guest in victims), at=at)
        if times is None or (refusal.earliest_s is not None and refusal.earliest_s <= seconds(times.begins_at)):
            continue
        guest_seats = clearing.decide_cleared(pool, ask, choice, victims, times)
        act = asks.assignment(lease, guest_seats, pool, at=at) if guest_seats else None
        if guest_seats is None or act is None or asks.withheld(act, guest_seats, pool):
            continue
        taken: list[Take] = [(guest_seats, lease.organization_id, seconds(times.begins_at), ask.until_s)]
        leavers = _leavers(victims, overlay, taken, times, at=at)
        if leavers is not None:
            clearing.after_the_placer()
            giving_way.make_way(
                leavers=leavers, ends_at=times.ends_at, cause=Notice.Cause.MOVE, at=at, detail=WHY,
                successor_id=lease.pk, assignment=act, begins_at=times.begins_at,
            )  # fmt: skip
            return True
    return False


def _leavers(
    victims: Sequence[Guest], overlay: Overlay, taken: list[Take], times: Times, *, at: datetime
) -> list[Leaver] | None:
    """Find a place for every one of them beside what is taken, the largest first; None if one has none."""
    leavers = []
    for guest in sorted(victims, key=lambda guest: (-_milli(guest), guest.key)):
        pool = overlay.pool(guest.lease.price_term, guest.lease.currency)
        beside = Pool(hosts=dict(pool.hosts), prices=pool.prices, capacity=pool.capacity)
        for take in taken:
            beside.take(take[0], organization=take[1], start_s=take[2], end_s=take[3])
        found = destination(guest, beside, times.ends_at, at=at)
        if found is None:
            return None
        placement, act, until_s = found
        taken.append((placement, guest.lease.organization_id, seconds(times.ends_at), until_s))
        leavers.append(Leaver(guest.lease.pk, guest.lease.epoch, guest.lost_micros, act))
    return leavers


def destination(
    guest: Guest, pool: Pool, from_at: datetime, *, at: datetime
) -> tuple[Placement, Assignment, int | None] | None:
    """Return where a lease can go from an instant on, off its present host, for no more than it pays there; or None."""
    lease = guest.lease
    ask = asks.ask_for(lease, pool, at=at, grace_s=settings.WORKLOAD_STOP_GRACE_S)
    here = pool.keys_of({str(row.device.host_id) for row in guest.rows})
    index = lease.option_index or 0
    ask = replace(ask, options=(ask.options[index],), start_s=seconds(from_at), exclude_hosts=ask.exclude_hosts | here)
    if ask.until_s is not None and ask.until_s <= ask.start_s:
        return None
    pays = _pays(lease, at=at)
    while True:
        found = decide(pool.views(), ask, explain=False)
        if not isinstance(found, Placement) or not second_opinion.lawful(pool, ask, found):
            return None
        found = replace(found, option_index=index)
        act = asks.assignment(lease, found, pool, at=at)
        closed = asks.withheld(act, found, pool)
        if act.prices[0][1] > pays:  # it is we who move it: it pays no more than where it is
            closed |= asks.of_its_kind(found, pool)
        if not closed:
            return found, act, ask.until_s
        ask = replace(ask, exclude_hosts=ask.exclude_hosts | closed)


def _pays(lease: Lease, *, at: datetime) -> int:
    """Return what a GPU of the lease costs an hour where it is: what was promised, or what the market asks now."""
    here = lease.members.filter(epoch=lease.epoch).order_by("rank")[0]
    if lease.term_kind == Lease.TermKind.SPOT:
        now = PriceVersion.objects.filter(series__versions=here.price_version_id, during__contains=at).first()
        return int(now.price_micros_per_hour if now else here.price_micros_per_hour)
    return int(here.price_micros_per_hour)


def _milli(guest: Guest) -> int:
    units: int = sum(row.units.upper - row.units.lower for row in guest.rows)
    return units * UNIT_MILLI


def _movable(currency: str, *, at: datetime) -> Iterator[Guest]:
    """Yield who may be moved: one GPU or less; spot, a fraction, or a tenant who allowed it; not moved for a day."""
    running = Lease.objects.filter(state=State.ACTIVE, leaves_at=None, currency=currency, gpu_count=1)
    allowed = Q(term_kind=Lease.TermKind.SPOT) | Q(may_move=True) | Q(sku__contains="/")
    lately = LeaseMove.objects.filter(planned_at__gt=at - ONCE_IN).values("lease")
    rows = running.filter(allowed).exclude(pk__in=lately)
    # A reserved lease has a place promised: it moves only if its tenant says so.
    rows = rows.exclude(term_kind=Lease.TermKind.RESERVED, may_move=False)
    # What a tenant has done to a whole machine by hand stays on it.
    rows = rows.exclude(constraints__has_key="bare")
    yield from (guest for guest in guests_of(list(rows), at=at) if _milli(guest) <= WHOLE_GPU_MILLI)


def allowance_milli(*, at: datetime) -> int:
    """Return how much GPU may be moved now: a part of what was asked for in the last week, less what was moved.

    Requests for slices count nothing, since that is the careful side.
    """
    since = at - COUNTED
    asked = Lease.objects.filter(requested_at__gt=since, requested_at__lte=at).exclude(sku__contains="/")
    offered = int(asked.aggregate(gpus=Sum("gpu_count"))["gpus"] or 0) * WHOLE_GPU_MILLI
    moved = LeaseMove.objects.filter(planned_at__gt=since, by="placement").exclude(
        done_at=None, notice__closed_at__isnull=False
    )
    used = int(moved.aggregate(milli=Sum("gpu_milli"))["milli"] or 0)
    allowance_bp: int = settings.MOVES_ALLOWANCE_BP
    return int(offered * allowance_bp // 10_000) - used


@transaction.atomic
def off_its_host(*, lease: Lease, by: str, reason: str, at: datetime) -> Notice:
    """Move a lease off its host at the end of its notice, to a place that is held from then on. By an operator.

    Raises CannotMove: it does not run in one machine, or there is no other place for it.
    """
    if lease.state != State.ACTIVE or lease.leaves_at is not None:
        raise CannotMove(f"It is {lease.state}." if lease.leaves_at is None else "It has been told to leave already.")
    if lease.members.filter(epoch=lease.epoch).count() != 1:
        raise CannotMove("A gang is whole or absent: it is not moved by parts.")
    if lease.is_bare:
        raise CannotMove("A whole machine is wiped when it is given back.")
    guest = next(guests_of([lease], at=at, but_young=False), None)
    ends_at = at + timedelta(seconds=lease.notice_s)
    pool = pools.load(term=lease.price_term, currency=lease.currency, at=at)
    found = destination(guest, pool, ends_at, at=at) if guest else None
    if guest is None or found is None:
        raise CannotMove("No other machine has room for it at its price.")
    leaver = Leaver(lease.pk, lease.epoch, guest.lost_micros, found[1])
    try:
        (notice,) = giving_way.make_way(
            leavers=[leaver], ends_at=ends_at, cause=Notice.Cause.MOVE, at=at, detail=reason, by=by
        )
    except NotNow as why:
        raise CannotMove(str(why)) from None
    return notice
