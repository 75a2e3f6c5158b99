"""Can the tenant get into the machine that he pays for? Asked every EVERY_S, from where the control plane stands.

The agent's word that the GPUs are well is half of it: a machine whose sshd is dead, whose port nobody forwards any
more, or which refuses the tenant's key is of no use to him. So the machine is asked, with his public keys, whether it
would let him in (`agents.ssh_asking`). A refusal has his account and keys put in order at once (`machines`): whether
the owner or the tenant changed them, the seconds are few and nobody gains. After SHUT_AFTER looks in a row without a
yes the machine counts as shut since the last yes: the use of it ended there, and no second after that is billed.
What happens to the lease is the recovery policy's affair; if the machine opens again in time, the use goes on.

If of several machines not one can be reached, it is rather our own way out that is shut: nobody's use is ended by that,
an alarm is raised, and their agents' word counts alone.
"""

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import Q

from agents import host_events, host_life, machine_access, ssh
from agents.machine_records import Handover, MachineAccess
from agents.models import Workload
from apikit.clock import whole_second
from apikit.errors import DomainError

EVERY_S = 15
SHUT_AFTER = 3
BATCH, AT_ONCE = 64, 16
SEVERAL = 3  # from so many on, "not one" speaks against us
ALARM = "no_machine_reached"
SHUT = "Its machine does not let the tenant in: "

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Look:
    """What one machine said, and when. fault: None if it would let the tenant in."""

    row: Handover
    at: datetime
    fault: DomainError | None


def look(*, now: Callable[[], datetime]) -> int:
    """Ask the machines whose turn it is; return how many did not say yes. Two loops at once share the work."""
    rows = _claim(at=now())
    if not rows:
        return 0
    accesses = MachineAccess.objects.filter(host__in=[row.workload.host_id for row in rows])
    doors = {access.host_id: access for access in accesses}
    # Its threads ask no database.
    with ThreadPoolExecutor(max_workers=AT_ONCE, thread_name_prefix="looks") as pool:
        looks = list(pool.map(lambda row: _ask(row, doors.get(row.workload.host_id), now), rows))
    shut = [each for each in looks if each.fault is not None]
    if len(looks) >= SEVERAL and all(isinstance(each.fault, ssh.Unreachable) for each in looks):
        detail = f"Not one of {len(looks)} machines in tenants' hands can be reached over SSH."
        host_events.raise_alarm(kind=ALARM, detail=detail, at=now(), facts={"machines": len(looks)})
        return len(shut)
    if len(shut) < len(looks):
        host_events.settle_alarm(kind=ALARM, at=now())
    for each in looks:
        try:
            _note(each)
        except Exception:  # the others must not wait for it; it is looked at again
            log.exception("a look at a machine could not be noted", extra={"handover": str(each.row)})
    return len(shut)


def _claim(*, at: datetime) -> list[Handover]:
    """Return the machines that are due, each for us alone."""
    leaves_soon = Q(workload__not_after__lte=at + timedelta(seconds=EVERY_S))  # its sshd may refuse him a moment early
    given = Handover.objects.filter(state=Handover.State.GIVEN, workload__wanted=True).exclude(leaves_soon)
    due = given.filter(Q(look_at=None) | Q(look_at__lte=at))
    mine = []
    for row in due.select_related("workload").order_by("look_at")[:BATCH]:
        later = at + timedelta(seconds=EVERY_S)
        if Handover.objects.filter(pk=row.pk, look_at=row.look_at).update(look_at=later):
            mine.append(row)
    return mine


def _ask(row: Handover, access: MachineAccess | None, now: Callable[[], datetime]) -> Look:
    if access is None:
        return Look(row, now(), ssh.Unreachable("The platform knows no way to the machine."))
    try:
        machine_access.ask_door(access, user=row.user, keys=row.workload.spec["ssh_keys"])
    except DomainError as fault:
        return Look(row, now(), fault)
    except Exception as fault:
        log.exception("a machine could not be asked", extra={"handover": str(row)})
        return Look(row, now(), ssh.Unreachable(f"{type(fault).__name__}: {fault}"))
    return Look(row, now(), None)


@transaction.atomic
def _note(seen: Look) -> None:
    """Write down what was seen. The host's lock is what the sync that judges the workload holds too."""
    host = host_life.lock(seen.row.workload.host_id)
    row = Handover.objects.select_related("workload").get(pk=seen.row.pk)
    if row.state != Handover.State.GIVEN or not row.workload.wanted:
        return
    if seen.fault is None:
        if row.shut_since is not None:
            facts = {"reference": row.workload.reference, "shut_since": row.shut_since.isoformat()}
            host_events.record(host_id=host.pk, kind="host.machine_open", at=seen.at, facts=facts)
        Handover.objects.filter(pk=row.pk).update(let_in_at=seen.at, refusals=0, shut_since=None)
        return
    refusals, why = row.refusals + 1, seen.fault.detail
    Handover.objects.filter(pk=row.pk).update(refusals=refusals, last_error=why[:300])
    if refusals == 1:
        Handover.objects.filter(pk=row.pk).update(check_at=seen.at)  # his account and keys are put in order now
    if isinstance(seen.fault, ssh.HostKeyChanged):
        machine_access.key_changed(host_id=host.pk, shown=seen.fault.key, at=seen.at)
    if row.shut_since is None and (refusals >= SHUT_AFTER or isinstance(seen.fault, ssh.HostKeyChanged)):
        _shut(row, why, at=seen.at)


def _shut(row: Handover, why: str, *, at: datetime) -> None:
    workload = row.workload
    since = whole_second(row.let_in_at or at)
    if workload.ready_at is not None:
        since = max(since, workload.ready_at)
        earlier = min(since, workload.unusable_since or since)
        Workload.objects.filter(pk=workload.pk).update(unusable_since=earlier, detail=f"{SHUT}{why}"[:500])
    Handover.objects.filter(pk=row.pk).update(shut_since=since)
    facts = {"reference": workload.reference, "since": since.isoformat()}
    host_events.record(host_id=workload.host_id, kind="host.machine_shut", detail=why, at=at, facts=facts)
