"""Pending leases get their devices: the queue in order, the pool as it is, the pure decision, and the act.

One pass is one transaction under an advisory lock, so that two placers never decide over each other's heads; tenants
who ask for "now or not at all" decide beside it, and whoever loses the race at the calendar's constraint is decided
again in the next pass. A pass that dies changes nothing.
"""

import logging
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import connection, transaction

from leasing import assigning, lifecycle, moves, promised_price
from leasing.assigning import Assignment
from leasing.calendar import CLEANING_MARGIN_S, DevicesTaken
from leasing.models import Lease
from leasing.states import EndReason, State
from scheduler import pool as pools
from scheduler.placement import Ask, Placement, Refusal, Want
from scheduler.pool import Pool, seconds
from scheduler.waiting_line import queue

log = logging.getLogger(__name__)

BATCH = 256
RETRY_S = 1  # a waiting lease is looked at again with every pass: capacity may come from anywhere
PASS_LOCK = 0x6770_7901  # any constant of our own: "gpy", placing


def options_of(options: dict[str, Any]) -> tuple[Want, ...]:
    return tuple(
        Want(
            model=option.get("model"),
            count=option["count"],
            nodes=option["nodes"],
            slice=option.get("slice"),
            memory_gib=(memory["min"], memory["max"]) if (memory := option.get("memory_gib")) else None,
            region=option.get("region"),
        )
        for option in options["options"]
    )


def ask_for(lease: Lease, pool: Pool, *, at: datetime, grace_s: int) -> Ask:
    """Return what the engine is asked for a lease: from its start (now, or later) until its known end and cleaning."""
    limits = lease.constraints
    start = max(lease.start_at, at) if lease.start_at else at
    return Ask(
        options=options_of(lease.request_options),
        organization=str(lease.organization_id),
        now_s=seconds(at),
        start_s=seconds(start),
        until_s=seconds(lease.end_at) + CLEANING_MARGIN_S + grace_s if lease.end_at else None,
        max_price_micros=limits.get("max_price_micros"),
        vendor=lease.image_needs.get("vendor", ""),
        min_driver=limits.get("min_driver", ""),
        min_cuda=max((limits.get("min_cuda", ""), lease.image_needs.get("min_cuda", "")), key=lambda v: _version(v)),
        min_reliability_bp=limits.get("min_reliability_bp", 0),
        regions=frozenset(limits.get("regions", ())),
        exclude_hosts=pool.keys_of({*limits.get("exclude_hosts", ()), *lease.avoid_hosts}),
        exclude_owners=frozenset(limits.get("exclude_owners", ())),
        same_zone=limits.get("same") == "zone",
        same_fabric=limits.get("same") == "fabric",
        nvlink=limits.get("nvlink", "any"),
        whole_machine=limits.get("whole_machine", False),
        bare_metal=limits.get("bare", False),
        min_cpu_milli=limits.get("min_cpu_milli", 0),
        min_ram_mib=limits.get("min_ram_mib", 0),
        min_disk_mib=limits.get("min_disk_mib", 0),
    )


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isascii() and part.isdigit())


def assignment(lease: Lease, placement: Placement, pool: Pool, *, at: datetime) -> Assignment:
    """Return the act for a decision: seats of the calendar, and the price promised to this lease for each member."""
    option = options_of(lease.request_options)[placement.option_index]
    prices = {}
    sku = ""
    for rank, member in enumerate(placement.members):
        host = pool.hosts[str(member.host)]
        sku = promised_price.sku(model=host.model, slice_name=option.slice)
        version = promised_price.frozen(
            sku=sku, region=host.region, tier=host.tier, term=lease.price_term, currency=lease.currency,
            priced_at=at if lease.term_kind == Lease.TermKind.SPOT else lease.priced_at,  # spot follows the market
            at=at, cap_micros=lease.constraints.get("max_price_micros"),
        )  # fmt: skip
        prices[rank] = (version.pk, version.price_micros_per_hour)
    return Assignment(
        option_index=placement.option_index,
        seats=pools.seats(placement),
        sku=sku,
        prices=prices,
        facts={"score": placement.score, "reasons": list(placement.reasons)},
    )


@dataclass(frozen=True)
class Kept:
    """Seats on which nobody who comes later in the queue is let: what a lease that must wait will take."""

    currency: str
    placement: Placement
    organization: UUID
    start_s: int
    end_s: int | None


@dataclass
class Pass:
    """What one pass did, for the log and the metrics."""

    placed: int = 0
    waiting: int = 0
    lost_races: int = 0
    failed: int = 0
    kept: list[Kept] = field(default_factory=list)


@transaction.atomic
def place_pending(*, at: datetime, grace_s: int) -> Pass:
    """Make one pass over the queue; returns at once when another placer is at it."""
    done = Pass()
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_xact_lock(%s)", [PASS_LOCK])
        if not cursor.fetchone()[0]:
            return done
    loaded: dict[tuple[str, str], Pool] = {}
    for place, lease in enumerate(queue(at=at)[:BATCH], start=1):
        key = (lease.price_term, lease.currency)
        pool = loaded.get(key) or loaded.setdefault(key, _load(key, done.kept, at=at))
        kept = len(done.kept)
        if _try_to_place(lease, pool, at=at, grace_s=grace_s, done=done, place=place) or len(done.kept) > kept:
            # Devices of one term's pool are devices of every other: what was bound or kept must be seen there too.
            loaded = {key: pool}
    return done


def _load(key: tuple[str, str], kept: list[Kept], *, at: datetime) -> Pool:
    pool = pools.load(term=key[0], currency=key[1], at=at)
    for seats in kept:
        if seats.currency == key[1] and all(str(member.host) in pool.hosts for member in seats.placement.members):
            pool.take(seats.placement, organization=seats.organization, start_s=seats.start_s, end_s=seats.end_s)
    return pool


def _try_to_place(lease: Lease, pool: Pool, *, at: datetime, grace_s: int, done: Pass, place: int) -> bool:
    """Place one lease if it can be; one that fails must not stop the others, and is tried again with the next pass."""
    try:
        with transaction.atomic():
            return _place(lease, pool, at=at, grace_s=grace_s, done=done, place=place)
    except Exception:
        done.failed += 1
        log.exception("lease could not be placed", extra={"lease": lease.public_id})
    why = {"text": "It could not be placed for a fault of ours; it is tried again.", "code": "fault", "counts": []}
    check_at = at + timedelta(seconds=RETRY_S)
    lifecycle.waiting(lease_id=lease.pk, why=why, place=place, eta=None, check_at=check_at)
    return False


def _place(
    lease: Lease, pool: Pool, *, at: datetime, grace_s: int, done: Pass, place: int, but: frozenset[str] = frozenset()
) -> bool:
    ask = ask_for(lease, pool, at=at, grace_s=grace_s)
    ask = replace(ask, exclude_hosts=ask.exclude_hosts | but)
    answer = pool.decide(ask)
    if isinstance(answer, Refusal):
        if lease.avoid_hosts and _failed_everywhere(lease, answer):
            last = (
                lease.events.filter(to_state=State.PENDING).exclude(from_state=State.PENDING).order_by("-seq").first()
            )
            lifecycle.end(
                lease_id=lease.pk, reason=EndReason.FAILED_TO_START, at=at, detail=last.detail if last else ""
            )
            return False
        done.waiting += 1
        ahead = shadow(pool, ask, answer, organization=lease.organization_id)
        if ahead is not None:
            done.kept.append(Kept(lease.currency, ahead[0], lease.organization_id, *ahead[1:]))
        note_waiting(lease, answer, place=place, at=at)
        return False
    act = assignment(lease, answer, pool, at=at)
    if kept_back := withheld(act, answer, pool):
        return _place(lease, pool, at=at, grace_s=grace_s, done=done, place=place, but=but | kept_back)
    try:
        with transaction.atomic():
            assigning.assign(lease_id=lease.pk, assignment=act, at=at)
    except DevicesTaken:
        done.lost_races += 1
        return False
    except assigning.NotYet as fault:
        # Its own earlier containers may still run. Its seats are kept for it meanwhile, in this pass only.
        done.waiting += 1
        pool.take(answer, organization=lease.organization_id, start_s=ask.start_s, end_s=ask.until_s)
        done.kept.append(Kept(lease.currency, answer, lease.organization_id, ask.start_s, ask.until_s))
        lifecycle.waiting(
            lease_id=lease.pk, why={"text": fault.detail, "code": "fence", "counts": []}, place=place, eta=None,
            check_at=at + timedelta(seconds=RETRY_S),
        )  # fmt: skip
        return False
    except moves.WrongState:
        return False  # cancelled or placed since the queue was read
    done.placed += 1
    pool.take(answer, organization=lease.organization_id, start_s=ask.start_s, end_s=ask.until_s)
    return True


def withheld(act: Assignment, placement: Placement, pool: Pool) -> frozenset[str]:
    """Return the hosts that are not let for what this lease was promised, though today's price would do for them.

    All of one kind at once: a lease is decided again as often as there are kinds, not hosts.
    """
    found: set[str] = set()
    for rank, member in enumerate(placement.members):
        mine, pays = pool.hosts[str(member.host)], act.prices[rank][1]
        if pays < pool.capacity[UUID(str(member.host).split("/")[0])].price_floor_micros:
            found |= {
                key for key, view in pool.hosts.items()
                if (view.model, view.region, view.tier) == (mine.model, mine.region, mine.tier)
                and pays < pool.capacity[UUID(key.split("/")[0])].price_floor_micros
            }  # fmt: skip
    return frozenset(found)


def _failed_everywhere(lease: Lease, refusal: Refusal) -> bool:
    """Tell whether nothing but its own failed starts is in the way: it would wait for ever."""
    asked = lease.constraints
    named = asked.get("exclude_hosts") or asked.get("exclude_owners")
    return not named and bool(refusal.reasons) and all(reason.code == "excluded" for reason in refusal.reasons)


def shadow(pool: Pool, ask: Ask, refusal: Refusal, *, organization: Any) -> tuple[Placement, int, int | None] | None:
    """Keep the seats of the earliest start that is known, so that nobody who comes later delays it (backfill).

    Returns what was kept: the seats, their start and their end.
    """
    if refusal.earliest_s is None:
        return None
    length = None if ask.until_s is None else ask.until_s - ask.start_s
    until = None if length is None else refusal.earliest_s + length
    later = Ask(**{**_fields(ask), "start_s": refusal.earliest_s, "until_s": until})
    found = pool.decide(later, explain=False)
    if isinstance(found, Placement):
        pool.take(found, organization=organization, start_s=later.start_s, end_s=until)
        return found, later.start_s, until
    return None


def _fields(ask: Ask) -> dict[str, Any]:
    return {name: getattr(ask, name) for name in ask.__dataclass_fields__}


def note_waiting(lease: Lease, refusal: Refusal, *, place: int, at: datetime) -> None:
    why = explained(refusal)
    eta = {"at": why["earliest"], "certainty": "certain"} if why["earliest"] else {"at": None, "certainty": "unknown"}
    lifecycle.waiting(lease_id=lease.pk, why=why, place=place, eta=eta, check_at=at + timedelta(seconds=RETRY_S))


def explained(refusal: Refusal) -> dict[str, Any]:
    """Return a refusal as the API shows it: a sentence, counts per constraint, and what would work."""

    earliest = refusal.earliest_s
    return {
        "text": refusal.text("en"),
        "text_zh": refusal.text("zh"),  # kept, since the same facts are not; the doors show one of the two
        "code": "no_capacity",
        "hosts_with_model": refusal.hosts_with_model,
        "counts": [
            {"code": reason.code, "hosts": reason.hosts, "need": reason.need, "have": reason.have}
            for reason in refusal.reasons
        ],
        "would_help": [
            {"constraint": help_.constraint, "value": help_.value, "request": help_.what}
            for help_ in refusal.relaxations
        ],
        "earliest": datetime.fromtimestamp(earliest, UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if earliest else None,
    }
