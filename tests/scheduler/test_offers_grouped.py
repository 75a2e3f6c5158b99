"""Offers by model and region: lines that differ only elsewhere become one, with what is free in all."""

from typing import Any

import pytest

from scheduler import offer_rendering


def line(model: str, region: str, tier: str, *, free: int, micros: int) -> dict[str, Any]:
    return {
        "request": f"{model} x{free} @{region}", "gpu_model": model, "region": region, "tier": tier,
        "vendor": "nvidia", "memory_gib": 80, "most_in_one_machine": free, "available": free,
        "price_micros_per_hour": micros, "currency": "XTS", "simulated": True,
    }  # fmt: skip


LINES = [
    line("A100_80G", "north", "verified", free=4, micros=2_000_000),
    line("A100_80G", "north", "certified", free=2, micros=3_000_000),
    line("A100_80G", "south", "verified", free=8, micros=1_500_000),
    line("H100_80G", "north", "verified", free=1, micros=9_000_000),
]


def shown(*group_by: str) -> list[tuple[Any, ...]]:
    return [
        (row["gpu_model"], row["region"], row["tier"], row["available"], row["most_in_one_machine"],
         row["price"]["amount"])
        for row in offer_rendering.offers(LINES, sort="price", group_by=group_by)
    ]  # fmt: skip


def test_by_model() -> None:
    assert shown("model") == [
        ("A100_80G", None, None, 14, 8, "1.500000"),
        ("H100_80G", "north", "verified", 1, 1, "9.000000"),
    ]


def test_by_region() -> None:
    assert shown("region") == [
        ("A100_80G", "south", "verified", 8, 8, "1.500000"),
        (None, "north", None, 7, 4, "2.000000"),
    ]


def test_by_both() -> None:
    assert shown("model", "region") == [
        ("A100_80G", "south", "verified", 8, 8, "1.500000"),
        ("A100_80G", "north", None, 6, 4, "2.000000"),
        ("H100_80G", "north", "verified", 1, 1, "9.000000"),
    ]


def test_what_is_named_to_be_asked_for_is_the_cheapest() -> None:
    assert offer_rendering.offers(LINES, sort="price", group_by=["model"])[0]["request"] == "A100_80G x8 @south"


@pytest.mark.parametrize("group_by", [(), ("model",), ("region",), ("model", "region")])
def test_nothing_free_is_lost(group_by: tuple[str, ...]) -> None:
    assert sum(row["available"] for row in offer_rendering.offers(LINES, sort="price", group_by=group_by)) == 15
