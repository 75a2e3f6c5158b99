"""What the end of a reference changes in its charge: a minimum, or a waiver, as the price version says."""

from collections import Counter
from collections.abc import Iterable
from datetime import datetime

from billing import pricing, segments, wallets
from billing.models import Meter
from billing.models.meters import Use

# Ends for which the supplying side answers; a price version may waive a short use that ended so.
SUPPLIER = frozenset({"host_lost", "preempted", "failed_to_start", "operator", "supplier"})
TENANT = "tenant"


def apply(readings: Iterable[segments.Reading], *, at: datetime) -> None:
    """Set minimum and waiver on the settled meters of one reference. The payer's wallet is locked.

    Both look at the usable seconds of the reference as a whole. The missing seconds of a minimum are charged once to
    each member, at the last price that it had, as far as the wallet has money that nothing else has used; what never
    ran costs nothing.
    """
    found = list(readings)
    least = _within_the_wallet(_active(found), least_nums(found), at=at)
    ran_s = _ran_s(_active(found))
    for reading in _active(found):
        meter, version = reading.meter, reading.segments[-1].price_version
        meter.minimum_num = least[meter.pk]
        meter.waived = meter.ended_by in SUPPLIER and ran_s < version.free_if_interrupted_s
        Meter.objects.filter(pk=meter.pk).update(minimum_num=meter.minimum_num, waived=meter.waived)


def least_nums(readings: Iterable[segments.Reading]) -> dict[int, int]:
    """Return by meter the numerator of the minimum that is due, whoever can pay it."""
    active = _active(readings)
    ran_s = _ran_s(active)
    last = {r.meter.member: r for r in sorted(active, key=lambda r: r.segments[-1].start_s)}
    found = {}
    for reading in active:
        segment, meter = reading.segments[-1], reading.meter
        due = ran_s > 0 and meter.ended_by == TENANT and last[meter.member] is reading
        missing_s = max(0, segment.price_version.minimum_s - ran_s) if due else 0
        found[meter.pk] = min(segment.rate_micros_per_hour * missing_s, pricing.INT64_MAX)  # what a column holds
    return found


def _active(readings: Iterable[segments.Reading]) -> list[segments.Reading]:
    return [r for r in readings if r.meter.settled_at and r.meter.use == Use.ACTIVE and r.segments]


def _ran_s(active: Iterable[segments.Reading]) -> int:
    by_member: Counter[int] = Counter()  # over several meters if the member moved to another owner's host
    for reading in active:
        by_member[reading.meter.member] += reading.seconds(segments.FOREVER_S)
    return max(by_member.values(), default=0)


def _within_the_wallet(active: list[segments.Reading], due: dict[int, int], *, at: datetime) -> dict[int, int]:
    """Return what of the minimum is charged: no second was used for it, so the platform carries nothing of it.

    Otherwise whoever owns both the host and an empty wallet would be paid by us for a year that nobody used.
    """
    due_num = sum(due.values())
    if due_num == 0:
        return due
    payer = active[0].meter.payer
    free_micros = wallets.pledgeable(payer, wallets.refreshed(payer, at=at), at=at)[-1][1]
    if all(reading.segments[-1].settled for reading in active):  # a late fact: what is charged already may stay so
        used = sum(pricing.charge(max(0, r.num(segments.FOREVER_S) - r.meter.minimum_num)) for r in active)
        free_micros += sum(reading.meter.posted_micros for reading in active) - used
    most_num = max(0, free_micros) * pricing.SECONDS_PER_HOUR
    return due if due_num <= most_num else {pk: num * most_num // due_num for pk, num in due.items()}
