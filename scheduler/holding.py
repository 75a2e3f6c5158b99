"""A machine is held open for a large request that has waited long, where no known end says when it can start.

Leases without an end give their GPUs back one at a time, and a small request that comes later would take each of them:
who needs several on one machine could wait for ever. So from AFTER_S of waiting on, the first such request has what is
free on one machine kept from those that come after it, until it is enough. Conservative:

* only for whole GPUs on one machine, for leases that rank above spot, and for one machine of a model at a time;
* never against those that come before it in the queue, and never where a start is known (`backfill` promises that);
* no more than what is asked for, and where that is more than a part (1 / PART) of the GPUs of a model, from LONG_S on.

The machine is the one that lacks fewest GPUs, so it is the same one in each pass while no other has more of them free.
Nothing is stored: whoever walks the queue (the placer, offers, plans, "now or not at all") holds the same.
"""

from collections import Counter
from collections.abc import Iterable
from datetime import datetime

from leasing.models import Lease
from scheduler.placement import Ask, HostView, Member, Option, Placement, Seat
from scheduler.placement.availability import free_units, wholly_free
from scheduler.placement.eligibility import Room, Shortfall, examine, has_model, is_visible
from scheduler.placement.pool import stable_hash
from scheduler.placement.snapshot import ALL_UNITS, UNITS
from scheduler.pool import Kept, Pool

AFTER_S, LONG_S = 1800, 6 * 3600
PART = 4
CURABLE = "busy"


class Holding:
    """What one pass holds open. Leases are told to it in the order of the queue."""

    def __init__(self, at: datetime) -> None:
        self._at = at
        self._held: Counter[str] = Counter()  # machines, by model

    def hold(self, lease: Lease, ask: Ask, pool: Pool) -> Kept | None:
        """Return what is kept from those after a lease that was refused without a known start; None: nothing."""
        waits_s = (self._at - lease.requested_at).total_seconds()
        if lease.term_kind == Lease.TermKind.SPOT or waits_s < AFTER_S:
            return None
        for option in ask.options:
            if option.slice is not None or option.nodes != 1 or option.count < 2:
                continue
            hosts = [view for view in pool.hosts.values() if is_visible(view, ask.organization)]
            best = self._nearest([view for view in hosts if has_model(view, option)], option, ask, waits_s)
            if best is not None:
                self._held[best.model] += 1
                return _kept(best, option, ask, lease)
        return None

    def _nearest(self, hosts: Iterable[HostView], option: Option, ask: Ask, waits_s: float) -> HostView | None:
        """Return the machine that lacks fewest GPUs of those on which time alone is in the way."""
        gpus: Counter[str] = Counter()
        able = []
        for view in hosts:
            gpus[view.model] += len(view.devices)
            if view.out_of_service or self._held[view.model]:
                continue
            free = wholly_free(view, ask.organization, ask.start_s, ask.until_s)
            if free > 0 and len(view.devices) >= option.count:
                able.append((-free, len(view.devices), stable_hash(view.key), view))
        for _, _, _, view in sorted(able, key=lambda item: item[:3]):
            if option.count * PART > gpus[view.model] and waits_s < LONG_S:
                continue
            verdict = examine(view, option, ask)
            if isinstance(verdict, Room) or (isinstance(verdict, Shortfall) and verdict.code == CURABLE):
                return view
        return None


def _kept(host: HostView, option: Option, ask: Ask, lease: Lease) -> Kept:
    free = [
        device.key
        for device in host.devices
        if free_units(device, "whole", ask.organization, ask.start_s, ask.until_s) == ALL_UNITS
    ]
    seats = tuple(Seat(key, 0, UNITS, "whole") for key in free[: option.count])
    member = Member(host.key, seats, 0, 0, 0, host.price_micros or 0, reclaimable=False, simulated=host.simulated)
    placement = Placement((member,), 0, 0, ("held_open",))
    return Kept(placement, lease.organization_id, ask.start_s, ask.until_s)
