"""Whole machines are taken back from their tenants and proven clean, before anybody else has them.

A machine that cannot be taken back is quarantined, and an operator settles it.
"""

from collections.abc import Callable
from datetime import datetime, timedelta

from django.conf import settings
from django.db import transaction

from agents import handover_steps, host_events, host_life, machine_access, machine_verbs, ssh, verification
from agents.bootstrap import Machine
from agents.machine_records import Handover, MachineAccess
from agents.models import Host, SelfTest, Workload
from apikit.errors import DomainError

TAKE_WITHIN_S = 600  # then the host is quarantined; the tries go on
REBOOT_WITHIN_S = 900
State = Handover.State


class NotStuck(DomainError):
    slug = "invalid-transition"
    title = "The machine is not waiting for a person"


def toward_clear(row: Handover, *, now: Callable[[], datetime]) -> None:
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
        boot_id=host.boot_id, steps=[*row.steps, *outcome.steps][-handover_steps.KEPT:],
        check_at=at + timedelta(seconds=86_400 if guarded else 1),
    )  # fmt: skip
    facts = {"reference": row.workload.reference, "user": row.user, "drift": guarded + noted}
    handover_steps.say(host, "host.machine_cleared", "", facts, at=at)
    if guarded:
        what = f"After {row.workload.reference} it was given back with other {', '.join(guarded)} than before."
        host_life.quarantine(host_id=host.pk, reason=what, at=at)
        host_events.raise_alarm(kind="machine_changed", subject=host.public_id, detail=what, at=at)


def _not_clear(row: Handover, fault: Exception, *, at: datetime) -> None:
    why = fault.detail if isinstance(fault, DomainError) else "The platform has no way into the machine."
    handover_steps.trouble(row, fault, why, at=at)
    attempts = row.attempts + 1
    pause_s = 300 if row.state == State.STUCK else min(handover_steps.LOOK_S * 2**attempts, 60)
    Handover.objects.filter(pk=row.pk).update(
        attempts=attempts, last_error=why[:300], check_at=at + timedelta(seconds=pause_s)
    )
    late = at - row.state_since >= timedelta(seconds=TAKE_WITHIN_S) or isinstance(fault, ssh.HostKeyChanged)
    if late and row.state == State.TAKING:
        _stuck(row, f"It could not be taken back from {row.workload.reference}: {why}", at=at)


@transaction.atomic
def _stuck(row: Handover, reason: str, *, at: datetime) -> None:
    host = host_life.lock(row.workload.host_id)
    Handover.objects.filter(pk=row.pk).update(state=State.STUCK, state_since=at, check_at=at + timedelta(seconds=300))
    host_life.quarantine(host_id=host.pk, reason=reason, at=at)
    host_events.raise_alarm(kind="machine_not_back", subject=host.public_id, detail=reason, at=at)


def await_reboot(row: Handover, *, at: datetime) -> None:
    host = row.workload.host
    if host.boot_id and host.boot_id != row.boot_id:
        Handover.objects.filter(pk=row.pk).update(state=State.TESTING, state_since=at, check_at=at)
    elif at - row.state_since >= timedelta(seconds=REBOOT_WITHIN_S):
        _stuck(row, f"After {row.workload.reference} it was to be rebooted, and was not heard after a reboot.", at=at)
    else:
        handover_steps.again(row, at=at, after_s=2)


def await_test(row: Handover, *, at: datetime) -> None:
    """Nobody has the machine before it has passed a self-test that was asked for after it was cleared."""
    host = row.workload.host
    since = SelfTest.objects.filter(host=host, asked_at__gte=row.cleared_at)
    if since.filter(passed=True).exists():
        _back(row, at=at)
        return
    if host.state == Host.State.ONLINE and not since.filter(passed__isnull=True).exists():
        verification.ask_again(host_id=host.pk, cause="after a whole machine was given back", at=at)
    handover_steps.again(row, at=at, after_s=2)


@transaction.atomic
def _back(row: Handover, *, at: datetime, by: str = "", reason: str = "") -> None:
    host = host_life.lock(row.workload.host_id)
    Handover.objects.filter(pk=row.pk).update(state=State.BACK, state_since=at, check_at=at)
    Workload.objects.filter(pk=row.workload_id, wanted=False, gone_at__isnull=True).update(gone_at=at, step="gone")
    if row.began_at is not None:
        handover_steps.say(host, "host.machine_back", reason, {"reference": row.workload.reference}, at=at, by=by)
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
