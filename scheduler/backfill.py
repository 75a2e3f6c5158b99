"""The queue is walked in its order, and each lease takes what it can have; what must wait keeps its place in time.

Conservative backfill: each of the first SHADOWS leases that must wait and whose start follows from known ends keeps the
seats of that start (its promise). Who comes later starts only where that delays nobody before him. A promise is stored
and kept over passes, even against those that come before it in a later order, so that a start that was called certain
is never late; it moves only to an earlier second, or where its devices fail.

The placer, offers, quotes and "now or not at all" walk alike: what is shown can be had, and nobody overtakes the queue.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from uuid import UUID

from leasing import promised_price
from leasing.assigning import Assignment
from leasing.models import Lease
from scheduler import second_opinion
from scheduler.asks import ask_for, assignment, withheld
from scheduler.holding import Holding
from scheduler.maintenance_ahead import Ahead
from scheduler.overlay import Overlay
from scheduler.placement import Ask, Placement, Refusal, units_mask
from scheduler.placement.availability import free_units
from scheduler.pool import Kept, Pool

log = logging.getLogger(__name__)
SHADOWS = 200


@dataclass(frozen=True)
class Standing:
    """How a waiting lease stands, at its turn: what it would have now (placed), or why not, and what is kept for it."""

    lease: Lease
    place: int
    ask: Ask | None = None
    pool: Pool | None = None
    placed: tuple[Placement, Assignment] | None = None
    refusal: Refusal | None = None
    promise: Kept | None = None
    fault: Exception | None = None


@dataclass(frozen=True)
class _Helps:
    """What one walk remembers beside its overlay."""

    book: promised_price.Book
    holding: Holding
    ahead: Ahead


def walk(
    queue: Sequence[Lease], overlay: Overlay, promises: Mapping[UUID, Kept], *, at: datetime, grace_s: int
) -> Iterator[Standing]:
    """Yield how each lease stands, in order. When a lease is yielded, what it takes or keeps is on the overlay."""
    for lease in queue:
        if lease.pk in promises:
            overlay.keep(promises[lease.pk], lease.currency)
    if not queue:
        return
    helps = _Helps(promised_price.Book(), Holding(at), Ahead(at))
    for place, lease in enumerate(queue, start=1):
        try:
            yield _stand(lease, place, overlay, promises.get(lease.pk), helps, at=at, grace_s=grace_s)
        except Exception as fault:  # one that cannot be decided must not stop the others
            log.exception("lease could not be decided", extra={"lease": lease.public_id})
            promise = promises.get(lease.pk)
            if promise is not None and not overlay.keeps(promise, lease.currency):
                overlay.keep(promise, lease.currency)
            yield Standing(lease, place, promise=promise, fault=fault)


def _stand(
    lease: Lease, place: int, overlay: Overlay, promise: Kept | None, helps: "_Helps", *, at: datetime, grace_s: int
) -> Standing:  # fmt: skip
    pool = overlay.pool(lease.price_term, lease.currency)
    ask = ask_for(lease, pool, at=at, grace_s=grace_s)
    if promise is not None:
        overlay.give_back(promise, lease.currency)
    found = _decide(lease, place, ask, pool, helps, afresh=promise is not None, at=at)
    if not isinstance(found, Refusal):
        overlay.keep(Kept(found[0], lease.organization_id, ask.start_s, ask.until_s), lease.currency)
        if promise is not None:
            overlay.reconsider(lease.currency)
        return Standing(lease, place, ask, pool, placed=found)
    kept = _promise(lease, place, ask, pool, found, promise)
    if kept is not None:
        overlay.keep(kept, lease.currency)
    elif (open_for_it := helps.holding.hold(lease, ask, pool)) is not None:
        overlay.keep(open_for_it, lease.currency)
    if promise is not None and kept is not promise:
        overlay.reconsider(lease.currency)
    return Standing(lease, place, ask, pool, refusal=found, promise=kept)


def _decide(
    lease: Lease, place: int, ask: Ask, pool: Pool, helps: "_Helps", *, afresh: bool, at: datetime
) -> tuple[Placement, Assignment] | Refusal:
    """Decide on the hosts that are let for what the lease was promised."""

    def again(ask: Ask) -> Placement | Refusal:
        return pool.decide_again(ask, when=place <= SHADOWS, afresh=afresh)

    while True:
        answer = helps.ahead.decide(ask, pool, again)
        if isinstance(answer, Refusal):
            return answer
        act = assignment(lease, answer, pool, at=at, book=helps.book)
        kept_back = withheld(act, answer, pool)
        if not kept_back:
            second_opinion.check(pool, ask, answer)
            return answer, act
        ask = replace(ask, exclude_hosts=ask.exclude_hosts | kept_back)


def _promise(
    lease: Lease, place: int, ask: Ask, pool: Pool, refusal: Refusal, before: Kept | None
) -> Kept | None:  # fmt: skip
    """Return the seats that are kept for a lease that must wait: those it was promised, or earlier ones."""
    if before is not None and not _still_good(before, ask, pool):
        before = None
    earliest = refusal.earliest_s
    if earliest is None or (before is not None and before.start_s <= earliest):
        return before
    if before is None and place > SHADOWS:
        return None
    return shadow(pool, ask, refusal, organization=lease.organization_id) or before


def shadow(pool: Pool, ask: Ask, refusal: Refusal, *, organization: UUID) -> Kept | None:
    """Return the seats of the earliest start that is known, for as long as was asked; None if there are none."""
    if refusal.earliest_s is None:
        return None
    length = None if ask.until_s is None else ask.until_s - ask.start_s
    until = None if length is None else refusal.earliest_s + length
    found = pool.decide(replace(ask, start_s=refusal.earliest_s, until_s=until), explain=False)
    return Kept(found, organization, refusal.earliest_s, until) if isinstance(found, Placement) else None


def _still_good(kept: Kept, ask: Ask, pool: Pool) -> bool:
    """Return whether promised seats are still free for all of their range, and serve what is asked."""
    if kept.start_s <= ask.now_s or kept.start_s < ask.start_s:
        return False
    for member in kept.placement.members:
        host = pool.hosts.get(str(member.host))
        if host is None or host.out_of_service or host.key in ask.exclude_hosts:
            return False
        if ask.only_hosts is not None and host.key not in ask.only_hosts:
            return False
        devices = {device.key: device for device in host.devices}
        for seat in member.seats:
            device, mask = devices.get(seat.device), units_mask(seat.start, seat.stop)
            free = device and free_units(device, seat.mode, str(kept.organization), kept.start_s, kept.end_s)
            if not free or free & mask != mask:
                return False
    return True
