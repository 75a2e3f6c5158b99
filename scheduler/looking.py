"""What one look at a lease does, by its state: what its hosts report moves it on, ends it, or brings it elsewhere.

Each step is called under the lease's row lock, by `converging`, and may be repeated.
"""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from agents import fence
from agents.models import Host, Workload
from agents.protocol import NOT_RENEWED
from leasing import (
    assigning,
    broken_promises,
    calendar,
    lifecycle,
    parking,
    rebinding,
    starting,
    term_changes,
)
from leasing.models import Lease
from leasing.states import EndReason, State
from scheduler import recovery

NO_OTHER_HOST_HELPS = frozenset({"secret_missing"})


def _scheduled(lease: Lease, at: datetime) -> None:
    held = [row for row in calendar.live(lease_id=lease.pk) if row.epoch == lease.epoch]
    begins_at = max((row.during.lower for row in held), default=at)
    if begins_at > at and (lease.start_at is None or lease.start_at <= at):
        # It waits only until others have left: whatever they leave early is its own at once.
        begins_at = at if calendar.bring_forward(lease_id=lease.pk, epoch=lease.epoch, at=at) else begins_at
    hosts = [row.device.host for row in held]
    if begins_at > at:
        if any(host.state == Host.State.RETIRED for host in hosts):  # it will not be back, and there is time
            lifecycle.requeue(lease_id=lease.pk, at=at, reason="devices_not_ready", detail="Its host left the pool.")
        return
    units = [(row.device_id, (row.units.lower, row.units.upper)) for row in held]
    taken = calendar.in_the_way(units=units, at=at, but=lease.pk) or bool(assigning.unsafe_among([lease], at=at))
    if recovery.lost_hold(lease, at=at) is not None or (
        taken and at > begins_at + timedelta(seconds=calendar.CLEANING_MARGIN_S)
    ):
        lifecycle.requeue(lease_id=lease.pk, at=at, reason="devices_not_ready")
    elif not taken:
        lifecycle.begin(lease_id=lease.pk, at=at)


def _is_over(lease: Lease, at: datetime) -> bool:
    """Return whether its term is over; one that renews has another then."""
    return bool(lease.end_at and lease.end_at <= at) and not term_changes.renew(lease_id=lease.pk, at=at)


def _provisioning(lease: Lease, at: datetime) -> None:
    workloads = starting.live_workloads(lease)
    if _is_over(lease, at):
        lifecycle.end(lease_id=lease.pk, reason=EndReason.EXPIRED, at=at)
        return
    if not workloads:
        rebinding.begin(lease_id=lease.pk, at=at)
        return
    began_at = _usable_from(workloads)
    if began_at is not None:
        lifecycle.activate(lease_id=lease.pk, at=began_at, now=at)
        return
    for workload in workloads:
        trouble = _start_trouble(workload, at)
        if trouble is not None:
            _start_failed(lease, workload, trouble, at)
            return


def _usable_from(workloads: Sequence[Workload]) -> datetime | None:
    """Return the second from which every member was ready at once, or None.

    Also if one has ended since: what was usable before a late look is charged, and the next look says until when.
    """
    ready = [workload.ready_at for workload in workloads if workload.ready_at is not None]
    if not ready or len(ready) < len(workloads):
        return None
    ended = [moment for w in workloads for moment in (w.exited_at, w.unusable_since) if moment is not None]
    return max(ready) if all(moment > max(ready) for moment in ended) else None


def _start_trouble(workload: Workload, at: datetime) -> str | None:
    if workload.host.state in recovery.DEAD_HOST:
        return "host_lost"
    if recovery.is_leaving(workload.host, at=at):
        return "host_drained"
    if workload.failure:
        return workload.failure
    if workload.exited_at is not None or workload.gone_at is not None:
        return "exited_early"
    return None


def _start_failed(lease: Lease, workload: Workload, trouble: str, at: datetime) -> None:
    detail = f"{trouble} on {workload.host.name}: {workload.detail}"[:300]
    if workload.exit_code is not None and trouble == "exited_early":
        # Its own command ended, well or badly, before it was seen to run: another host would see the same.
        code = workload.exit_code
        lifecycle.end(lease_id=lease.pk, reason=EndReason.COMPLETED, at=at, detail=detail, exit_code=code)
    elif trouble in NO_OTHER_HOST_HELPS or lease.failed_starts + 1 >= lifecycle.MAX_FAILED_STARTS:
        lifecycle.end(lease_id=lease.pk, reason=EndReason.FAILED_TO_START, at=at, detail=detail)
    else:
        avoid_host = None if trouble == NOT_RENEWED else workload.host_id
        lifecycle.requeue(lease_id=lease.pk, at=at, reason=trouble, detail=detail, avoid_host=avoid_host)


def _active(lease: Lease, at: datetime) -> None:
    workloads = starting.live_workloads(lease)
    lost = recovery.last_good_second(lease, workloads=list(workloads), at=at)
    over_at = min([moment for moment in (lease.end_at, lease.leaves_at) if moment], default=None)
    exits = [w for w in workloads if w.exited_at is not None and not (over_at and w.exited_at >= over_at)]
    unheard = [w for w in exits if w.failure == NOT_RENEWED]
    exits = [w for w in exits if w not in unheard]
    for workload in unheard:  # we were not heard, which is no act of the tenant's command
        loss = (workload.exited_at or at, NOT_RENEWED, workload.detail)
        lost = min(lost, loss) if lost else loss
    last = min(exits, key=lambda w: w.exited_at or at, default=None)
    # What crashed because its GPU was lost has not completed.
    if last is not None and not (lost and lost[0] < (last.exited_at or at)):
        if lease.on_exit == "restart" and parking.restarts_left(lease, at=at) > 0:
            parking.restart(lease_id=lease.pk, at=at, last_good=last.exited_at, reason="on_exit")
            return
        lifecycle.end(
            lease_id=lease.pk, reason=EndReason.COMPLETED, at=at, last_good=last.exited_at,
            detail=f"Its command exited with {last.exit_code}.", exit_code=last.exit_code,
        )  # fmt: skip
        return
    dearer = recovery.dearer_since(lease, at=at)
    sooner = [moment for moment in (lease.end_at, dearer and dearer[0], lost[0] if lost else None) if moment]
    if lease.leaves_at and lease.leaves_at <= min([at, *sooner]):
        return  # its notice ends first: it gives its devices up
    if lease.end_at and _is_over(lease, at):
        # Its containers have stopped at the end by themselves; whatever was seen after it counts for nothing.
        last_good = min(lease.end_at, lost[0]) if lost else lease.end_at
        lifecycle.end(lease_id=lease.pk, reason=EndReason.EXPIRED, at=at, last_good=last_good)
    elif dearer is not None:
        last_good = min(dearer[0], lost[0]) if lost else dearer[0]
        detail = "The market asks more than its cap."
        ended = lifecycle.end(lease_id=lease.pk, reason=EndReason.PREEMPTED, at=at, last_good=last_good, detail=detail)
        broken_promises.keep(ended, last_good=last_good, needs_notice=True, told_at=dearer[1], at=at)
    elif lost is not None:
        last_good, reason, detail = lost
        lifecycle.interrupt(lease_id=lease.pk, last_good=last_good, at=at, reason=reason, detail=detail)
        recovery.recover(Lease.objects.get(pk=lease.pk), workloads=list(workloads), at=at)


def _idle(lease: Lease, at: datetime) -> None:
    """Nothing of it runs: it waits. Its term passes all the same."""
    if _is_over(lease, at):
        reason = EndReason.EXPIRED if lease.first_active_at else EndReason.NEVER_PLACED
        lifecycle.end(lease_id=lease.pk, reason=reason, at=at)


def _parked(lease: Lease, at: datetime) -> None:
    lost = recovery.lost_hold(lease, at=at) if lease.parked_keep == parking.HOLD else None
    if lease.end_at and _is_over(lease, at):
        last_good = min(lease.end_at, lost[0]) if lost else lease.end_at
        lifecycle.end(lease_id=lease.pk, reason=EndReason.EXPIRED, at=at, last_good=last_good)
    elif lost is not None:
        last_good, reason, detail = lost
        parking.lose_hold(lease_id=lease.pk, last_good=last_good, at=at, reason=reason, detail=detail)


def _interrupted(lease: Lease, at: datetime) -> None:
    if _is_over(lease, at):
        lifecycle.end(lease_id=lease.pk, reason=EndReason.EXPIRED, at=at)
        return
    recovery.recover(lease, workloads=list(starting.live_workloads(lease)), at=at)


def _ending(lease: Lease, at: datetime) -> None:
    running = Workload.objects.filter(reference=lease.public_id, gone_at__isnull=True).select_related("host")
    safe = [fence.safe_at(workload) for workload in running]
    if all(moment is not None and moment <= at for moment in safe):
        lifecycle.finish(lease_id=lease.pk, at=at)


STEPS: dict[State, Callable[[Lease, datetime], None]] = {
    State.PENDING: _idle,
    State.PARKED: _parked,
    State.SCHEDULED: _scheduled,
    State.PROVISIONING: _provisioning,
    State.ACTIVE: _active,
    State.INTERRUPTED: _interrupted,
    State.ENDING: _ending,
}
