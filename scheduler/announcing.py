"""Tenants are told before anything ends: what is ahead is read off hosts, terms, wallets and prices, and told once.

Level-triggered: each tick compares what is ahead with the notices that are open. What is not ahead any more (the drain
is called off, the term extended, money came, the successor went away) is taken back; what has come about is closed.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models import F, Q

from agents.models import Host, Workload
from audit import ids
from billing import exhaustion
from billing.models import PriceVersion
from leasing import giving_way, noticing, parking
from leasing.giving_way import Cause, Outcome
from leasing.models import Lease
from leasing.moves import locked
from leasing.notice_models import LEAVING, Notice
from leasing.states import State

log = logging.getLogger(__name__)
AHEAD_S = 600  # of an expiry, and of the end of the money: the longest notice
BALANCE_SLACK_S = 30
TOLD = frozenset({State.PROVISIONING, State.ACTIVE, State.PARKED, State.INTERRUPTED, State.SCHEDULED})


@dataclass(frozen=True)
class Ahead:
    """Something that will end a lease, or take its devices."""

    lease_id: UUID
    cause: Notice.Cause
    ends_at: datetime
    detail: str


def announce(*, at: datetime) -> int:
    """Make one pass; return how many notices were given, taken back or closed."""
    done = _close_what_came(at=at) + _call_off(at=at)
    giving_way.let_go(lease_ids=giving_way.idle_places(), at=at)
    for cause, look in LOOKS.items():
        ahead = {found.lease_id: found for found in look(at)}
        told = {notice.lease_id: notice for notice in Notice.objects.filter(cause=cause, closed_at=None)}
        for lease_id, found in ahead.items():
            if lease_id not in told or _is_news(told[lease_id], found):
                done += _one(_give, lease_id, found, at)
        for lease_id in set(told) - set(ahead):
            done += _one(_withdraw, lease_id, cause, at)
    return done + _tell_new_containers(at=at)


def _tell_new_containers(*, at: datetime) -> int:
    """Tell what was started since a notice was given: a restart in place makes new containers."""
    told = Lease.objects.filter(notices__closed_at=None, notices__isnull=False, state__in=TOLD).distinct()
    epochs = {lease.public_id: lease for lease in told}
    silent = Workload.objects.filter(reference__in=epochs, wanted=True, notice__isnull=True)
    missed = {row.reference for row in silent if row.epoch == epochs[row.reference].epoch}
    return sum(_one(_retell, epochs[reference].pk, None, at) for reference in sorted(missed))


def _retell(lease_id: UUID, _: None, at: datetime) -> bool:
    noticing.tell_hosts(locked(lease_id))
    return True


def _is_news(told: Notice, found: Ahead) -> bool:
    """Return whether the end has moved; that of the money moves a little with everything that starts or stops."""
    off_s = (found.ends_at - told.ends_at).total_seconds()
    return off_s != 0 if found.cause != Cause.BALANCE else abs(off_s) > BALANCE_SLACK_S


def _one[Found](act: Callable[[UUID, Found, datetime], bool], lease_id: UUID, found: Found, at: datetime) -> int:
    """Do one act in its own transaction: one that fails must not stop the others, and is tried at the next tick."""
    try:
        with transaction.atomic():
            return int(act(lease_id, found, at))
    except Exception:
        log.exception("notice could not be given", extra={"lease": str(lease_id)})
        return 0


def _give(lease_id: UUID, found: Ahead, at: datetime) -> bool:
    lease = locked(lease_id)
    if lease.state not in TOLD:
        return False
    noticing.give(lease, cause=found.cause, ends_at=found.ends_at, at=at, detail=found.detail)
    return True


def _withdraw(lease_id: UUID, cause: Notice.Cause, at: datetime) -> bool:
    lease = locked(lease_id)
    notice = Notice.objects.filter(lease=lease, cause=cause, closed_at=None).first()
    if notice is None:
        return False
    if lease.state in TOLD and notice.ends_at > at:
        noticing.withdraw(lease, causes=[cause], at=at, detail="It goes on.")
    else:
        outcome = Outcome.SERVED if notice.ends_at <= at else Outcome.OVERTAKEN
        noticing.close(lease_id=lease_id, outcome=outcome, at=at, causes=[cause])
    return True


def _close_what_came(*, at: datetime) -> int:
    """Close the notices of leases that are over, or that left the devices they were to leave."""
    open_ones = Notice.objects.filter(closed_at=None)
    over = open_ones.filter(Q(lease__state__in=[State.ENDING, State.ENDED]))
    left = open_ones.filter(cause__in=LEAVING, lease__leaves_at=None)
    closed = 0
    for rows in (over, left):
        pks = list(rows.values_list("pk", flat=True))
        came = Notice.objects.filter(pk__in=pks, closed_at=None)
        closed += came.filter(ends_at__lte=at).update(closed_at=at, outcome=Outcome.SERVED)
        closed += came.filter(ends_at__gt=at).update(closed_at=at, outcome=Outcome.OVERTAKEN)
    return closed


def _call_off(*, at: datetime) -> int:
    """Take back what was told for a successor that will not come: the devices stay, where nobody else has them yet."""
    open_ones = Notice.objects.filter(closed_at=None, cause__in=LEAVING, successor__isnull=False, ends_at__gt=at)
    gone = open_ones.filter(successor__state__in=[State.PENDING, State.ENDING, State.ENDED])
    return sum(_one(_stay, lease_id, None, at) for lease_id in gone.values_list("lease", flat=True))


def _stay(lease_id: UUID, _: None, at: datetime) -> bool:
    return giving_way.stay(lease_id=lease_id, at=at, detail="Its GPUs are not needed by another any more.")


def _drains(at: datetime) -> Iterator[Ahead]:
    """Hosts that are taken back: their leases stop a stop grace before the deadline."""
    leases = Lease.objects.filter(state__in=TOLD, members__epoch=F("epoch"))
    leases = leases.exclude(state=State.PARKED, parked_keep=parking.QUEUE)  # it has left
    leaving = leases.filter(
        members__host__scheduling=Host.Scheduling.DRAINING, members__host__drain_deadline__isnull=False
    )
    grace = timedelta(seconds=settings.WORKLOAD_STOP_GRACE_S)
    rows = leaving.values_list("pk", "members__host__drain_deadline", "members__host__scheduling_reason")
    for pk, deadline, reason in rows.order_by("-members__host__drain_deadline"):  # the soonest last, and it counts
        assert deadline is not None
        yield Ahead(pk, Cause.DRAIN, deadline - grace, f"Its machine is taken back: {reason}"[:300])


def _expiries(at: datetime) -> Iterator[Ahead]:
    soon = Lease.objects.filter(state__in=TOLD - {State.SCHEDULED}, end_at__lte=at + timedelta(seconds=AHEAD_S))
    for pk, end_at in soon.exclude(renew=True, period__gt="").values_list("pk", "end_at"):
        assert end_at is not None
        yield Ahead(pk, Cause.EXPIRY, end_at, "Its term is over then.")


def _balances(at: datetime) -> Iterator[Ahead]:
    for reference, exhausts_at in exhaustion.ahead(until=at + timedelta(seconds=AHEAD_S)):
        pk = ids.decode("lease", reference)
        if pk is not None:
            yield Ahead(pk, Cause.BALANCE, exhausts_at, "The money of its organization is used up then.")


def _caps(at: datetime) -> Iterator[Ahead]:
    """Spot leases whose cap a price that is published passes: they end at the second in which it begins."""
    capped = Lease.objects.filter(
        state=State.ACTIVE, term_kind=Lease.TermKind.SPOT, constraints__max_price_micros__isnull=False,
        members__epoch=F("epoch"),
    ).values_list("pk", "constraints__max_price_micros", "members__price_version_id")  # fmt: skip
    rows = list(capped)
    series = dict(PriceVersion.objects.filter(pk__in={row[2] for row in rows}).values_list("pk", "series"))
    ahead: dict[int, list[tuple[datetime, int]]] = {}
    lasting = Q(during__upper_inf=True) | Q(during__endswith__gt=at)
    coming = PriceVersion.objects.filter(lasting, series__in=set(series.values()))
    for version in coming.order_by("during"):
        ahead.setdefault(version.series_id, []).append((version.during.lower, version.price_micros_per_hour))
    for pk, cap, version_id in rows:
        dear = [moment for moment, price in ahead.get(series.get(version_id, 0), []) if price > cap]
        if dear:
            yield Ahead(pk, Cause.PRICE_CAP, min(dear), "The market asks more than its cap from then on.")


LOOKS: dict[Notice.Cause, Callable[[datetime], Iterator[Ahead]]] = {
    Cause.DRAIN: _drains,
    Cause.EXPIRY: _expiries,
    Cause.BALANCE: _balances,
    Cause.PRICE_CAP: _caps,
}
