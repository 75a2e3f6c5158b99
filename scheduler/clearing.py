"""Machines that are cleared for a refused request: whom to send away, when they go, and what the engine says then.

Whether they move (`moving`) or end (`making_room`) is decided by those who ask.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from django.conf import settings
from django.db import OperationalError, connection, transaction

from leasing.calendar import CLEANING_MARGIN_S
from leasing.giving_way import NotNow
from scheduler import placing, second_opinion, spot_victims
from scheduler.guests import Guest, clear, machines_of
from scheduler.placement import Ask, HostView, Option, Placement, decide, eligibility
from scheduler.pool import Pool, seconds
from scheduler.spot_victims import Choice

WAIT_FOR_PLACER = "2s"


def possible(pool: Pool, ask: Ask, guests: dict[str, Guest], lost: dict[str, int]) -> Iterator[Choice]:
    """Yield whom to send away, cheapest first, for each alternative in turn."""
    for option in ask.options:
        able = [view for view in pool.hosts.values() if _could(view, option, ask)]
        machines = machines_of(able, guests, ask)
        # Several slices may lie on one GPU, or on as many as there are slices.
        counts = [option.count] if option.slice is None else range(1, option.count + 1)
        for count in counts:
            found = spot_victims.cheapest(machines, count=count, nodes=option.nodes, lost=lost)
            # Where nobody would go, something else is in the way.
            yield from (choice for choice in found if choice.leases)


def _could(view: HostView, option: Option, ask: Ask) -> bool:
    """Return whether nothing but who sits there is in the way."""
    if not (eligibility.is_visible(view, ask.organization) and eligibility.has_model(view, option)):
        return False
    verdict = eligibility.examine(view, option, ask)
    return not isinstance(verdict, eligibility.Shortfall) or verdict.code == "busy"


@dataclass(frozen=True)
class Times:
    ends_at: datetime  # of the notice
    begins_at: datetime  # of the successor: after stop grace and cleaning


def times_of(ask: Ask, *, notice_s: int, at: datetime) -> Times | None:
    """Return when leavers go and their successor begins: no later than asked for, if their notice allows."""
    cleaning = timedelta(seconds=settings.WORKLOAD_STOP_GRACE_S + CLEANING_MARGIN_S)
    soonest = at + timedelta(seconds=notice_s)
    ends_at = max(soonest, datetime.fromtimestamp(ask.start_s, UTC) - cleaning)
    begins_at = ends_at + cleaning
    if ask.until_s is not None and ask.until_s <= seconds(begins_at) + settings.WORKLOAD_STOP_GRACE_S:
        return None  # its term would be over before they are gone
    return Times(ends_at, begins_at)


def decide_cleared(pool: Pool, ask: Ask, choice: Choice, victims: Sequence[Guest], times: Times) -> Placement | None:
    """Return the engine's placement on the machines of a choice once its victims are gone, or None."""
    cleared = clear(pool, victims, until_s=seconds(times.begins_at))
    views = [cleared.hosts[key] for key in choice.machines]
    then = replace(ask, start_s=seconds(times.begins_at))
    found = decide(views, then, explain=False)
    return found if isinstance(found, Placement) and second_opinion.lawful(cleared, then, found) else None


def after_the_placer() -> None:
    """Wait for a pass that places to end, and keep the next from beginning before this has committed; or NotNow.

    Nothing else is held yet, so nobody waits for us meanwhile. What that pass has bound, the calendar says.
    """
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SELECT set_config('lock_timeout', %s, true)", [WAIT_FOR_PLACER])
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", [placing.PASS_LOCK])
    except OperationalError:
        raise NotNow("A pass that places takes long.") from None
