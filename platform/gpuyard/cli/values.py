"""Single values of the API in words: money, instants, reasons."""

import shlex
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from gpuyard.cli import tongue
from gpuyard.durations import show

Row = dict[str, Any]

_END_REASONS = {
    "tenant": "you ended it",
    "completed": "its command exited",
    "expired": "its term was over",
    "balance": "the wallet was empty",
    "preempted": "spot capacity was taken back",
    "host_lost": "its host was lost",
    "failed_to_start": "its container could not be started",
    "operator": "an operator ended it",
    "never_placed": "it never found a place",
}


_UNITS = {"gpu_hour": "GPU-h", "gib_hour": "GiB-h", "hour": "h"}


def ended_by(reason: str | None) -> str:
    """Return why a lease ended, in words; a reason that is not known stays as it is, and none is nothing."""
    return tongue.said(_END_REASONS.get(reason or "", reason or ""))


def plain(value: Any) -> str:
    """Return any JSON value in words."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        if {"amount", "currency"} <= value.keys():
            return money(value)
        return ", ".join(f"{name} {plain(item)}" for name, item in value.items() if item not in (None, "", [], {}))
    if isinstance(value, list):
        return "; ".join(plain(item) for item in value)
    return str(value)


def readable(name: str, value: Any, around: Row) -> str:
    """Return a member in words by the unit its name ends in."""
    if name.endswith(("_micros", "_micros_per_hour")) and isinstance(value, int):
        return f"{amount(Decimal(value) / 1_000_000)} {around.get('currency') or ''}".rstrip()
    if name.endswith("_s") and isinstance(value, int):
        return show(value)
    if name == "command" and isinstance(value, list):
        return shlex.join(map(str, value))
    return plain(value)


def amount(number: Decimal) -> str:
    """Return a decimal with two places, and more only where they say something."""
    whole, _, places = f"{number:.6f}".partition(".")
    return f"{whole}.{places.rstrip('0').ljust(2, '0')}"


def money(value: Any) -> str:
    if not isinstance(value, dict) or "amount" not in value:
        return ""
    unit = value.get("per")
    per = f"/{_UNITS.get(unit, unit)}" if unit else ""
    return f"{amount(Decimal(value['amount']))} {value.get('currency', '')}{per}"


def price(row: Row) -> str:
    """Return a row's price per GPU-hour, as money or as micro-units beside a currency."""
    if isinstance(row.get("price"), dict):
        return money(row["price"])
    micros = row.get("price_micros_per_hour")
    return f"{amount(Decimal(micros) / 1_000_000)} {row.get('currency', '')}/GPU-h" if micros is not None else ""


def ago(text: Any, *, now: datetime | None = None) -> str:
    """Return how long ago an instant was, or when it will be."""
    if not isinstance(text, str):
        return ""
    seconds = ((now or datetime.now(UTC)) - datetime.fromisoformat(text)).total_seconds()
    return tongue.said(f"{show(seconds)} ago" if seconds >= 0 else f"in {show(-seconds)}")


def until(text: Any) -> str:
    """Return an instant, and how far away it is."""
    return f"{text} ({ago(text)})" if text else ""


def badge(row: Row) -> str:
    return " (simulated)" if row.get("simulated") else ""


def member(name: str) -> Callable[[Row], str]:
    """Return a reader of one member of a row."""
    return lambda row: plain(row.get(name))


def gib(row: Row) -> str:
    return f"{row['memory_gib']} GiB" if row.get("memory_gib") else ""


def eta(row: Row) -> str:
    known = row.get("eta") or {}
    if not known.get("at"):
        return ""
    basis = f": {known['basis']}" if known.get("basis") else ""
    return f"{ago(known['at'])} ({known['at']}, {known.get('certainty') or 'estimated'}{basis})"
