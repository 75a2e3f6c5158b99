"""Spot prices follow how much of the GPUs is in use: one step per ten minutes, by billing's published rule.

A step is due once per series and slot. Whoever comes late makes one step, not those that were missed, and a clock that
goes back makes none twice: the row of the last step says which slot was the last.
"""

import logging
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import Count

from agents.models import Device, Host
from apikit.clock import whole_second
from billing import price_list, spot, spot_rule
from billing.models import PriceSeries, PriceVersion
from leasing.models import Allocation
from scheduler.models import SpotStep

log = logging.getLogger(__name__)
UNITS = 8
NOTICE_SLACK_S = 60  # a price is published so much ahead of the longest notice that it may cause
Kind = tuple[str, str, str]  # model, region, tier
Used = tuple[int, int]  # units in use, units in all


def step_due(*, at: datetime) -> int:
    """Make the step of every spot series that has made none in the present slot; return how many prices moved."""
    slot = spot_rule.slot_of(int(at.timestamp()))
    due = PriceSeries.objects.filter(term="spot", use="active").exclude(spot_step__slot__gte=slot)
    series = list(due.order_by("pk"))
    if not series:
        return 0
    used, last, on_demand = utilisation(at=at), _last_versions(series), _on_demand(at=at)
    moved, nothing_there = 0, [row for row in series if _kind(row) not in used]
    _note_unmoved(nothing_there, slot=slot, at=at)
    for row in series:
        if _kind(row) not in used:
            continue
        share, version = used[_kind(row)], last.get(row.pk)
        ceiling = on_demand.get((row.sku, row.region, row.tier, row.currency))
        try:
            moved += _step(row, slot=slot, share=share, last=version, on_demand_micros=ceiling, at=at)
        except Exception:  # one series must not stop the others; the next tick tries it again
            log.exception("spot price could not be moved", extra={"series": row.pk})
    return moved


def _kind(row: PriceSeries) -> Kind:
    return row.sku.split("/")[0], row.region, row.tier


def _note_unmoved(series: Sequence[PriceSeries], *, slot: int, at: datetime) -> None:
    """Note in one statement that nothing moves what there are no GPUs of: most of a price list may be that."""
    steps = [SpotStep(series=row, slot=slot, at=at, rule=spot_rule.NAME) for row in series]
    SpotStep.objects.bulk_create(
        steps, update_conflicts=True, unique_fields=["series"],
        update_fields=["slot", "at", "rule", "used_bp", "version"],
    )  # fmt: skip


def utilisation(*, at: datetime) -> dict[Kind, Used]:
    """Return (units in use, units in all) by model, region and tier, of devices that the market can have now.

    In use is what the calendar binds at this second, for whomever; what is broken or not open counts on neither side,
    and so does a device of which nobody can say what it is.
    """
    sold = Device.objects.filter(
        host__state=Host.State.ONLINE, host__scheduling=Host.Scheduling.OPEN, health=Device.Health.HEALTHY,
        present=True, cordoned=False, model__isnull=False,
    ).exclude(host__access=Host.Access.PRIVATE)  # fmt: skip
    kind = ("model__slug", "host__zone__region__slug", "host__tier")
    total = {row[:3]: row[3] * UNITS for row in sold.order_by().values_list(*kind).annotate(n=Count("pk"))}
    taken: dict[Kind, int] = defaultdict(int)
    bound = Allocation.objects.filter(released_at=None, during__contains=at, device__in=sold)
    for *where, units in bound.values_list(*(f"device__{name}" for name in kind), "units"):
        taken[where[0], where[1], where[2]] += units.upper - units.lower
    return {key: (taken[key], units) for key, units in total.items()}


@transaction.atomic
def _step(
    row: PriceSeries, *, slot: int, share: Used, last: PriceVersion | None, on_demand_micros: int | None,
    at: datetime,
) -> bool:  # fmt: skip
    step, _ = SpotStep.objects.select_for_update().get_or_create(series=row, defaults={"slot": slot - 1, "at": at})
    if step.slot >= slot:
        return False  # another has made it since
    used_bp = share[0] * spot_rule.ALL_BP // share[1] if share[1] else None
    step.slot, step.at, step.rule, step.used_bp, step.version = slot, at, spot_rule.NAME, used_bp, None
    if used_bp is not None and last is not None and on_demand_micros is not None:
        step.version = _move(row, last=last, used_bp=used_bp, on_demand_micros=on_demand_micros, at=at)
    step.save()
    return step.version is not None


def _move(
    row: PriceSeries, *, last: PriceVersion, used_bp: int, on_demand_micros: int, at: datetime
) -> PriceVersion | None:
    floor, ceiling = spot_rule.bounds(on_demand_micros=on_demand_micros, notice_s=row.notice_s)
    price = spot_rule.next_price(
        price_micros=last.price_micros_per_hour, used_bp=used_bp, floor_micros=floor, ceiling_micros=ceiling
    )
    lead = timedelta(seconds=max(spot.LEAD_S, row.notice_s + NOTICE_SLACK_S))
    # The bound holds between the beginnings of two prices, however the ticks fall.
    starts_at = max(whole_second(at) + lead, last.during.lower + timedelta(seconds=spot_rule.SLOT_S))
    if price == last.price_micros_per_hour or last.during.lower > at + lead + timedelta(seconds=spot_rule.SLOT_S):
        return None  # it stays, or somebody has published one for later: that is not ours to overtake
    series = price_list.Series(row.sku, row.region, row.tier, row.term, row.use, row.currency, row.notice_s)
    percent = f"{used_bp // 100}.{used_bp % 100:02d}"
    cause = f"{spot_rule.NAME}: {percent} % in use, target {spot_rule.TARGET_BP // 100} %"
    return spot.move(series=series, price_micros_per_hour=price, starts_at=starts_at, cause=cause, at=at)


def _last_versions(series: Sequence[PriceSeries]) -> dict[int, PriceVersion]:
    """Return the last published version of each series: that of now, or one that is published ahead."""
    newest = PriceVersion.objects.filter(series__in=series, during__upper_inf=True)
    return {version.series_id: version for version in newest}


def _on_demand(*, at: datetime) -> dict[tuple[str, str, str, str], int]:
    listed = PriceVersion.objects.filter(series__term="on_demand", series__use="active", during__contains=at)
    names = ("series__sku", "series__region", "series__tier", "series__currency", "price_micros_per_hour")
    return {(row[0], row[1], row[2], row[3]): row[4] for row in listed.values_list(*names)}
