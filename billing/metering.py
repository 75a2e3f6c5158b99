"""Meters: what runs, since when, at which price, and what it costs.

The caller tells numbered facts about a reference ("member 0 is in use from this second", "all of it has stopped"); any
order and any number of deliveries give the same segments. Times are floored to whole UTC seconds. Lock order: the
reference (advisory), the price series where the price moves, the payer's wallet, then meters.
"""

from collections.abc import Collection, Mapping
from datetime import datetime
from uuid import UUID

from django.db import connection, transaction

from apikit.errors import DomainError
from billing import (
    charging,
    costs,
    downtime,
    endings,
    exhaustion,
    grant_windows,
    holds,
    ledger,
    segments,
    shards,
    wallets,
)
from billing.models import Account, Meter, MeterFact, PriceVersion, Segment
from billing.models.accounts import AccountKind
from billing.models.meters import Lane, Use

MAX_FUTURE_S = 300
FINISH_SEQ = 2**62  # the number of the fact "it is over": after every number that a caller gives
REFERENCE_LOCK = 7_302


class FactReused(DomainError):
    slug = "meter-fact-reused"
    title = "This number has told another fact"


class FactInTheFuture(DomainError):
    slug = "meter-fact-in-the-future"
    title = "The fact lies too far ahead of the server's clock"
    status = 422


class ReferenceFinished(DomainError):
    slug = "reference-finished"
    title = "What has finished does not start again"


@transaction.atomic
def start(
    *,
    payer: UUID,
    payee: UUID,
    currency: str,
    reference: str,
    member: int,
    use: str,
    price_version_id: int,
    quantity: int,
    commission_bp: int,
    labels: Mapping[str, str],
    seq: int,
    at: datetime,
    simulated: bool = False,
    tax_on_commission_bp: int = 0,
    follows: bool = False,
    received_at: datetime | None = None,
) -> int:
    """Let a member be in use from `at` on, at `quantity` x the price version; return the meter's id.

    What the member did before in the same lane (active or hold; storage) ends there. The hold of the reference is
    released, since from now on its burn counts. follows: the price moves with its series (spot).
    received_at: the server's clock, default `at`. Raises FactReused, FactInTheFuture, ReferenceFinished; ValueError for
    a quantity below 1, an unknown use or a price in another currency.
    """
    version = _version(price_version_id, currency=currency, use=use, quantity=quantity, follows=follows)
    _lock_reference(reference)
    wallet = wallets.account_of(owner=payer, currency=currency, at=at)
    earnings = ledger.account(kind=AccountKind.HOST_EARNINGS, owner=payee, currency=currency, at=at)
    _lock_wallets(reference, wallet)
    meter, _ = Meter.objects.get_or_create(
        reference=reference,
        member=member,
        use=use,
        payer=wallet,
        payee=earnings,
        commission_bp=commission_bp,
        tax_on_commission_bp=tax_on_commission_bp,
        defaults={"shard": shards.of_owner(payer), "labels": dict(labels), "simulated": simulated},
    )
    fact = MeterFact(
        reference=reference,
        seq=seq,
        member=member,
        lane=segments.lane_of(use),
        begins=True,
        use=use,
        at_s=int(at.timestamp()),
        meter=meter,
        price_version=version,
        quantity=quantity,
        follows=follows,
        received_at=received_at or at,
    )
    if _tell(fact):
        holds.release(reference=reference, at=at, cause="burning")
        _rewrite(reference, [(member, Lane(fact.lane))], cause="start", at=received_at or at)
    return meter.pk


@transaction.atomic
def stop(
    *,
    reference: str,
    seq: int,
    at: datetime,
    cause: str,
    members: Collection[int] | None = None,
    use: str | None = None,
    received_at: datetime | None = None,
) -> None:
    """End what runs at `at`: of these members (None: all) and this use (None: all).

    A stop before what is posted is credited at once. Raises FactReused or FactInTheFuture.
    """
    _lock_reference(reference)
    _lock_wallets(reference)
    lane = Lane.ALL if use is None else segments.lane_of(use)
    fresh = [
        _tell(
            MeterFact(
                reference=reference,
                seq=seq,
                member=member,
                lane=lane,
                begins=False,
                use=use or "",
                at_s=int(at.timestamp()),
                cause=cause,
                received_at=received_at or at,
            )
        )
        for member in ([None] if members is None else sorted(members))
    ]
    if any(fresh):
        touched = Meter.objects.filter(reference=reference)
        if members is not None:
            touched = touched.filter(member__in=members)
        lanes = [(m, found) for m, found in segments.by_lane(touched) if lane in (Lane.ALL, found)]
        _rewrite(reference, lanes, cause="late stop", at=received_at or at)


@transaction.atomic
def finish(*, reference: str, at: datetime, ended_by: str) -> int:
    """Close the account of a reference: end what still runs, post what is left to post, release what is held.

    ended_by: "tenant" applies the price's minimum; an end of endings.SUPPLIER within its free time waives the charge.
    Returns the total charge in micro-units; a second call returns the same.
    """
    _lock_reference(reference)
    _lock_wallets(reference)
    holds.release(reference=reference, at=at, cause="finished")
    told = MeterFact(
        reference=reference,
        seq=FINISH_SEQ,
        lane=Lane.ALL,
        begins=False,
        at_s=int(at.timestamp()),
        cause=ended_by,
        received_at=at,
    )
    meters = Meter.objects.filter(reference=reference)
    if not MeterFact.objects.filter(reference=reference, seq=FINISH_SEQ).exists() and _tell(told):
        _rewrite(reference, segments.by_lane(meters), cause="late stop", at=at)
        _settle(reference, ended_by=ended_by, at=at)
    return sum(meters.values_list("posted_micros", flat=True))


def cost(*, reference: str, at: datetime) -> costs.Cost:
    """Return what a reference costs until `at`, running or ended, with its lines."""
    return costs.of_reference(reference=reference, at=at)


def _version(version_id: int, *, currency: str, use: str, quantity: int, follows: bool) -> PriceVersion:
    if use not in Use.values or quantity < 1:
        raise ValueError(f"no use of {quantity} x {use!r} can be metered")
    version = PriceVersion.objects.select_related("series").get(pk=version_id)
    if version.series.currency != currency:
        raise ValueError(f"price version {version_id} is in {version.series.currency}, not {currency}")
    if follows:
        # A price that is being published waits for us, or we for it: it must find our segment, or we its version.
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1 FROM billing_priceseries WHERE id = %s FOR SHARE", [version.series_id])
    return version


def _lock_reference(reference: str) -> None:
    # A stop may come before any start: there is no row yet that both could lock.
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s, hashtext(%s))", [REFERENCE_LOCK, reference])


def _lock_wallets(reference: str, *more: Account) -> None:
    payers = Meter.objects.filter(reference=reference).values_list("payer", flat=True)
    ledger.lock({*payers, *(wallet.pk for wallet in more)})


def _tell(fact: MeterFact) -> bool:
    """Write a fact; False if it was told before. The caller holds the reference."""
    ahead_s = fact.at_s - int(fact.received_at.timestamp())
    if ahead_s > MAX_FUTURE_S:
        raise FactInTheFuture(f"The fact lies {ahead_s} s ahead of the clock.", ahead_s=ahead_s)
    same = MeterFact.objects.filter(reference=fact.reference, seq=fact.seq)
    before = same.filter(member=fact.member, lane=fact.lane).first()
    if before is None and not same.exclude(begins=fact.begins).exists():
        fact.save(force_insert=True)
        return True
    if before is None or _body(before) != _body(fact):
        raise FactReused(f"Number {fact.seq} of {fact.reference} has told another fact.", seq=fact.seq)
    return False


def _body(fact: MeterFact) -> tuple[object, ...]:
    return (
        fact.begins,
        fact.use,
        fact.at_s,
        fact.meter_id,
        fact.price_version_id,
        fact.quantity,
        fact.follows,
    )


def _rewrite(reference: str, lanes: Collection[tuple[int, Lane]], *, cause: str, at: datetime) -> None:
    """Write the segments anew and post what that changes in a past that is posted."""
    of_reference = Meter.objects.filter(reference=reference).select_related("payer", "payee")
    before = segments.read(of_reference)
    for member, lane in lanes:
        segments.rewrite(reference=reference, member=member, lane=lane)
    after = segments.read(of_reference)
    if any(r.meter.settled_at for r in after.values()) and any(
        s.end_s is None for r in after.values() for s in r.segments
    ):
        raise ReferenceFinished(f"{reference} has finished.", reference=reference)
    endings.apply(after.values(), at=at)
    for pk, reading in after.items():
        closed_to_s = shards.closed_to_s(reading.meter.shard)
        _post(
            reading,
            segments.correction(before.get(pk), reading, closed_to_s=closed_to_s),
            posted=before[pk].posted(closed_to_s) if pk in before else 0,
            cause=cause,
            at=at,
        )
    exhaustion.refresh(accounts={r.meter.payer_id for r in after.values()}, at=at)


def _settle(reference: str, *, ended_by: str, at: datetime) -> None:
    readings = segments.read(Meter.objects.filter(reference=reference).select_related("payer", "payee"))
    left = {pk: _left_to_post(reading) for pk, reading in readings.items()}
    for reading in readings.values():
        reading.meter.settled_at, reading.meter.ended_by = at, ended_by
        downtime.apply_all(reading)
    endings.apply(readings.values(), at=at)
    for pk, reading in readings.items():
        posted, parts = left[pk]
        total = reading.charge(segments.FOREVER_S) - posted
        if total != sum(part.gross_micros for part in parts):
            parts = [charging.Usage(parts[0].start_s, parts[-1].end_s, total)]
        Segment.objects.filter(meter=reading.meter).update(settled=True)
        Meter.objects.filter(pk=pk).update(settled_at=at, ended_by=ended_by)
        _post(reading, parts, posted=posted, cause="finish", at=at)
    exhaustion.refresh(accounts={r.meter.payer_id for r in readings.values()}, at=at)


def _left_to_post(reading: segments.Reading) -> tuple[int, list[charging.Usage]]:
    """Return what is posted of a meter that has ended, and what it charges after the last close."""
    start_s = reading.segments[0].start_s if reading.segments else 0
    given = grant_windows.of_wallet(reading.meter.payer, start_s=start_s, end_s=max(start_s, reading.end_s()))
    closed_to_s = shards.closed_to_s(reading.meter.shard)
    parts = segments.remainder(reading, closed_to_s=closed_to_s, points_s=grant_windows.boundaries_s(given))
    return reading.posted(closed_to_s), parts


def _post(reading: segments.Reading, usage: list[charging.Usage], *, posted: int, cause: str, at: datetime) -> None:
    charging.post(reading.meter, posted_micros=posted, usage=usage, cause=cause, at=at)
    if reading.meter.settled_at:
        total = posted + sum(part.gross_micros for part in usage)
        Meter.objects.filter(pk=reading.meter.pk).update(posted_micros=total)
        reading.meter.posted_micros = total
