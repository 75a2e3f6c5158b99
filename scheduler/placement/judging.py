"""What each host is worth for one alternative: a candidate with everything that ranks it, or its first shortfall."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scheduler.placement.eligibility import Room, Shortfall, examine
from scheduler.placement.packing import Packing, packings
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
    worth = iter(packings(rooms, ask))
    return [_candidate(a, next(worth), ask) if isinstance(a, Room) else a for a in answers]


def _candidate(room: Room, packing: Packing, ask: Ask) -> Candidate:
    host = room.host
    own = host.owner == ask.organization
    taken = sum(seat.stop - seat.start for seat in room.seats)
    cpu, ram = packing.cpu_milli - room.cpu_milli, packing.ram_mib - room.ram_mib
    return Candidate(
        room,
        foreign=0 if own else 1,
        apart=0 if ask.nvlink == "any" or shares_clique(host, room.seats) else 1,
        reclaimable=0 if own or host.access == "public" else 1,
        tail=(-packing.score, packing.idle_units - taken, cpu, ram, stable_hash(host.key)),
    )
