"""What a host tells by events: each is kept once in its diary, and some answer what was wished for."""

from datetime import datetime

from agents import executions, port_check, releases, verification, volumes
from agents.models import Host, HostEvent
from agents.protocol import SyncRequest

EVENT_LIMIT = 200
# Of an event, what has a place of its own, and what is a tenant's.
NOT_KEPT = {"n", "kind", "detail", "devices"} | executions.PRIVATE


def take(host: Host, request: SyncRequest, *, at: datetime) -> int:
    """Keep each event once, by its number under this key; return the highest number that was taken."""
    highest = 0
    for event in request.events[:EVENT_LIMIT]:
        n, kind = (event.get("n"), event.get("kind")) if isinstance(event, dict) else (None, None)
        if not (isinstance(n, int) and not isinstance(n, bool) and 0 < n < 2**63 and isinstance(kind, str)):
            continue
        row = HostEvent(
            host=host, at=at, kind=f"agent.{kind}"[:40], detail=str(event.get("detail", ""))[:500], key_id=host.key_id,
            n=n, facts={k[:40]: v for k, v in event.items() if k not in NOT_KEPT},
        )  # fmt: skip
        highest = max(highest, n)
        if HostEvent.objects.filter(host=host, key_id=host.key_id, n=n).exists():
            continue
        row.save(force_insert=True)
        if kind == "selftest":
            verification.answered(host, event, at=at)
        elif kind == "exec":
            executions.answered(host, event, at=at)
        elif kind == "volume_gone":
            volumes.dropped(host, event, at=at)
        elif kind in ("upgraded", "upgrade_failed"):
            releases.answered(host, event, at=at)
        elif kind == "listen":
            port_check.answered(host, event, at=at)
    return highest
