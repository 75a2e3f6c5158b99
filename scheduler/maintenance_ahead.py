"""New leases keep clear of a maintenance that is announced, also before its lead time begins.

A host with a window in the range of a lease is taken only where nothing else has room. The reasons of the decision,
which the lease's event shows, say when the window begins then (`maintenance:2027-03-01T12:00:00Z`). Who gives no end
is taken to stay for OPEN_END_S. (From its lead time on such a host takes nothing at all.)
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

from agents.models import Maintenance
from scheduler.placement import Ask, Member, Placement, Refusal
from scheduler.pool import Pool, seconds

OPEN_END_S = 7 * 86_400


class Ahead:
    """The windows that are announced, as of one pass."""

    def __init__(self, at: datetime) -> None:
        self._windows: dict[str, list[tuple[int, int]]] = defaultdict(list)
        rows = Maintenance.objects.filter(over_at=None, withdrawn_at=None, ends_at__gt=at).order_by("starts_at")
        for host_id, starts_at, ends_at in rows.values_list("host", "starts_at", "ends_at"):
            self._windows[str(host_id)].append((seconds(starts_at), seconds(ends_at)))

    def decide(self, ask: Ask, pool: Pool, decide: Callable[[Ask], Placement | Refusal]) -> Placement | Refusal:
        """Return the decision on the hosts that stay, or on all where those have no room."""
        away = {host for host in self._windows if self._window(host, ask) is not None}
        if away:
            clear = decide(replace(ask, exclude_hosts=ask.exclude_hosts | pool.keys_of(away)))
            if isinstance(clear, Placement):
                return clear
        answer = decide(ask)
        met = [] if isinstance(answer, Refusal) else [self._window(_host(member), ask) for member in answer.members]
        first = min((window for window in met if window is not None), default=None)
        if first is None or isinstance(answer, Refusal):
            return answer
        begins = datetime.fromtimestamp(first[0], UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return replace(answer, reasons=(*answer.reasons, f"maintenance:{begins}"))

    def _window(self, host: str, ask: Ask) -> tuple[int, int] | None:
        until = ask.until_s if ask.until_s is not None else ask.start_s + OPEN_END_S
        for starts, ends in self._windows.get(host, ()):
            if starts < until and ends > ask.start_s:
                return starts, ends
        return None


def _host(member: Member) -> str:
    return str(member.host).split("/")[0]
