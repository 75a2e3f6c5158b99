"""Snapshot and ask in, placement or refusal out. Pure: the same input gives the same answer on any machine.

Order of choice among hosts with room: the organization's own hosts, NVLink if wanted, the price in steps of one
percent, hosts nobody may reclaim, the packing score, what is left (GPUs, CPU, RAM: less is better), and last a keyed
hash of the host's key, so that neither names nor the order of rows carry a preference.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial

from scheduler.placement import judging
from scheduler.placement.availability import ends_after
from scheduler.placement.eligibility import Shortfall, has_model, is_visible
from scheduler.placement.judging import Candidate, Judge
from scheduler.placement.pool import stable_hash
from scheduler.placement.reasons import Refusal, partition
from scheduler.placement.relaxations import request_line, what_would_help
from scheduler.placement.snapshot import Ask, HostView, Member, Option, Placement

Rank = tuple[int, ...]


def decide(
    hosts: Sequence[HostView], ask: Ask, *, explain: bool = True, judge: Judge = judging.judge
) -> Placement | Refusal:
    """Place the first alternative that has room for all of [start_s, until_s), or say why none has.

    A refusal explains the alternative that can start first by known ends (the first one if none is known).
    explain=False leaves the relaxations out, which cost a few more decisions. judge: see `warm.Decider`.
    """
    visible = [host for host in hosts if is_visible(host, ask.organization)]
    refusals = []
    for index, option in enumerate(ask.options):
        found = _place(visible, option, index, ask, judge)
        if isinstance(found, Placement):
            return found
        refusals.append(found)
    nearest = min(
        refusals, key=lambda r: (r.earliest_s is None, r.earliest_s or 0, not r.hosts_with_model, r.option_index)
    )
    if not explain:
        return nearest
    return explained(visible, ask, nearest, judge=judge)


def explained(hosts: Sequence[HostView], ask: Ask, refusal: Refusal, *, judge: Judge = judging.judge) -> Refusal:
    """Return a refusal with what would help; hosts: those that the organization may see."""
    helps = what_would_help(hosts, ask, ask.options[refusal.option_index], refusal, partial(fits, judge=judge))
    return replace(refusal, relaxations=helps)


def fits(hosts: Iterable[HostView], option: Option, ask: Ask, *, judge: Judge = judging.judge) -> Placement | None:
    """Return the placement of one alternative on hosts that the organization may see, or None."""
    verdicts = judge([host for host in hosts if has_model(host, option)], option, ask)
    return _choose([verdict for verdict in verdicts if isinstance(verdict, Candidate)], option, 0, ask)


def option_holders(hosts: Iterable[HostView], ask: Ask) -> list[HostView]:
    """Return the hosts that may be told of to this organization and have what the first alternative names."""
    return [host for host in hosts if is_visible(host, ask.organization) and has_model(host, ask.options[0])]


def _place(hosts: list[HostView], option: Option, index: int, ask: Ask, judge: Judge) -> Placement | Refusal:
    holders = [host for host in hosts if has_model(host, option)]
    verdicts = judge(holders, option, ask)
    candidates = [verdict for verdict in verdicts if isinstance(verdict, Candidate)]
    placement = _choose(candidates, option, index, ask)
    if placement is not None:
        return placement
    together = max((len(members) for members in _domains(candidates, ask).values()), default=0)
    short = [v if isinstance(v, Shortfall) else Shortfall("gang", option.nodes, together) for v in verdicts]
    earliest = _earliest(holders, short, option, ask)
    return Refusal(request_line(option), index, len(holders), partition(short), earliest)


def _domains(candidates: Iterable[Candidate], ask: Ask) -> dict[tuple[str, ...], list[Candidate]]:
    """Group hosts by where a gang must stay together: one model in one region, and one zone or fabric if asked."""
    domains: dict[tuple[str, ...], list[Candidate]] = {}
    for candidate in candidates:
        host = candidate.room.host
        if ask.same_fabric and not host.fabric:
            continue
        place = (host.model, host.region, host.zone if ask.same_zone else "", host.fabric if ask.same_fabric else "")
        domains.setdefault(place, []).append(candidate)
    return domains


def _choose(candidates: list[Candidate], option: Option, index: int, ask: Ask) -> Placement | None:
    if not candidates:
        return None
    cheapest = min([candidate.room.price_micros for candidate in candidates])
    if option.nodes == 1:
        best = min(candidates, key=lambda candidate: rank_of(candidate, cheapest))
        return placement_of([best], index, len(candidates))
    gangs: list[tuple[tuple[int, ...], list[Candidate]]] = []
    for place, members in _domains(candidates, ask).items():
        if len(members) >= option.nodes:
            chosen = sorted(members, key=lambda candidate: rank_of(candidate, cheapest))[: option.nodes]
            # Cheaper steps first, then the domain with the fewest hosts to spare: large domains stay for large gangs.
            steps = [sum(part) for part in zip(*(rank_of(c, cheapest)[:4] for c in chosen), strict=True)]
            gangs.append(((*steps, len(members), stable_hash("/".join(place))), chosen))
    if not gangs:
        return None
    gang = min(gangs, key=lambda item: item[0])[1]
    # Ranks follow the fabric, so that neighbours in a ring are neighbours on the network.
    gang.sort(key=lambda c: (c.room.host.zone, c.room.host.fabric, *rank_of(c, cheapest)))
    return placement_of(gang, index, len(candidates))


def rank_of(candidate: Candidate, cheapest: int) -> Rank:
    """Return what is compared, best = smallest. cheapest: the lowest price of all candidates, micro-units."""
    step = (candidate.room.price_micros - cheapest) * 100 // max(cheapest, 1)
    return (candidate.foreign, candidate.apart, step, candidate.reclaimable, *candidate.tail)


def placement_of(chosen: list[Candidate], index: int, compared: int) -> Placement:
    members = tuple(
        Member(
            host=candidate.room.host.key,
            seats=candidate.room.seats,
            cpu_milli=candidate.room.cpu_milli,
            ram_mib=candidate.room.ram_mib,
            disk_mib=candidate.room.disk_mib,
            price_micros=candidate.room.price_micros,
            reclaimable=candidate.reclaimable == 1,
            simulated=candidate.room.host.simulated,
        )
        for candidate in chosen
    )
    score = -sum(candidate.tail[0] for candidate in chosen)
    own = () if any(candidate.foreign for candidate in chosen) else ("own_host",)
    return Placement(members, index, score, (f"option:{index}", f"hosts_compared:{compared}", *own))


def _earliest(hosts: list[HostView], short: list[Shortfall], option: Option, ask: Ask) -> int | None:
    """Return the first second after start_s at which known ends leave room for the alternative, or None.

    One machine can start when its soonest host can. A gang not before enough hosts can each, and from there on the
    ends are tried in order, since a host that is free then may be reserved later.
    """
    able = {id(host): s.earliest_s if s.code == "busy" else ask.start_s if s.code == "gang" else None
            for host, s in zip(hosts, short, strict=True)}  # fmt: skip
    starts = sorted(second for second in able.values() if second is not None)
    if len(starts) < option.nodes:
        return None
    if option.nodes == 1:
        return starts[0]
    length = None if ask.until_s is None else ask.until_s - ask.start_s
    members = [host for host in hosts if able[id(host)] is not None]
    moments = {second for host in members for second in ends_after(host, ask.start_s)}
    for moment in sorted(second for second in moments if second >= starts[option.nodes - 1]):
        later = replace(ask, start_s=moment, until_s=None if length is None else moment + length)
        if fits(members, option, later) is not None:
            return moment
    return None
