"""What would work: the single changes of a refused request that make it placeable now, and the nearest other model."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from scheduler.placement.eligibility import has_model, resized
from scheduler.placement.reasons import Refusal, Relaxation
from scheduler.placement.snapshot import Ask, HostView, Option, Placement, Want

Fits = Callable[[Sequence[HostView], Option, Ask], Placement | None]
MOST_SUGGESTIONS = 6


def request_line(option: Option) -> str:
    """Return the option in the one-line form of a request."""
    least, most = option.memory_gib or (0, None)
    memory = f"any:{least}G+" if most is None else f"any:{least}G" if most == least else f"any:{least}G..{most}G"
    line = f"{option.nodes}*" if option.nodes > 1 else ""
    line += option.model or memory
    line += f"/{option.slice}" if option.slice else ""
    line += f" x{option.count}" if option.count > 1 else ""
    return line + (f" @{option.region}" if option.region else "")


def what_would_help(
    hosts: Sequence[HostView], ask: Ask, option: Option, refusal: Refusal, fits: Fits
) -> tuple[Relaxation, ...]:
    """Return, most useful first, each single relaxation under which the alternative has room now (at most six)."""
    failing = {reason.code for reason in refusal.reasons}
    found: list[Relaxation] = []
    for constraint, value, changed_option, changed_ask in _candidates(hosts, ask, option, failing):
        placement = fits(hosts, changed_option, changed_ask)
        if placement is not None and not any(r.constraint == constraint for r in found):
            price = max(member.price_micros for member in placement.members)
            found.append(Relaxation(constraint, value, request_line(changed_option), price))
    return tuple(found[:MOST_SUGGESTIONS])


Candidate = tuple[str, int | str | bool | None, Option, Ask]


def _candidates(hosts: Sequence[HostView], ask: Ask, option: Option, failing: set[str]) -> Iterator[Candidate]:
    yield from _constraints(hosts, ask, option, failing)
    if "region" in failing and option.region is not None:
        for region in sorted({host.region for host in hosts if has_model(host, option)} - {option.region}):
            moved = Want(option.model, option.count, option.nodes, option.slice, option.memory_gib, region)
            yield "region", region, moved, ask
    yield from _other_models(hosts, ask, option)
    for nodes in range(option.nodes - 1, 0, -1):
        yield "nodes", nodes, resized(option, count=option.count, nodes=nodes), ask
    if not ask.whole_machine:
        for count in range(option.count - 1, 0, -1):
            yield "count", count, resized(option, count=count, nodes=option.nodes), ask


def _constraints(hosts: Sequence[HostView], ask: Ask, option: Option, failing: set[str]) -> Iterator[Candidate]:
    """Each constraint that some host fails, loosened just so far as a host of the pool needs."""
    holders = [host for host in hosts if has_model(host, option)]
    if "price" in failing and ask.max_price_micros is not None:
        free_of_cap = replace(ask, max_price_micros=None)
        prices = {p for h in holders if (p := _price(h, option)) is not None and p > ask.max_price_micros}
        for price in sorted(prices):
            yield "max_price_micros", price, option, replace(free_of_cap, max_price_micros=price)
    if "driver" in failing:
        for driver in _below({h.driver_version for h in holders}, ask.min_driver):
            yield "min_driver", driver, option, replace(ask, min_driver=driver)
    if "cuda" in failing:
        for cuda in _below({h.cuda_version for h in holders}, ask.min_cuda):
            yield "min_cuda", cuda, option, replace(ask, min_cuda=cuda)
    if "reliability" in failing:
        lower = {h.reliability_bp for h in holders if h.reliability_bp < ask.min_reliability_bp}
        for reliability in sorted(lower, reverse=True):
            yield "min_reliability_bp", reliability, option, replace(ask, min_reliability_bp=reliability)
    if "tier" in failing and ask.min_tier == "certified":
        yield "min_tier", "verified", option, replace(ask, min_tier="verified")
    if "region" in failing and ask.regions:
        for region in sorted({h.region for h in holders} - ask.regions):
            yield "region", region, option, replace(ask, regions=ask.regions | {region})
    if "volume" in failing:
        yield "volumes", None, option, replace(ask, only_hosts=None)
    if "excluded" in failing:
        yield "exclude", None, option, replace(ask, exclude_hosts=frozenset(), exclude_owners=frozenset())
    yield from _switches(ask, option)


def _switches(ask: Ask, option: Option) -> Iterator[Candidate]:
    if ask.nvlink == "required":
        yield "nvlink", "wanted", option, replace(ask, nvlink="wanted")
    if ask.same_zone:
        yield "same_zone", False, option, replace(ask, same_zone=False)
    if ask.same_fabric:
        yield "same_fabric", False, option, replace(ask, same_fabric=False)
    if ask.whole_machine:
        yield "whole_machine", False, option, replace(ask, whole_machine=False)
    if ask.min_cpu_milli:
        yield "min_cpu_milli", 0, option, replace(ask, min_cpu_milli=0)
    if ask.min_ram_mib:
        yield "min_ram_mib", 0, option, replace(ask, min_ram_mib=0)
    if ask.min_disk_mib:
        yield "min_disk_mib", 0, option, replace(ask, min_disk_mib=0)


def _other_models(hosts: Sequence[HostView], ask: Ask, option: Option) -> Iterator[Candidate]:
    """Whole GPUs of other models, nearest first: same vendor, same compute capability, memory, then price."""
    asked = next((host for host in hosts if has_model(host, option)), None)
    if option.slice is not None or asked is None:
        return
    others = {host.model: host for host in hosts if not has_model(host, option) and host.price_micros is not None}
    for host in sorted(
        others.values(),
        key=lambda h: (
            h.vendor != asked.vendor,
            h.compute_capability != asked.compute_capability,
            abs(h.memory_gib - asked.memory_gib),
            h.price_micros,
            h.model,
        ),
    ):
        yield "model", host.model, Want(host.model, option.count, option.nodes, None, None, option.region), ask


def _price(host: HostView, option: Option) -> int | None:
    return host.price_micros if option.slice is None else host.slice_price_micros.get(option.slice)


def _below(versions: set[str], asked: str) -> list[str]:
    """Versions of the pool below the one asked for, highest first."""
    numbers = {
        version: tuple(int(p) if p.isdigit() else 0 for p in version.split(".")) for version in versions if version
    }
    bound = tuple(int(p) if p.isdigit() else 0 for p in asked.split("."))
    return sorted((v for v, n in numbers.items() if n < bound), key=lambda v: numbers[v], reverse=True)
