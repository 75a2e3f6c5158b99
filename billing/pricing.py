"""How much: prices, charges, commission, tax and calendar boundaries as functions of whole numbers. Pure.

All amounts are integers: micro-units (`_micros`), minor units of a currency (`_minor`), basis points (`_bp`), seconds
(`_s`). Usage is exact up to a numerator (micro-units x seconds per hour) and floored once, in `charge`; a posting is a
difference of two charges, so no cutting of time changes a total. Multiply first, divide last.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from math import lcm

SECONDS_PER_HOUR = 3600
BP = 10_000
INT64_MAX = 2**63 - 1


class NegativeUsage(ValueError):
    """A length or a price below zero: a clock ran backwards, and no credit must be booked for it."""


def numerator(pieces: Iterable[tuple[int, int]]) -> int:
    """Return the exact sum of price x seconds for (price_micros_per_hour, seconds) pieces."""
    total = 0
    for price_micros_per_hour, seconds in pieces:
        if price_micros_per_hour < 0 or seconds < 0:
            raise NegativeUsage(f"negative usage: {price_micros_per_hour=} {seconds=}")
        total += price_micros_per_hour * seconds
    return total


def charge(num: int) -> int:
    """Return the whole micro-units of a numerator: the one rounding, down, in the customer's favour."""
    return num // SECONDS_PER_HOUR


@dataclass(frozen=True)
class Parts:
    """Who gets a charge: `gross = fee + tax + host`, each cumulative since the meter began."""

    gross: int
    fee: int
    tax: int

    @property
    def host(self) -> int:
        return self.gross - self.fee - self.tax

    def minus(self, other: "Parts") -> "Parts":
        return Parts(self.gross - other.gross, self.fee - other.fee, self.tax - other.tax)


NOTHING = Parts(0, 0, 0)


def parts(*, gross: int, commission_bp: int, tax_on_commission_bp: int = 0) -> Parts:
    """Return how a cumulative charge is shared: floors for fee and its tax, the complement for the host."""
    fee = gross * commission_bp // BP
    return Parts(gross, fee, fee * tax_on_commission_bp // BP)


def prorate(*, price_micros: int, used: int, period: int) -> int:
    """Return the part of a fixed price that `used` of `period` (the whole period, in one unit) has earned."""
    if period <= 0 or not 0 <= used <= period:
        raise NegativeUsage(f"used {used} of {period}")
    return price_micros * used // period


def prorate_over(*, price_micros: int, shares: Sequence[tuple[int, int]]) -> int:
    """Return price x the sum of used/period over several periods (a monthly rate over months), floored once."""
    if any(period <= 0 or not 0 <= used <= period for used, period in shares):
        raise NegativeUsage(f"shares {shares}")
    whole = lcm(*(period for _, period in shares)) if shares else 1
    return price_micros * sum(used * (whole // period) for used, period in shares) // whole


@dataclass(frozen=True)
class Termination:
    used: int
    remaining: int
    fee: int
    refund: int


def terminate(*, price_micros: int, used_s: int, period_s: int, fee_bp: int) -> Termination:
    """Return the end of a prepaid period before its time: used + fee + refund = price, in micro-units."""
    used = prorate(price_micros=price_micros, used=used_s, period=period_s)
    remaining = price_micros - used
    fee = remaining * fee_bp // BP
    return Termination(used, remaining, fee, remaining - fee)


def to_minor(amount_micros: int, *, micros_per_minor: int) -> tuple[int, int]:
    """Return (whole minor units, micro-units that stay in the account): what can be collected or paid out."""
    return divmod(amount_micros, micros_per_minor)


def tax_minor(base_minor: int, *, rate_bp: int) -> int:
    """Return the tax on a base, half-up to the minor unit: once per invoice and rate."""
    sign = -1 if base_minor < 0 else 1
    return sign * ((2 * abs(base_minor) * rate_bp + BP) // (2 * BP))


def tax_on_micros_minor(base_micros: int, *, rate_bp: int, micros_per_minor: int) -> int:
    """Return the tax in minor units on an exact base in micro-units, half-up."""
    sign, whole = (-1 if base_micros < 0 else 1), BP * micros_per_minor
    return sign * ((2 * abs(base_micros) * rate_bp + whole) // (2 * whole))


def credit_notes_minor(lines_minor: Sequence[int], *, rate_bp: int) -> list[int]:
    """Return the gross of one credit note per line: tax of note k = tax on everything so far - tax already credited."""
    notes, base = [], 0
    for line in lines_minor:
        already = tax_minor(base, rate_bp=rate_bp)
        base += line
        notes.append(line + tax_minor(base, rate_bp=rate_bp) - already)
    return notes


def split(total: int, weights: Sequence[int]) -> list[int]:
    """Return whole parts of `total` in proportion to `weights` by largest remainder, ties by position.

    They add up to `total` exactly. Raises ValueError when nothing has weight or a number is negative.
    """
    whole = sum(weights)
    if total < 0 or whole <= 0 or min(weights) < 0:
        raise ValueError(f"cannot split {total} by {list(weights)}")
    shares = [total * weight // whole for weight in weights]
    by_remainder = sorted(range(len(weights)), key=lambda i: (-(total * weights[i] % whole), i))
    for i in by_remainder[: total - sum(shares)]:
        shares[i] += 1
    return shares


def seconds_left(*, available_micros: int, burn_micros_per_hour: int, accrued_num: int = 0) -> int | None:
    """Return the largest whole n with accrued + burn x n <= available x 3600; None if nothing burns; never below 0."""
    if burn_micros_per_hour == 0:
        return None
    return max(0, (available_micros * SECONDS_PER_HOUR - accrued_num) // burn_micros_per_hour)


@dataclass(frozen=True)
class Credit:
    """Money that pays only for usage in [start_s, end_s); end_s None: without an end."""

    start_s: int
    end_s: int | None
    micros: int

    def usable_at(self, at_s: int) -> bool:
        return self.start_s <= at_s and (self.end_s is None or at_s < self.end_s)


def runs_dry_at_s(
    *,
    at_s: int,
    accrued_num: int,
    burn_micros_per_hour: int,
    steps: Sequence[tuple[int, int]],
    wallet_micros: int,
    credits: Sequence[Credit],
) -> int | None:
    """Return the last whole second that is paid for, or None if it never ends as things are known.

    steps: later changes of the burn as (second, difference); credits: in the order in which they are drawn.
    """
    wallet, owed, burn = wallet_micros * SECONDS_PER_HOUR, accrued_num, burn_micros_per_hour
    left = [credit.micros * SECONDS_PER_HOUR for credit in credits]
    edges = {edge for credit in credits for edge in (credit.start_s, credit.end_s) if edge is not None}
    for point in [*sorted(p for p in edges | {step for step, _ in steps} if p > at_s), None]:
        usable = [i for i, credit in enumerate(credits) if credit.usable_at(at_s)]
        funds = wallet + sum(left[i] for i in usable)
        if owed > funds and burn:  # a remainder below one micro-unit, with nothing running, stops nobody
            return at_s
        lasts_s = (funds - owed) // burn if burn else None
        if point is None or (lasts_s is not None and at_s + lasts_s < point):
            return None if lasts_s is None else at_s + lasts_s
        owed += burn * (point - at_s)
        for i in usable:
            drawn = max(0, min(left[i], owed))
            left[i], owed = left[i] - drawn, owed - drawn
        wallet, owed, at_s = wallet - owed, 0, point
        burn += sum(delta for step, delta in steps if step == point)
    return None


def exchange(amount_micros: int, *, rate: str) -> int:
    """Return the amount in the other currency at a decimal rate such as "7.1234", floored to the micro-unit."""
    whole, _, decimals = rate.partition(".")
    if not (whole + decimals).isascii() or not (whole + decimals).isdigit():
        raise ValueError(f"{rate!r} is no decimal rate")
    return amount_micros * int(whole + decimals) // int(10 ** len(decimals))


def parse_amount(text: str, *, minor_exponent: int) -> int:
    """Return the micro-units of a decimal amount as a person or a bank writes it.

    Raises ValueError for anything but digits and one point, and for an amount finer than the minor unit: nobody
    rounds somebody else's money.
    """
    whole, point, decimals = text.partition(".")
    if not (whole.isascii() and whole.isdigit()) or (point and not (decimals.isascii() and decimals.isdigit())):
        raise ValueError(f"{text!r} is no amount")
    if len(decimals) > minor_exponent:
        raise ValueError(f"{text!r} is finer than the currency's smallest unit")
    return int(whole) * 1_000_000 + int(decimals.ljust(6, "0") if decimals else "0")


def show(amount_micros: int, *, digits: int = 2) -> str:
    """Return a decimal text with at least `digits` decimals and as many as it takes to be exact."""
    sign, (whole, rest) = ("-" if amount_micros < 0 else ""), divmod(abs(amount_micros), 1_000_000)
    return f"{sign}{whole}.{f'{rest:06d}'.rstrip('0').ljust(digits, '0')}"


def money(amount_micros: int, currency: str) -> dict[str, str]:
    """Return an amount as the API spells it."""
    return {"amount": show(amount_micros, digits=6), "currency": currency}


def boundary(anchor: date, *, k: int, months: int = 1) -> date:
    """Return anchor + k steps of `months`, the day clamped to the month: never boundary k-1 plus a step."""
    index = anchor.year * 12 + anchor.month - 1 + k * months
    year, month = divmod(index, 12)
    return date(year, month + 1, min(anchor.day, _days_in_month(year, month + 1)))


def boundary_instant(anchor: datetime, *, k: int, months: int = 0, days: int = 0) -> datetime:
    """Return the instant k steps after a zoned `anchor`: dates are stepped locally, then made an instant.

    The anchor's zone must know its rules (zoneinfo): a remembered offset would be wrong after a change of the clocks.
    """
    day = boundary(anchor.date(), k=k, months=months) + timedelta(days=days * k)
    return datetime.combine(day, anchor.time(), tzinfo=anchor.tzinfo)


def _days_in_month(year: int, month: int) -> int:
    return (date(year + month // 12, month % 12 + 1, 1) - timedelta(days=1)).day
