"""Where a lease goes: pure decisions over a snapshot, with reasons. No Django, no database, no clock, no randomness.

    from scheduler.placement import Ask, Busy, DeviceView, HostView, Placement, Want, decide, units_mask

    host = HostView(
        key="h1", region="cn-north", model="A100_80G", memory_gib=80, owner="org-1",
        cpu_milli=96_000, ram_mib=786_432, disk_mib=4_000_000,                      # all that is let on this host
        cpu_milli_per_gpu=12_000, ram_mib_per_gpu=98_304, disk_mib_per_gpu=500_000,  # the fixed share of one GPU
        price_micros=12_000_000,                                                     # one GPU for one hour
        devices=(
            DeviceView("h1-gpu0", busy=(Busy(units_mask(0, 8), "whole", "org-2", start_s=0, end_s=9_000),)),
            DeviceView("h1-gpu1"),
        ),
    )
    ask = Ask(options=(Want("A100_80G", count=2),), organization="org-3", now_s=5_000, start_s=5_000)
    answer = decide([host], ask)

`options` takes the options of a parsed request (`leasing.grammar`) as they are. A `Placement` names hosts, devices and
units in rank order; a `Refusal` counts hosts per constraint (`reasons`), knows the earliest start by known ends
(`earliest_s`), what would help (`relaxations`), and says it in a sentence: `answer.text("en")`.

A worker that decides often over one pool keeps a `Decider` and calls `decider.decide(hosts, ask)`: the same answers,
from memory where a host is still the same object.

`Engine` is the same packing over a stream of plain requests, for benchmarks and foreign harnesses: see its docstring.
`checker` and `recount` judge the decisions of the two; they share no code with them.
"""

from typing import TYPE_CHECKING, Any

from scheduler.placement.decide import decide, explained
from scheduler.placement.reasons import Reason, Refusal, Relaxation
from scheduler.placement.repeating import Repeated, can_repeat
from scheduler.placement.snapshot import (
    ALL_UNITS,
    Ask,
    Busy,
    DeviceView,
    HostView,
    Member,
    Option,
    Placement,
    Seat,
    Want,
    units_mask,
)
from scheduler.placement.warm import Decider

if TYPE_CHECKING:
    from scheduler.placement.engine import Engine, Placed, Request

__all__ = [
    "ALL_UNITS",
    "Ask",
    "Busy",
    "Decider",
    "DeviceView",
    "Engine",
    "HostView",
    "Member",
    "Option",
    "Placed",
    "Placement",
    "Reason",
    "Refusal",
    "Relaxation",
    "Repeated",
    "Request",
    "Seat",
    "Want",
    "can_repeat",
    "decide",
    "explained",
    "units_mask",
]


def __getattr__(name: str) -> Any:
    """Load the engine when it is asked for: no process of the product uses it, and its compiler is large."""
    if name not in {"Engine", "Placed", "Request"}:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from scheduler.placement import engine

    return getattr(engine, name)
