"""Each decision is looked at again before anything comes of it, by a checker that shares no code with the engine.

Only the machines that were chosen are looked at, so that it costs little beside the decision itself. Where the two
disagree the decision is refused, counted, and an operator is called: a fault of ours never becomes a lease.
"""

import logging

from prometheus_client import Counter

from apikit.errors import DomainError
from scheduler.placement import Ask, Placement, checker
from scheduler.pool import Pool

log = logging.getLogger(__name__)
DISAGREEMENTS = Counter("gpuyard_placement_disagreements", "Decisions that the independent checker found unlawful")
ALARM = "placement_disagreement"


class Unlawful(DomainError):
    """The engine's decision breaks a rule, by the checker's reading; the detail says which. Nothing was written."""

    slug = "placement-fault"
    title = "A decision of ours was found to be wrong, and refused"
    status = 503


def lawful(pool: Pool, ask: Ask, placement: Placement) -> bool:
    """Return whether the checker agrees; what it disagrees with is counted and logged."""
    try:
        check(pool, ask, placement)
    except Unlawful:
        return False
    return True


def check(pool: Pool, ask: Ask, placement: Placement) -> None:
    """Raise Unlawful if the placement breaks a rule on the pool as it is before the placement is laid over it."""
    chosen = [pool.hosts[str(member.host)] for member in placement.members if str(member.host) in pool.hosts]
    broken = checker.violations(chosen, ask, placement)
    if broken:
        DISAGREEMENTS.inc()
        log.error("the checker disagrees with a placement", extra={"broken": broken})
        raise Unlawful("; ".join(broken)[:500])
