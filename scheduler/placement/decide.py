"""Snapshot and ask in, placement or refusal out. Pure: the same input gives the same answer on any machine.

Order of choice among hosts with room: the organization's own hosts, NVLink if wanted, the price in steps of one
percent, hosts nobody may reclaim, the packing score, what is left (GPUs, CPU, RAM: less is better), and last a keyed
hash of the host's key, so that neither names nor the order of rows carry a preference.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from scheduler.placement.availability import ends_after, free_resources, free_units
from scheduler.placement.eligibility import Room, Shortfall, examine, has_model, is_visible
from scheduler.placement.packing import MODES, packing_scores
from scheduler.placement.pool import stable_hash
from scheduler.placement.reasons import Refusal, partition
from scheduler.placement.relaxations import request_line, what_would_help
from scheduler.placement.seating import shares_clique
from scheduler.placement.snapshot import Ask, HostView, Member, Option, Placement

Rank = tuple[int, ...]


def decide(hosts: Sequence[HostView], ask: Ask, *, explain: bool = True) -> Placement | Refusal:
    """Place the first alternative that has room for all of [start_s, until_s), or say why none has.

    A refusal explains the alternative that can start first by known ends (the first one if none is known).
    explain=False leaves the relaxations out, which cost a few more decisions.
    """
    visible = [host for host in hosts if is_visible(host, ask.organization)]
    refusals = []
    for index, option in enumerate(ask.options):
        found = _place(visible, option, index, ask)
        if isinstance(found, Placement):
            return found
        refusals.append(found)
    nearest = min(
        refusals, key=lambda r: (r.earliest_s is None, r.earliest_s or 0, not r.hosts_with_model, r.option_index)
    )
    if not explain:
        return nearest
    helps = what_would_help(visible, ask, ask.options[nearest.option_index], nearest, fits)
    return replace(nearest, relaxations=helps)


def fits(hosts: Iterable[HostView], option: Option, ask: Ask) -> Placement | None:
    """Return the placement of one alternative on hosts that the organization may see, or None."""
    rooms = [room for host in hosts if has_model(host, option) and isinstance(room := examine(host, option, ask), Room)]
    return _choose(rooms, option, 0, ask)


def _place(hosts: list[HostView], option: Option, index: int, ask: Ask) -> Placement | Refusal:
    candidates = [host for host in hosts if has_model(host, option)]
    answers = [examine(host, option, ask) for host in candidates]
    rooms = [answer for answer in answers if isinstance(answer, Room)]
    placement = _choose(rooms, option, index, ask)
    if placement is not None:
        return placement
    together = max((len(rooms) for rooms in _domains(rooms, ask).values()), default=0)
    short = [a if isinstance(a, Shortfall) else Shortfall("gang", option.nodes, together) for a in answers]
    return Refusal(request_line(option), index, len(candidates), partition(short), _earliest(candidates, option, ask))


def _domains(rooms: Iterable[Room], ask: Ask) -> dict[tuple[str, ...], list[Room]]:
    """Group rooms by where a gang must stay together: one model in one region, and one zone or fabric if asked."""
    domains: dict[tuple[str, ...], list[Room]] = {}
    for room in rooms:
        host = room.host
        if ask.same_fabric and not host.fabric:
            continue
        place = (host.model, host.region, host.zone if ask.same_zone else "", host.fabric if ask.same_fabric else "")
        domains.setdefault(place, []).append(room)
    return domains


def _choose(rooms: list[Room], option: Option, index: int, ask: Ask) -> Placement | None:
    if not rooms:
        return None
    cheapest = min(room.price_micros for room in rooms)
    scored = zip(packing_scores(rooms, ask), rooms, strict=True)
    ranked = sorted(((_rank(room, score, cheapest, ask), room) for score, room in scored), key=lambda item: item[0])
    if option.nodes == 1:
        return _placement([ranked[0]], index, len(rooms))
    order = {id(room): (rank, room) for rank, room in ranked}
    gangs: list[tuple[tuple[int, ...], list[tuple[Rank, Room]]]] = []
    for place, members in _domains([room for _, room in ranked], ask).items():
        if len(members) >= option.nodes:
            best = [order[id(room)] for room in members[: option.nodes]]
            # Cheaper steps first, then the domain with the fewest hosts to spare: large domains stay for large gangs.
            steps = [sum(rank[part] for rank, _ in best) for part in range(4)]
            gangs.append(((*steps, len(members), stable_hash("/".join(place))), best))
    if not gangs:
        return None
    chosen = min(gangs, key=lambda gang: gang[0])[1]
    # Ranks follow the fabric, so that neighbours in a ring are neighbours on the network.
    chosen.sort(key=lambda item: (item[1].host.zone, item[1].host.fabric, item[0]))
    return _placement(chosen, index, len(rooms))


def _placement(chosen: list[tuple[Rank, Room]], index: int, compared: int) -> Placement:
    members = tuple(
        Member(
            host=room.host.key,
            seats=room.seats,
            cpu_milli=room.cpu_milli,
            ram_mib=room.ram_mib,
            disk_mib=room.disk_mib,
            price_micros=room.price_micros,
            reclaimable=rank[3] == 1,
            simulated=room.host.simulated,
        )
        for rank, room in chosen
    )
    score = -sum(rank[4] for rank, _ in chosen)
    own = ("own_host",) if all(rank[0] == 0 for rank, _ in chosen) else ()
    return Placement(members, index, score, (f"option:{index}", f"hosts_compared:{compared}", *own))


def _rank(room: Room, score: int, cheapest: int, ask: Ask) -> Rank:
    """Return what is compared, best = smallest."""
    host = room.host
    own = host.owner == ask.organization
    idle = sum(
        max(free_units(d, mode, ask.organization, ask.start_s, ask.until_s).bit_count() for mode in MODES)
        for d in host.devices
    )
    taken = sum(seat.stop - seat.start for seat in room.seats)
    cpu, ram, _ = free_resources(host, ask.start_s, ask.until_s)
    return (
        0 if own else 1,
        0 if ask.nvlink == "any" or shares_clique(host, room.seats) else 1,
        (room.price_micros - cheapest) * 100 // max(cheapest, 1),
        0 if own or host.access == "public" else 1,
        -score,
        idle - taken,
        cpu - room.cpu_milli,
        ram - room.ram_mib,
        stable_hash(host.key),
    )


def _earliest(hosts: list[HostView], option: Option, ask: Ask) -> int | None:
    """Return the first second after start_s at which known ends leave room for the alternative, or None."""
    length = None if ask.until_s is None else ask.until_s - ask.start_s
    moments = sorted({second for host in hosts for second in ends_after(host, ask.start_s)})
    for moment in moments:
        later = replace(ask, start_s=moment, until_s=None if length is None else moment + length)
        if fits(hosts, option, later) is not None:
            return moment
    return None
