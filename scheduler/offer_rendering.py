"""Offers, quotes and plans as the API shows them."""

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from apikit.instants import instant_or_none as instant
from apikit.language import chosen
from apikit.money import Money
from leasing.models import Quote

_GROUP_FIELDS = {"model": "gpu_model", "region": "region"}


def quote(row: Quote) -> dict[str, Any]:
    return {
        "id": row.public_id,
        "version": row.version,
        "state": row.state,
        "actions": ["cancel"] if row.state == Quote.State.OPEN else [],
        "request": row.request,
        "gpu_count": row.gpu_count,
        "sku": row.sku,
        "price_per_hour": Money(row.price_micros_per_hour, row.currency).to_json(),
        "price": Money(row.price_micros_per_hour // max(row.gpu_count, 1), row.currency).to_json()
        | {"per": "gpu_hour"},
        "created_at": instant(row.created_at),
        "expires_at": instant(row.expires_at),
        "lease": row.lease.public_id if row.lease else None,
        "simulated": row.simulated,
    }


def offers(lines: list[dict[str, Any]], *, sort: str, group_by: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return the offers in order. group_by: "model", "region"; lines that differ only elsewhere become one."""
    if group_by:
        lines = _grouped(lines, [_GROUP_FIELDS[name] for name in group_by])
    field = "price_micros_per_hour" if sort.endswith("price") else "available"
    ordered = sorted(lines, key=lambda line: (line[field], line["request"]), reverse=sort.startswith("-"))
    return [_offer(line) for line in ordered]


def _grouped(lines: list[dict[str, Any]], fields: Sequence[str]) -> list[dict[str, Any]]:
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for line in lines:
        groups[tuple(line[field] for field in fields)].append(line)
    return [_merged(group) for group in groups.values()]


def _merged(group: list[dict[str, Any]]) -> dict[str, Any]:
    """Return one line for several: what they agree on, null for the rest, the lowest price, and what is free in all."""
    cheapest = min(group, key=lambda line: (line["price_micros_per_hour"], line["request"]))
    agreed = {name: value if all(x[name] == value for x in group) else None for name, value in cheapest.items()}
    return agreed | {
        "request": cheapest["request"],
        "most_in_one_machine": max(line["most_in_one_machine"] for line in group),
        "available": sum(line["available"] for line in group),
        "price_micros_per_hour": cheapest["price_micros_per_hour"],
        "currency": cheapest["currency"],
        "simulated": any(line["simulated"] for line in group),
    }


def _offer(line: dict[str, Any]) -> dict[str, Any]:
    price = Money(line["price_micros_per_hour"], line["currency"]).to_json() | {"per": "gpu_hour"}
    return {name: value for name, value in line.items() if name not in {"price_micros_per_hour", "currency"}} | {
        "price": price
    }


def plan(found: dict[str, Any]) -> dict[str, Any]:
    """Return a dry run's plan with its money and times as the API writes them."""
    currency = found["currency"]
    micros = {
        "price_micros_per_hour": "price_per_hour",
        "estimated_total_micros": "estimated_total",
        "first_hold_micros": "first_hold",
    }
    shown: dict[str, Any] = {}
    for name, value in found.items():
        if name in micros:
            shown[micros[name]] = None if value is None else Money(value, currency).to_json()
        else:
            shown[name] = value
    start = dict(found["start"])
    if isinstance(start["at"], datetime):
        start["at"] = instant(start["at"])
    placement = [
        {k: v for k, v in member.items() if k != "price_micros_per_hour"}
        | {"price": Money(member["price_micros_per_hour"], currency).to_json() | {"per": "gpu_hour"}}
        for member in found["placement"] or []
    ]
    if shown.get("why_waiting"):
        shown["why_waiting"] = chosen(shown["why_waiting"])
    return shown | {"start": start, "placement": placement or None}
