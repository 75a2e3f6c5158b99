"""Held requests wait here until their host's `generation` moves: one question for all of them, ten times a second."""

from collections.abc import Sequence
from uuid import UUID

from django.conf import settings
from django.db import connection

from apikit.watching import Watches, in_pool

__all__ = ["hold_s", "in_pool", "moved", "watches"]
LOOK_EVERY_S = 0.1
SYNCS_PER_S = 250  # what one process is asked for at the most, where longer holds can bring it down to that
HEARD_WITHIN_S = 6  # a host is heard so long before it would be suspected, at the least
_NONE = -1  # of a host that is no more


def _moved(waits: Sequence[tuple[UUID, int]]) -> dict[UUID, int]:
    """Return the generations that are other than those that were seen: on most looks none, or a few of thousands."""
    hosts, seen = [host for host, _ in waits], [generation for _, generation in waits]
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT wait.host, host.generation FROM unnest(%s::uuid[], %s::bigint[]) AS wait (host, generation)"
            " LEFT JOIN agents_host AS host ON host.id = wait.host"
            " WHERE host.generation IS DISTINCT FROM wait.generation",
            [hosts, seen],
        )
        return {host: _NONE if generation is None else generation for host, generation in cursor.fetchall()}


def _look(waits: list[tuple[UUID, int]]) -> dict[UUID, int]:
    return _moved(waits)


# A failing look lets everybody go: each finds out by itself what is wrong, and says so to its agent.
watches: Watches[UUID, int] = Watches(_look, every_s=LOOK_EVERY_S, lets_go=True)


def hold_s(*, crowded: bool = False) -> int:
    """Return how long a request may be held now: the more are held here, the longer, so that fewer come in a second.

    Nothing waits for the end of a hold: what is wanted ends it, and what an agent has to say ends it at its side.
    crowded: more come than can be heard: as long as may be.
    """
    most_s = settings.HOST_SUSPECT_AFTER_S - HEARD_WITHIN_S
    held = sum(map(len, watches.here().waits.values()))
    return int(max(settings.HOST_SYNC_HOLD_S, most_s if crowded else min(most_s, held / SYNCS_PER_S)))


async def moved(*, host_id: UUID, generation: int, within_s: float) -> bool:
    """Wait until the generation of the host is not `generation` any more, for at most `within_s` seconds."""
    return await watches.here().moved(host_id, seen=generation, within_s=within_s)
