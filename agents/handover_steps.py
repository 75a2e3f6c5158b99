"""What giving a whole machine and taking it back have in common: the next look, troubles, and the diary."""

from datetime import datetime, timedelta
from typing import Any

from agents import host_events, machine_access, ssh
from agents.machine_records import Handover
from agents.models import Host
from audit import log as audit_log

LOOK_S = 5
KEPT = 60  # steps of a handover that are remembered
ACTOR = "system:machines"


def trouble(row: Handover, fault: Exception, why: str, *, at: datetime) -> None:
    host_id = row.workload.host_id
    if isinstance(fault, ssh.HostKeyChanged):
        machine_access.key_changed(host_id=host_id, shown=fault.key, at=at)
    host_events.record(host_id=host_id, kind="host.machine_trouble", detail=why, at=at)


def again(row: Handover, *, at: datetime, after_s: int) -> None:
    Handover.objects.filter(pk=row.pk).update(check_at=at + timedelta(seconds=after_s))


def say(host: Host, kind: str, detail: str, facts: dict[str, Any], *, at: datetime, by: str = "") -> None:
    host_events.record(host_id=host.pk, kind=kind, detail=detail, by=by, at=at, facts=facts)
    audit_log.record(
        actor=by or ACTOR,
        organization=host.owner_id,
        action=kind,
        target=host.public_id,
        after=facts,
        why=detail,
        at=at,
    )
