"""How the worked figures on rounding, calendar and metering are put to billing: inputs to calls, and no figure here."""

from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from itertools import pairwise
from typing import Any
from uuid import uuid4
from zoneinfo import ZoneInfo

import vectors_at_doors
from books import NOON, after, make_owner, make_price, run
from django.db import DataError, connection, transaction

from billing import close, currencies, invoicing, metering, price_list, pricing, statements
from billing.models import Adjustment, BillingRun, Journal, Meter, MeterFact, Segment, Transfer

Adapter = Callable[[dict[str, Any]], dict[str, Any]]
RICH = 10**15


def instant(text: str) -> datetime:
    return datetime.fromisoformat(text)


def close_at(moment: datetime) -> None:
    close.close(shard=0, to=moment, at=moment)


def use(*, price: int, seconds: int, quantity: int = 1, cuts: int = 1, **terms: Any) -> int:
    """Run one meter for some seconds with `cuts` closes on the way, and return what its end makes of it."""
    lease = run(payer=make_owner(RICH), price=make_price(price, **terms), quantity=quantity, at=NOON)
    for cut in range(1, cuts):
        close_at(after(seconds * cut // cuts))
    metering.stop(reference=lease, seq=2, at=after(seconds), cause="tenant")
    return metering.finish(reference=lease, at=after(seconds), ended_by="tenant")


def r01(given: dict[str, Any]) -> dict[str, Any]:
    count, length = (int(n) for n in given["cuts_seconds"].split(" x "))
    price = given["price_u_per_hour"]
    charges = [pricing.charge(pricing.numerator([(price, length * k)])) for k in range(count + 1)]
    posted = sum(b - a for a, b in pairwise(charges))
    assert use(price=price, seconds=count * length, cuts=17) == posted
    return {"sum_posted_u": posted}


def r02(given: dict[str, Any]) -> dict[str, Any]:
    start, end = (instant(t) for t in given["lease"])
    starts = [instant(at) for _, at in given["prices"]]
    first = make_price(given["prices"][0][0], sku="spot", term="spot", starts_at=starts[0])
    for price, at in given["prices"][1:]:
        make_price(price, sku="spot", term="spot", starts_at=instant(at))
    lease = run(payer=make_owner(RICH), price=first, at=start, follows=True)
    metering.stop(reference=lease, seq=2, at=end, cause="tenant")
    close_at(starts[-1] + timedelta(minutes=7))
    charged = metering.finish(reference=lease, at=end, ended_by="tenant")
    lengths = [line.seconds for line in metering.cost(reference=lease, at=end).lines]
    return {"seconds": lengths, "charge_u": charged}


def r04(given: dict[str, Any]) -> dict[str, Any]:
    owner, usage, due, carry = make_owner(), [], [], []
    for k in range(given["periods"]):
        amount = given["unit_price_u"] * given["quantity"]
        invoice = invoicing.draft(
            owner=owner,
            currency=given["currency"],
            start=NOON + timedelta(days=30 * k),
            end=NOON + timedelta(days=30 * (k + 1)),
            items=[invoicing.Item("usage", amount)],
        )
        invoicing.finalize(invoice_id=invoice.pk, at=NOON)
        usage.append(amount)
        due.append(invoice.due_minor)
        carry.append(invoice.carry_out_micros)
    return {"usage_u": usage, "invoice_minor": due, "carry_u": carry, "sum_minor": sum(due)}


def r05(given: dict[str, Any]) -> dict[str, Any]:
    return {
        "charge_u": pricing.prorate(price_micros=given["price_u"], used=given["used_days"], period=given["month_days"])
    }


def r07(given: dict[str, Any]) -> dict[str, Any]:
    price = given["price_u_per_hour"]
    charged = use(price=price, seconds=given["hours"] * 3600)
    shown = pricing.show(price)
    at_market = vectors_at_doors.price_shown(make_price(price).series.sku, NOON)
    assert pricing.parse_amount(at_market, minor_exponent=6) == price
    assert pricing.parse_amount(shown, minor_exponent=6) * given["hours"] == charged
    return {"charge_u": charged, "displayed_unit_price": shown}


def r08(given: dict[str, Any]) -> dict[str, Any]:
    shares = pricing.split(given["remaining_u"], given["rates_u_per_hour"])
    return {"shares_u": shares, "sum_u": sum(shares)}


def r09(given: dict[str, Any]) -> dict[str, Any]:
    num = pricing.numerator([(given["price_u_per_hour"], given["seconds"])])
    charged = pricing.charge(num)
    try:
        with transaction.atomic():
            used = use(price=given["price_u_per_hour"], seconds=given["seconds"], cuts=3)
        fits = used == charged
        assert used <= charged
    except (DataError, price_list.PriceTooHigh):  # PostgreSQL's BIGINT is checked: it refuses, and never wraps round
        fits = False
    assert fits == (num <= pricing.INT64_MAX)
    return {"numerator": num, "fits_int64": fits, "charge_u": charged}


def boundaries(given: dict[str, Any]) -> dict[str, Any]:
    anchor = date.fromisoformat(given["anchor"])
    steps = [pricing.boundary(anchor, k=k, months=given["months"]) for k in range(given["count"])]
    return {"boundaries": [step.isoformat() for step in steps]}


def c05(given: dict[str, Any]) -> dict[str, Any]:
    (p0, p1), (u0, u1) = ([date.fromisoformat(d) for d in given[k]] for k in ("period", "used"))
    used, period = (u1 - u0).days, (p1 - p0).days
    charged = pricing.prorate(price_micros=given["price_u"], used=used, period=period)
    return {"used_days": used, "period_days": period, "charge_u": charged}


def c07(given: dict[str, Any]) -> dict[str, Any]:
    start, end = (date.fromisoformat(d) for d in given["used"])
    first = start.replace(day=1)
    months = [
        (pricing.boundary(first, k=k), pricing.boundary(first, k=k + 1)) for k in range(given["months_in_period"])
    ]
    shares = [((min(b, end) - max(a, start)).days, (b - a).days) for a, b in months]
    charged = pricing.prorate_over(price_micros=given["monthly_u"], shares=shares)
    minor, carry = pricing.to_minor(charged, micros_per_minor=currencies.get("USD").micros_per_minor)
    return {"charge_u": charged, "invoice_minor": minor, "carry_u": carry}


def c08(given: dict[str, Any]) -> dict[str, Any]:
    zone = ZoneInfo(given["tz"])
    seconds, charged = [], []
    for day in (date.fromisoformat(d) for d in given["local_days"]):
        start = datetime.combine(day, time(), tzinfo=zone)
        end = pricing.boundary_instant(start, k=1, days=1)
        lease = run(payer=make_owner(RICH), price=make_price(given["price_u_per_hour"]), at=start)
        metering.stop(reference=lease, seq=2, at=end, cause="tenant")
        charged.append(metering.finish(reference=lease, at=end, ended_by="tenant"))
        seconds.append(metering.cost(reference=lease, at=end).seconds)
    return {"seconds": seconds, "charge_u": charged}


def c09(given: dict[str, Any]) -> dict[str, Any]:
    start = datetime.fromisoformat(given["start_local"]).replace(tzinfo=ZoneInfo(given["tz"]))
    end = pricing.boundary_instant(start, k=given["trial_days"], days=1)
    return {"end_utc": f"{end.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}", "billing_day": end.day}


def c10(given: dict[str, Any]) -> dict[str, Any]:
    start, end = (instant(t) for t in given["lease"])
    door = vectors_at_doors.tenant(RICH, time_zone=given["tz"])
    owner = vectors_at_doors.owner_of(door)
    lease = run(payer=owner, price=make_price(given["price_u_per_hour"]), at=start)
    metering.stop(reference=lease, seq=2, at=end, cause="tenant")
    uncut = metering.finish(reference=lease, at=end, ended_by="tenant")
    local = start.astimezone(ZoneInfo(given["tz"]))
    _, boundary = statements.month_bounds(year=local.year, month=local.month, time_zone=given["tz"])
    days = [pricing.boundary(local.date().replace(day=1), k=k) for k in (0, 1)]
    months = [
        statements.month(owner=owner, year=day.year, month=day.month, time_zone=given["tz"], at=end)[0] for day in days
    ]
    shown = [vectors_at_doors.charged_micros(door, year=day.year, month=day.month, at=end) for day in days]
    assert shown == [found.charged_micros for found in months]
    assert sum(m.charged_micros for m in months) == uncut
    return {
        "boundary_utc": f"{boundary:%Y-%m-%dT%H:%M:%SZ}",
        "january_u": months[0].charged_micros,
        "february_u": months[1].charged_micros,
    }


def _of_day(text: str) -> datetime:
    return datetime.combine(NOON.date(), time.fromisoformat(text.removesuffix("Z")), tzinfo=UTC)


def _tell(lease: str, payer: Any, payee: Any, state: str, seq: int, at: datetime, given: dict[str, Any]) -> None:
    if state == "stop":
        metering.stop(reference=lease, seq=seq, at=at, cause="tenant", received_at=NOON)
        return
    use_of = "active" if state == "run" else "hold"
    price = given["run_u_per_hour"] if state == "run" else given["suspended_u_per_hour"]
    version = make_price(price, sku=f"{lease}-{use_of}", use=use_of)
    run(payer=payer, payee=payee, price=version, use=use_of, reference=lease, seq=seq, at=at, received_at=NOON)


def _seconds_by_use(lease: str) -> dict[str, int]:
    found = {"active": 0, "hold": 0}
    for line in metering.cost(reference=lease, at=NOON + timedelta(days=1)).lines:
        found[line.use] += line.seconds
    return found


def m01(given: dict[str, Any]) -> dict[str, Any]:
    payer, payee = make_owner(RICH), uuid4()
    moments = [_of_day(at) - timedelta(days=1) for _, at in given["events"]]
    for seq, ((state, _), at) in enumerate(zip(given["events"], moments, strict=True), start=1):
        _tell("lease_m01", payer, payee, state, seq, at, given)
        close_at(at + timedelta(minutes=1))
    charged = metering.finish(reference="lease_m01", at=moments[-1], ended_by="tenant")
    seconds = _seconds_by_use("lease_m01")
    return {"run_seconds": seconds["active"], "suspended_seconds": seconds["hold"], "charge_u": charged}


def m02(given: dict[str, Any]) -> dict[str, Any]:
    billed_to, stop = instant(given["billed_to"]), instant(given["true_stop"])
    payer = make_owner(RICH)
    lease = run(payer=payer, price=make_price(given["price_u_per_hour"]), at=instant(given["start"]))
    close_at(billed_to)
    posted = BillingRun.objects.get().gross_micros
    metering.stop(reference=lease, seq=2, at=stop, cause="late", received_at=billed_to)
    adjustment = Adjustment.objects.first() or Adjustment(gross_micros=0, start_s=0, end_s=0)
    assert adjustment.pk is None or adjustment.journal.key != Journal.objects.earliest("pk").key
    period = [datetime.fromtimestamp(s, UTC) for s in (adjustment.start_s, adjustment.end_s)]
    return {
        "posted_u": posted,
        "true_u": metering.finish(reference=lease, at=billed_to, ended_by="host_lost"),
        "adjustment_u": adjustment.gross_micros,
        "service_period_of_adjustment": [f"{t:%Y-%m-%dT%H:%M:%SZ}" for t in period],
    }


def m04(given: dict[str, Any]) -> dict[str, Any]:
    payer, payee, price = make_owner(RICH), uuid4(), make_price(1_000_000)

    def tell() -> None:
        run(payer=payer, payee=payee, price=price, reference=given["event_id"], quantity=given["quantity"])

    class WriteFails(Exception):
        pass

    for attempt in given["attempts"]:
        try:
            with transaction.atomic():
                tell()
                if "fails" in attempt:
                    raise WriteFails
        except WriteFails:
            assert not MeterFact.objects.exists()
    return {"recorded_quantity": sum(Segment.objects.values_list("quantity", flat=True))}


def m05(given: dict[str, Any]) -> dict[str, Any]:
    lease = run(payer=make_owner(RICH), price=make_price(1_000_000), at=_of_day("09:00:00"), received_at=NOON)
    found = {"accepted": 0, "replayed": 0, "conflicts": 0}
    for told in given["deliveries"]:
        before = MeterFact.objects.count()
        try:
            metering.stop(reference=lease, seq=told["seq"], at=_of_day(told["at"]), cause=told["id"], received_at=NOON)
        except metering.FactReused:
            found["conflicts"] += 1
        else:
            found["accepted" if MeterFact.objects.count() > before else "replayed"] += 1
    return found


def m06(given: dict[str, Any]) -> dict[str, Any]:
    now = instant(given["now"])
    started = instant(given["start_received"])
    lease = run(payer=make_owner(RICH), price=make_price(3_600_000), at=started)
    assert given["max_future_s"] == metering.MAX_FUTURE_S
    try:
        metering.stop(reference=lease, seq=2, at=instant(given["future_stamp"]), cause="skew", received_at=now)
        accepted = True
    except metering.FactInTheFuture:
        accepted = False
    metering.stop(reference=lease, seq=3, at=instant(given["stop_stamp"]), cause="skew", received_at=now)
    return {
        "billed_seconds": metering.cost(reference=lease, at=now + timedelta(days=1)).seconds,
        "flagged": Meter.objects.get().flagged,
        "future_stamp_accepted": accepted,
    }


def m07(given: dict[str, Any]) -> dict[str, Any]:
    payer, payee = make_owner(RICH), uuid4()
    for seq in given["arrival_order_seq"]:
        state, at = given["events"][str(seq)]
        _tell("lease_m07", payer, payee, state, seq, _of_day(at), given)
        close_at(NOON + timedelta(minutes=seq))
    charged = metering.finish(reference="lease_m07", at=NOON, ended_by="tenant")
    return {"run_seconds": _seconds_by_use("lease_m07")["active"], "charge_u": charged}


def m08(given: dict[str, Any]) -> dict[str, Any]:
    price, minimum_s = given["price_u_per_hour"], given["minimum_s"]
    return {"charge_u": [use(price=price, seconds=s, minimum_s=minimum_s) for s in given["runs_s"]]}


def m10(given: dict[str, Any]) -> dict[str, Any]:
    free_s = int("".join(c for c in given["rule"] if c.isdigit()))

    def ended(by: str, ran_s: int) -> int:
        price = make_price(given["price_u_per_hour"], free_if_interrupted_s=free_s)
        lease = run(payer=make_owner(RICH), price=price)
        return metering.finish(reference=lease, at=after(ran_s), ended_by=by)

    (late_s,) = [int(key.split("_")[3]) for key in given["asked"] if key.startswith("host_interrupts_after_")]
    return {
        "host_interrupts_u": ended("host_lost", given["ran_s"]),
        "user_stops_u": ended("tenant", given["ran_s"]),
        f"host_interrupts_after_{late_s}_s_u": ended("host_lost", late_s),
    }


def m11(given: dict[str, Any]) -> dict[str, Any]:
    return {
        "charge_u": use(price=given["price_u_per_gpu_hour"], quantity=given["gpus"], seconds=given["seconds"], cuts=4)
    }


def m12(given: dict[str, Any]) -> dict[str, Any]:
    payer, posted = make_owner(RICH), []
    for price, seconds in given["segments"]:
        lease = run(payer=payer, price=make_price(price), commission_bp=0)
        posted.append(metering.finish(reference=lease, at=after(seconds), ended_by="tenant"))
    to_hosts = Transfer.objects.filter(credit__kind="host_earnings")
    return {"posted_u": posted, "transfers": to_hosts.count(), "segments_kept": Segment.objects.count()}


ADAPTERS: dict[str, Adapter] = {
    "R01": r01, "R02": r02, "R04": r04, "R05": r05, "R07": r07, "R08": r08, "R09": r09,
    "C01": boundaries, "C02": boundaries, "C05": c05, "C07": c07, "C08": c08, "C09": c09, "C10": c10,
    "M01": m01, "M02": m02, "M04": m04, "M05": m05, "M06": m06, "M07": m07, "M08": m08, "M10": m10, "M11": m11,
    "M12": m12,
}  # fmt: skip
__all__ = ["ADAPTERS", "RICH", "Adapter", "close_at", "connection", "use"]
