"""What the end of a reference changes in its charge: a minimum, or a waiver, as the price version says."""

from collections import Counter
from collections.abc import Iterable

from billing import pricing, segments
from billing.models import Meter
from billing.models.meters import Use

# Ends for which the supplying side answers; a price version may waive a short use that ended so.
SUPPLIER = frozenset({"host_lost", "preempted", "failed_to_start", "operator", "supplier"})
TENANT = "tenant"


def apply(readings: Iterable[segments.Reading]) -> None:
    """Set minimum and waiver on the settled meters of one reference.

    Both look at the usable seconds of the reference as a whole. The missing seconds of a minimum are charged once to
    each member, at the last price that it had; what never ran costs nothing.
    """
    active = [r for r in readings if r.meter.settled_at and r.meter.use == Use.ACTIVE and r.segments]
    by_member: Counter[int] = Counter()  # over several meters if the member moved to another owner's host
    for reading in active:
        by_member[reading.meter.member] += reading.seconds(segments.FOREVER_S)
    ran_s = max(by_member.values(), default=0)
    last = {r.meter.member: r for r in sorted(active, key=lambda r: r.segments[-1].start_s)}
    for reading in active:
        segment = reading.segments[-1]
        version, meter = segment.price_version, reading.meter
        missing_s = version.minimum_s - ran_s if meter.ended_by == TENANT and last[meter.member] is reading else 0
        least_num = segment.rate_micros_per_hour * max(0, missing_s) if ran_s else 0
        meter.minimum_num = min(least_num, pricing.INT64_MAX)  # what a column holds
        meter.waived = meter.ended_by in SUPPLIER and ran_s < version.free_if_interrupted_s
        Meter.objects.filter(pk=meter.pk).update(minimum_num=meter.minimum_num, waived=meter.waived)
