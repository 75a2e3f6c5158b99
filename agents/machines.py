"""Whole machines in the hands of tenants: wanted, given, seen to be usable, taken back, proven clean.

A whole machine is a Workload of the kind `machine`: nobody tells the agent of it; the control plane gives it over SSH
(`hand_over`, a loop that claims what is due) and the agent, which stays, is the witness. It is *usable* from the second
in which the first sync of its host was received after the handing over with all its GPUs well; each later sync says so
again, and so do the control plane's own looks at its door (agents.machine_looks). It is *gone* only when the machine
has passed everything: account and files away, no session left, nothing changed that the tenant had no right to,
rebooted where that can be, and a self-test. Until then its devices stay bound.
A machine that cannot be taken back is quarantined, and an operator settles it.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from django.conf import settings
from django.db import transaction
from django.db.models import Q

from agents import host_events, host_life, machine_access, machine_looks, machine_verbs, silence, ssh, verification
from agents.bootstrap import Machine
from agents.machine_records import Handover, MachineAccess
from agents.models import Device, Host, SelfTest, Workload
from apikit.clock import whole_second
from apikit.errors import DomainError
from audit import log as audit_log

GIVE_TRIES = 3
TAKE_WITHIN_S = 600  # then the host is quarantined; the tries go on
REBOOT_WITHIN_S = 900
CLAIM_S = 900  # longer than all steps of a take together may last
LOOK_S = 5
STEPS_KEPT = 60
ACTOR = "system:machines"
State = Handover.State

log = logging.getLogger(__name__)


class NotStuck(DomainError):
    slug = "invalid-transition"
    title = "The machine is not waiting for a person"


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
            _toward_clear(row, now=now)
        elif row.state == State.REBOOTING:
            _await_reboot(row, at=at)
        elif row.state == State.TESTING:
            _await_test(row, at=at)
    except Exception:
        log.exception("machine could not be looked at", extra={"handover": str(row)})
        Handover.objects.filter(pk=row.pk).update(check_at=at + timedelta(seconds=60))
    Handover.objects.filter(pk=row.pk, claim_token=token).update(claim_token=None, claim_until=None)


def _toward_given(row: Handover, *, now: Callable[[], datetime]) -> None:
    workload, at = row.workload, now()
    if row.state == State.GIVEN and row.given_until == workload.not_after and not row.refusals:
        _again(row, at=at, after_s=LOOK_S)
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
        steps=[*row.steps, *outcome.steps][-STEPS_KEPT:], check_at=at + timedelta(seconds=LOOK_S),
        **({"given_at": at, "state_since": at} if first else {}),
    )  # fmt: skip
    if first:
        Workload.objects.filter(pk=row.workload_id, wanted=True).update(step="probing", detail="")
        facts = {"reference": row.workload.reference, "user": row.user}
        _say(host, "host.machine_given", "", facts, at=at)
        Host.objects.filter(pk=host.pk).update(generation=host.generation + 1)  # ends the held sync: be heard at once


def _not_given(row: Handover, fault: Exception, *, at: datetime) -> None:
    why = fault.detail if isinstance(fault, DomainError) else "The platform has no way into the machine."
    _trouble(row, fault, why, at=at)
    attempts = row.attempts + 1
    over = attempts >= GIVE_TRIES or not isinstance(fault, DomainError) or isinstance(fault, ssh.HostKeyChanged)
    Handover.objects.filter(pk=row.pk).update(
        attempts=attempts, last_error=why[:300], check_at=at + timedelta(seconds=LOOK_S * 2 ** min(attempts, 4))
    )
    if over and row.state == State.GIVING:
        # The lease hears of it as of a container that could not start, and goes elsewhere.
        Workload.objects.filter(pk=row.workload_id).update(failure="machine_not_given", detail=why[:500])
        if isinstance(fault, ssh.Unreachable | ssh.NotLetIn | ssh.TookTooLong):
            machine_access.failed(host_id=row.workload.host_id, why=why, at=at)


def _toward_clear(row: Handover, *, now: Callable[[], datetime]) -> None:
    at = now()
    if row.state in {State.GIVING, State.GIVEN}:
        Handover.objects.filter(pk=row.pk).update(state=State.TAKING, state_since=at, attempts=0)
        row.state, row.state_since, row.attempts = State.TAKING, at, 0
    if row.began_at is None:
        _back(row, at=at)  # nobody was ever on the machine for it
        return
    host = row.workload.host
    gpus = tuple(row.workload.spec["devices"])
    try:
        access = MachineAccess.objects.get(host=host)
        with machine_access.session(access) as session:
            machine = Machine(session, None)
            outcome = machine_verbs.take(
                machine, user=row.user, uid=row.uid, gpus=gpus, simulated=host.simulated, at=at
            )  # fmt: skip
            if settings.BARE_METAL_REBOOT and not host.simulated:
                machine.sudo(f"({settings.BARE_METAL_REBOOT}) >/dev/null 2>&1 &", within_s=20)
    except (DomainError, MachineAccess.DoesNotExist) as fault:
        _not_clear(row, fault, at=now())
        return
    _cleared(row, outcome, at=now())


@transaction.atomic
def _cleared(row: Handover, outcome: machine_verbs.Outcome, *, at: datetime) -> None:
    host = host_life.lock(row.workload.host_id)
    guarded, noted = machine_verbs.drift(row.baseline, outcome.facts)
    reboots = bool(settings.BARE_METAL_REBOOT) and not host.simulated
    state = State.STUCK if guarded else State.REBOOTING if reboots else State.TESTING
    Handover.objects.filter(pk=row.pk).update(
        state=state, state_since=at, cleared_at=at, drift=guarded + noted, attempts=0, last_error="",
        boot_id=host.boot_id, steps=[*row.steps, *outcome.steps][-STEPS_KEPT:],
        check_at=at + timedelta(seconds=86_400 if guarded else 1),
    )  # fmt: skip
    facts = {"reference": row.workload.reference, "user": row.user, "drift": guarded + noted}
    _say(host, "host.machine_cleared", "", facts, at=at)
    if guarded:
        what = f"After {row.workload.reference} it was given back with other {', '.join(guarded)} than before."
        host_life.quarantine(host_id=host.pk, reason=what, at=at)
        host_events.raise_alarm(kind="machine_changed", subject=host.public_id, detail=what, at=at)


def _not_clear(row: Handover, fault: Exception, *, at: datetime) -> None:
    why = fault.detail if isinstance(fault, DomainError) else "The platform has no way into the machine."
    _trouble(row, fault, why, at=at)
    attempts = row.attempts + 1
    pause_s = 300 if row.state == State.STUCK else min(LOOK_S * 2**attempts, 60)
    Handover.objects.filter(pk=row.pk).update(
        attempts=attempts, last_error=why[:300], check_at=at + timedelta(seconds=pause_s)
    )
    late = at - row.state_since >= timedelta(seconds=TAKE_WITHIN_S) or isinstance(fault, ssh.HostKeyChanged)
    if late and row.state == State.TAKING:
        _stuck(row, f"It could not be taken back from {row.workload.reference}: {why}", at=at)


def _trouble(row: Handover, fault: Exception, why: str, *, at: datetime) -> None:
    host_id = row.workload.host_id
    if isinstance(fault, ssh.HostKeyChanged):
        machine_access.key_changed(host_id=host_id, shown=fault.key, at=at)
    host_events.record(host_id=host_id, kind="host.machine_trouble", detail=why, at=at)


@transaction.atomic
def _stuck(row: Handover, reason: str, *, at: datetime) -> None:
    host = host_life.lock(row.workload.host_id)
    Handover.objects.filter(pk=row.pk).update(state=State.STUCK, state_since=at, check_at=at + timedelta(seconds=300))
    host_life.quarantine(host_id=host.pk, reason=reason, at=at)
    host_events.raise_alarm(kind="machine_not_back", subject=host.public_id, detail=reason, at=at)


def _await_reboot(row: Handover, *, at: datetime) -> None:
    host = row.workload.host
    if host.boot_id and host.boot_id != row.boot_id:
        Handover.objects.filter(pk=row.pk).update(state=State.TESTING, state_since=at, check_at=at)
    elif at - row.state_since >= timedelta(seconds=REBOOT_WITHIN_S):
        _stuck(row, f"After {row.workload.reference} it was to be rebooted, and was not heard after a reboot.", at=at)
    else:
        _again(row, at=at, after_s=2)


def _await_test(row: Handover, *, at: datetime) -> None:
    """Nobody has the machine before it has passed a self-test that was asked for after it was cleared."""
    host = row.workload.host
    since = SelfTest.objects.filter(host=host, asked_at__gte=row.cleared_at)
    if since.filter(passed=True).exists():
        _back(row, at=at)
        return
    if host.state == Host.State.ONLINE and not since.filter(passed__isnull=True).exists():
        verification.ask_again(host_id=host.pk, cause="after a whole machine was given back", at=at)
    _again(row, at=at, after_s=2)


@transaction.atomic
def _back(row: Handover, *, at: datetime, by: str = "", reason: str = "") -> None:
    host = host_life.lock(row.workload.host_id)
    Handover.objects.filter(pk=row.pk).update(state=State.BACK, state_since=at, check_at=at)
    Workload.objects.filter(pk=row.workload_id, wanted=False, gone_at__isnull=True).update(gone_at=at, step="gone")
    if row.began_at is not None:
        _say(host, "host.machine_back", reason, {"reference": row.workload.reference}, at=at, by=by)
    host_events.settle_alarm(kind="machine_not_back", subject=host.public_id, at=at)


@transaction.atomic
def settle(*, handover_id: int, reason: str, by: str, at: datetime) -> Handover:
    """An operator has looked at the machine himself: nothing of the tenant is left. Raises NotStuck.

    Its devices are free then; the host stays in quarantine until it is released, and is verified anew.
    """
    row = Handover.objects.select_for_update(no_key=True, of=("self",)).select_related("workload__host").get(
        pk=handover_id
    )  # fmt: skip
    if row.state != State.STUCK:
        raise NotStuck(f"It is {row.state}.", state=row.state)
    _back(row, at=at, by=by, reason=reason)
    row.refresh_from_db()
    host_events.settle_alarm(kind="machine_changed", subject=row.workload.host.public_id, at=at)
    return row


def _again(row: Handover, *, at: datetime, after_s: int) -> None:
    Handover.objects.filter(pk=row.pk).update(check_at=at + timedelta(seconds=after_s))


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


def _say(host: Host, kind: str, detail: str, facts: dict[str, Any], *, at: datetime, by: str = "") -> None:
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
