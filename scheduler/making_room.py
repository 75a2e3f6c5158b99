"""Room for what was refused: a few small leases move, else spot leases (and guests of an owner) are told to leave.

For each waiting lease that ranks above spot, in the order of the queue and on one overlay: what those before it will
have is taken first. Nothing is done where known ends make room as soon. Each decision is one transaction
(`leasing.giving_way`): the leavers' notices, their cut ranges, and the successor's range that begins behind them.
"""

import logging
from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import islice
from uuid import UUID

from django.conf import settings
from django.db import connection, transaction
from django.db.models import F, Q

from agents.models import Host
from leasing import giving_way
from leasing.calendar import DevicesTaken
from leasing.giving_way import Leaver, NotNow
from leasing.models import Lease
from leasing.notice_models import Notice
from leasing.states import State
from scheduler import asks, backfill, clearing, moving, placing, promises, waiting_line
from scheduler.guests import Guest, guests_of
from scheduler.overlay import Overlay
from scheduler.placement import Ask, Placement, Refusal
from scheduler.pool import Kept, seconds

log = logging.getLogger(__name__)
CHOICES_TRIED = 32
MOST_A_PASS = 8
ROOM_LOCK = 0x6770_7902  # as placing.PASS_LOCK, which is taken for the act alone
LOOK_AGAIN_S = 10  # a lease for which no room could be made is tried again after so long
FIRST = "Its GPUs are needed by a lease that comes before spot."
OWN = "The owner of the machine needs it for a lease of his own."
CURES = frozenset({"busy", "gang"})  # what clearing GPUs can cure


def make_room(*, at: datetime) -> int:
    """Make one pass; return for how many leases room was made. Returns at once while another is at it."""
    made = 0
    while made < MOST_A_PASS and _one(at):
        made += 1
    return made


@transaction.atomic
def _one(at: datetime) -> bool:
    """Make room for the first lease of the queue for which it can be; the next is decided on the calendar as it is."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_xact_lock(%s)", [ROOM_LOCK])
        if not cursor.fetchone()[0]:
            return False
    waiting = waiting_line.queue(at=at)[: placing.BATCH]
    if not any(_may_ask(lease) and _is_due(lease, at) for lease in waiting) or not _guests_there():
        return False
    overlay, promised = Overlay(at), promises.of(waiting)
    for lease in waiting:
        if lease.pk in promised:
            overlay.keep(promised[lease.pk], lease.currency)
    return any(_look_at(lease, overlay, promised.get(lease.pk), at=at) for lease in waiting)


def _guests_there() -> bool:
    """Return whether anything runs that could give way to anybody, or could move."""
    running = Lease.objects.filter(state=State.ACTIVE, leaves_at=None)
    guest = Q(term_kind=Lease.TermKind.SPOT) | Q(may_move=True)
    on_shared = Q(members__host__access=Host.Access.SHARED_WHEN_IDLE)
    return running.filter(guest).exists() or running.filter(on_shared).exists()


_tried: dict[UUID, datetime] = {}  # of this process: when room was last looked for in vain


def _is_due(lease: Lease, at: datetime) -> bool:
    tried = _tried.get(lease.pk)
    return tried is None or not timedelta(0) <= at - tried < timedelta(seconds=LOOK_AGAIN_S)


def _may_ask(lease: Lease) -> bool:
    """Return whether others may have to give way to it: spot only to its owner's own machines (see `_guests`)."""
    if lease.term_kind != Lease.TermKind.SPOT:
        return True
    return Host.objects.filter(owner=lease.organization_id, access=Host.Access.SHARED_WHEN_IDLE).exists()


def _look_at(lease: Lease, overlay: Overlay, promise: Kept | None, *, at: datetime) -> bool:
    if promise is not None:
        overlay.give_back(promise, lease.currency)
    pool = overlay.pool(lease.price_term, lease.currency)
    ask = asks.ask_for(lease, pool, at=at, grace_s=settings.WORKLOAD_STOP_GRACE_S)
    answer = pool.decide(ask, explain=False)
    if isinstance(answer, Placement):
        overlay.keep(Kept(answer, lease.organization_id, ask.start_s, ask.until_s), lease.currency)
        return False
    if _may_ask(lease) and _is_due(lease, at) and any(reason.code in CURES for reason in answer.reasons):
        try:
            if moving.for_request(lease, ask, answer, overlay, at=at) or _reclaim(lease, ask, answer, overlay, at=at):
                return True
        except (NotNow, DevicesTaken) as why:
            log.info("room was not made", extra={"lease": lease.public_id, "why": str(why)})
        except Exception:  # one lease must not stop the others; nothing of it was written
            log.exception("room could not be made", extra={"lease": lease.public_id})
        _tried[lease.pk] = at
    shadow = promise or backfill.shadow(pool, ask, answer, organization=lease.organization_id)
    if shadow is not None:
        overlay.keep(shadow, lease.currency)
    return False


def _reclaim(lease: Lease, ask: Ask, refusal: Refusal, overlay: Overlay, *, at: datetime) -> bool:
    """Send the cheapest victims away for a lease, with the longest notice of them; False if there are none."""
    pool = overlay.pool(lease.price_term, lease.currency)
    guests = {guest.key: guest for guest in _guests(lease, at=at)}
    lost = {key: guest.lost_micros for key, guest in guests.items()}
    for choice in islice(clearing.possible(pool, ask, guests, lost), CHOICES_TRIED):
        victims = [guests[key] for key in choice.leases]
        times = clearing.times_of(ask, notice_s=max(guest.lease.notice_s for guest in victims), at=at)
        if times is None or (refusal.earliest_s is not None and refusal.earliest_s <= seconds(times.begins_at)):
            continue
        found = clearing.decide_cleared(pool, ask, choice, victims, times)
        act = asks.assignment(lease, found, pool, at=at) if found else None
        if found is None or act is None or asks.withheld(act, found, pool):
            continue
        own = pool.hosts[str(found.members[0].host)].owner == str(lease.organization_id)
        clearing.after_the_placer()
        giving_way.make_way(
            leavers=[Leaver(guest.lease.pk, guest.lease.epoch, guest.lost_micros) for guest in victims],
            ends_at=times.ends_at, cause=Notice.Cause.OWNER_RETURNS if own else Notice.Cause.SPOT_RECLAIM, at=at,
            detail=OWN if own else FIRST, successor_id=lease.pk, assignment=act, begins_at=times.begins_at,
        )  # fmt: skip
        return True
    return False


def _guests(lease: Lease, *, at: datetime) -> Iterator[Guest]:
    """Yield whom this lease may send away: spot leases after their minimum runtime; on hosts that its organization
    shares when idle, everybody else's but reserved ones. A spot lease sends nobody away but from its owner's hosts.
    """
    running = Lease.objects.filter(state=State.ACTIVE, leaves_at=None, currency=lease.currency)
    own = Host.objects.filter(owner=lease.organization_id, access=Host.Access.SHARED_WHEN_IDLE)
    on_own = Q(members__host__in=own, members__epoch=F("epoch"))
    of_owner = on_own & ~Q(term_kind=Lease.TermKind.RESERVED) & ~Q(organization=lease.organization_id)
    sends_spot_away = lease.term_kind != Lease.TermKind.SPOT
    wanted = of_owner | Q(term_kind=Lease.TermKind.SPOT) if sends_spot_away else of_owner
    own_hosts = set(own.values_list("pk", flat=True))
    for guest in guests_of(list(running.filter(wanted).distinct()), at=at):
        # A gang that stands elsewhere too would clear a machine there that is not its owner's.
        if (sends_spot_away and guest.lease.term_kind == Lease.TermKind.SPOT) or _all_on(guest, own_hosts):
            yield guest


def _all_on(guest: Guest, hosts: set[UUID]) -> bool:
    return all(row.device.host_id in hosts for row in guest.rows)
