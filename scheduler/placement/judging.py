"""What each host is worth for one alternative: a candidate with everything that ranks it, or its first shortfall."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scheduler.placement.availability import free_resources, free_units
from scheduler.placement.eligibility import Room, Shortfall, examine
from scheduler.placement.packing import MODES, packing_scores
from scheduler.placement.pool import stable_hash
from scheduler.placement.seating import shares_clique
from scheduler.placement.snapshot import Ask, HostView, Option


@dataclass(frozen=True, slots=True)
class Candidate:
    """A host with room. Compared in this order, after the price: foreign, apart, reclaimable, tail (small is good)."""

    room: Room
    foreign: int
    apart: int
    reclaimable: int
    tail: tuple[int, ...]  # less the packing score, then what is left: units, CPU, RAM, and a hash of the host's key


Verdict = Candidate | Shortfall
Judge = Callable[[Sequence[HostView], Option, Ask], list[Verdict]]


def judge(hosts: Sequence[HostView], option: Option, ask: Ask) -> list[Verdict]:
    """Return a verdict for each host, in their order. A host's verdict depends on no other host."""
    answers = [examine(host, option, ask) for host in hosts]
    rooms = [answer for answer in answers if isinstance(answer, Room)]
    scores = iter(packing_scores(rooms, ask))
    return [_candidate(a, next(scores), ask) if isinstance(a, Room) else a for a in answers]


def _candidate(room: Room, score: int, ask: Ask) -> Candidate:
    host = room.host
    own = host.owner == ask.organization
    idle = sum(
        max(free_units(d, mode, ask.organization, ask.start_s, ask.until_s).bit_count() for mode in MODES)
        for d in host.devices
    )
    taken = sum(seat.stop - seat.start for seat in room.seats)
    cpu, ram, _ = free_resources(host, ask.start_s, ask.until_s)
    return Candidate(
        room,
        foreign=0 if own else 1,
        apart=0 if ask.nvlink == "any" or shares_clique(host, room.seats) else 1,
        reclaimable=0 if own or host.access == "public" else 1,
        tail=(-score, idle - taken, cpu - room.cpu_milli, ram - room.ram_mib, stable_hash(host.key)),
    )
