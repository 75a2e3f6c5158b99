"""Whole machines in the hands of tenants: wanted, given, seen to be usable, taken back, proven clean.

A whole machine is a Workload of the kind `machine`: nobody tells the agent of it; the control plane gives it over SSH
(`hand_over`, a loop that claims what is due) and the agent, which stays, is the witness. It is *usable* from the second
in which the first sync of its host was received after the handing over with all its GPUs well; each later sync says so
again, and so do the control plane's own looks at its door (agents.machine_looks). It is *gone* only when the machine
has passed everything (agents.machines_back): account and files away, no session left, nothing changed that the tenant
had no right to, rebooted where that can be, and a self-test. Until then its devices stay bound.
A machine that cannot be taken back is quarantined, and an operator settles it.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from django.db import transaction
from django.db.models import Q

from agents import handover_steps, host_life, machine_access, machine_looks, machine_verbs, machines_back, silence, ssh
from agents.bootstrap import Machine
from agents.machine_records import Handover, MachineAccess
from agents.models import Device, Host, Workload
from apikit.clock import whole_second
from apikit.errors import DomainError

GIVE_TRIES = 3
CLAIM_S = 900  # longer than all steps of a take together may last
State = Handover.State

log = logging.getLogger(__name__)


def account_name(reference: str) -> str:
    """Return the tenant's account on the machine: `gy-` and the lease's own 26 characters."""
    return f"gy-{reference.rpartition('_')[2].lower()}"[:32]


def begin(workloads: Iterable[Workload], *, at: datetime) -> None:
    """Note that wanted machines are to be given. Called by `workloads.want_all` in its transaction."""
    Handover.objects.bulk_create(
        Handover(workload=workload, user=account_name(workload.reference), state_since=at, check_at=at)
        for workload in workloads
    )


def see(host: Host, machines: Iterable[Workload], *, reports: Iterable[Any], at: datetime) -> None:
    """A sync was received: the machine is heard, and whether its GPUs are well decides if it is usable.

    Called under the host's lock, after the device reports were judged.
    """
    said_ok = {row.get("uuid") for row in reports if isinstance(row, dict) and row.get("state", "ok") == "ok"}
    dead = (Device.Health.LOST, Device.Health.FAILED, Device.Health.REMEDY)
    well = set(host.devices.filter(present=True).exclude(health__in=dead).values_list("uuid", flat=True)) & said_ok
    for workload in machines:
        handover = workload.handover
        usable = set(workload.spec.get("devices", [])) <= well
        changed: dict[str, Any] = {"reported_at": at}
        given = workload.wanted and handover.state == State.GIVEN
        if handover.shut_since is not None:
            Workload.objects.filter(pk=workload.pk).update(**changed)  # until agents.machine_looks finds it open
            continue
        if given and workload.ready_at is None and usable:
            changed |= {"ready_at": whole_second(at), "step": "ready", "detail": ""}
        if workload.ready_at is not None and usable == (workload.unusable_since is not None):
            since = whole_second(silence.last_proof(workload.reported_at, at=at))
            changed["unusable_since"] = None if usable else since
            changed["detail"] = "" if usable else "Not all its GPUs are well."
        Workload.objects.filter(pk=workload.pk).update(**changed)


def hand_over(*, now: Callable[[], datetime], limit: int = 4) -> int:
    """Do what is due on machines, each under a claim; return how many were looked at. SSH may take minutes."""
    machine_access.look_again(at=now())
    seen = 0
    for handover_id in _due(at=now())[:limit]:
        token, at = uuid4(), now()
        mine = Handover.objects.filter(_free(at), pk=handover_id, check_at__lte=at)
        if mine.update(claim_token=token, claim_until=at + timedelta(seconds=CLAIM_S)):
            seen += 1
            _look_at(handover_id, token, now)
    return seen


def _free(at: datetime) -> Q:
    return Q(claim_until=None) | Q(claim_until__lt=at)


def _due(*, at: datetime) -> list[int]:
    rows = Handover.objects.exclude(state=State.BACK).filter(_free(at), check_at__lte=at)
    return list(rows.order_by("check_at").values_list("pk", flat=True))


def _look_at(handover_id: int, token: UUID, now: Callable[[], datetime]) -> None:
    at = now()
    row = Handover.objects.select_related("workload__host").get(pk=handover_id)
    try:
        if row.workload.wanted:
            _toward_given(row, now=now)
        elif row.state in {State.GIVING, State.GIVEN, State.TAKING, State.STUCK}:
            machines_back.toward_clear(row, now=now)
        elif row.state == State.REBOOTING:
            machines_back.await_reboot(row, at=at)
        elif row.state == State.TESTING:
            machines_back.await_test(row, at=at)
    except Exception:
        log.exception("machine could not be looked at", extra={"handover": str(row)})
        Handover.objects.filter(pk=row.pk).update(check_at=at + timedelta(seconds=60))
    Handover.objects.filter(pk=row.pk, claim_token=token).update(claim_token=None, claim_until=None)


def _toward_given(row: Handover, *, now: Callable[[], datetime]) -> None:
    workload, at = row.workload, now()
    if row.state == State.GIVEN and row.given_until == workload.not_after and not row.refusals:
        handover_steps.again(row, at=at, after_s=handover_steps.LOOK_S)
        return
    if row.state not in {State.GIVING, State.GIVEN}:
        return  # it was given up once: the same epoch is never given again
    if row.began_at is None:
        Handover.objects.filter(pk=row.pk).update(began_at=at)
    until = workload.not_after
    left_s = None if until is None else max(0, int((until - at).total_seconds()))
    term = machine_verbs.Term(
        user=row.user, keys=workload.spec["ssh_keys"], left_s=left_s, gpus=tuple(workload.spec["devices"]),
        simulated=workload.host.simulated,
    )  # fmt: skip
    try:
        access = MachineAccess.objects.get(host=workload.host_id)
        with machine_access.session(access) as session:
            outcome = machine_verbs.give(
                Machine(session, None), term, baseline=row.baseline,
                keep=lambda facts: _keep(row, facts), at=at,
            )  # fmt: skip
        machine_access.ask_door(access, user=row.user, keys=term.keys)
    except (DomainError, MachineAccess.DoesNotExist) as fault:
        _not_given(row, fault, at=now())
        return
    _given(row, outcome, until=until, at=now())


def _keep(row: Handover, facts: dict[str, str]) -> None:
    Handover.objects.filter(pk=row.pk).update(baseline=facts)


@transaction.atomic
def _given(row: Handover, outcome: machine_verbs.Outcome, *, until: datetime | None, at: datetime) -> None:
    host = host_life.lock(row.workload.host_id)
    first = row.state == State.GIVING
    Handover.objects.filter(pk=row.pk).update(
        state=State.GIVEN, uid=outcome.uid, given_until=until, attempts=0, last_error="", let_in_at=at, refusals=0,
        shut_since=None, look_at=at + timedelta(seconds=machine_looks.EVERY_S),
        steps=[*row.steps, *outcome.steps][-handover_steps.KEPT:],
        check_at=at + timedelta(seconds=handover_steps.LOOK_S),
        **({"given_at": at, "state_since": at} if first else {}),
    )  # fmt: skip
    if first:
        Workload.objects.filter(pk=row.workload_id, wanted=True).update(step="probing", detail="")
        facts = {"reference": row.workload.reference, "user": row.user}
        handover_steps.say(host, "host.machine_given", "", facts, at=at)
        Host.objects.filter(pk=host.pk).update(generation=host.generation + 1)  # ends the held sync: be heard at once


def _not_given(row: Handover, fault: Exception, *, at: datetime) -> None:
    why = fault.detail if isinstance(fault, DomainError) else "The platform has no way into the machine."
    handover_steps.trouble(row, fault, why, at=at)
    attempts = row.attempts + 1
    pause_s = handover_steps.LOOK_S * 2 ** min(attempts, 4)
    over = attempts >= GIVE_TRIES or not isinstance(fault, DomainError) or isinstance(fault, ssh.HostKeyChanged)
    Handover.objects.filter(pk=row.pk).update(
        attempts=attempts,
        last_error=why[:300],
        check_at=at + timedelta(seconds=pause_s),
    )
    if over and row.state == State.GIVING:
        # The lease hears of it as of a container that could not start, and goes elsewhere.
        Workload.objects.filter(pk=row.workload_id).update(failure="machine_not_given", detail=why[:500])
        if isinstance(fault, ssh.Unreachable | ssh.NotLetIn | ssh.TookTooLong):
            machine_access.failed(host_id=row.workload.host_id, why=why, at=at)


def wake(workload_ids: Iterable[UUID], *, at: datetime) -> None:
    """Have these looked at now: they were given up, or their end has moved."""
    Handover.objects.filter(workload__in=list(workload_ids)).exclude(state=State.BACK).update(check_at=at)


def doors(workload_ids: Iterable[UUID]) -> Mapping[UUID, dict[str, Any]]:
    """Return how the tenant gets in, for those that are given: address, port, user, and the host key to expect."""
    given = Handover.objects.filter(workload__in=list(workload_ids), state=State.GIVEN)
    found = {}
    for row in given.select_related("workload__host__machine_access"):
        access = row.workload.host.machine_access
        key = ssh.HostKey(access.key_kind, access.key_body)
        found[row.workload_id] = {
            "host": access.address, "port": access.port, "user": row.user,
            "host_key": f"{key.kind} {key.body}", "fingerprint": key.fingerprint,
        }  # fmt: skip
    return found
