"""What happens when a host dies, a GPU fails, or a container ends under a lease.

A host is *suspect* after 15 s of silence and *lost* after 30 s (`agents.silence`). At *lost* the meter of each of its
leases is stopped at the last second in which the host was heard: silence is never billed. The lease is `interrupted`,
and its recovery policy decides:

restart_elsewhere   the epoch is given up and the lease waits at its old place in the queue. It is bound again as soon
                    as the fence is safe: the old containers are acknowledged as gone, or cannot run any more because
                    their dead-man timers have passed (`agents.fence`). So no two epochs ever run at the same time.
wait_for_host       the same epoch goes on if the host comes back within its validity; the seconds between are free.
end                 it ends with the reason `host_lost`.

The devices of the dead host stay bound in the calendar until that host answers again and says that nothing is left.
A device that fails under a running lease is treated alike, with the second of its failure as the last good one. So is a
host whose owner takes it back: its leases stop a stop grace before the deadline of the drain, and since it will not be
back, whoever waits for it ends.
"""

from datetime import datetime, timedelta

from django.conf import settings
from django.db import transaction

from agents import silence
from agents.models import Device, Host, Workload
from billing.models import PriceVersion
from leasing import calendar, lifecycle, moves, parking, starting
from leasing.models import Lease
from leasing.states import VALID_FOR_S, EndReason, OnInterrupt, State
from scheduler import restoring

DEAD_HOST = frozenset({Host.State.LOST, Host.State.QUARANTINED, Host.State.RETIRED})
DEAD_DEVICE = frozenset({Device.Health.LOST, Device.Health.FAILED, Device.Health.REMEDY})


def last_good_second(lease: Lease, *, workloads: list[Workload], at: datetime) -> tuple[datetime, str, str] | None:
    """Return (last usable second, reason, detail) if the use of an active lease is lost, else None.

    A gang is whole or absent: the earliest loss of any member is the loss of all.
    """
    losses = _losses_of_devices(lease, at=at)
    for workload in workloads:
        if workload.unusable_since is not None:
            losses.append((workload.unusable_since, "unusable", workload.detail))
        if _is_unnamed(workload):
            losses.append((workload.reported_at or at, "container_unnamed", "Its host says nothing of it any more."))
        if workload.gone_at is not None and workload.exited_at is None:
            losses.append((workload.gone_at, "container_gone", workload.detail))
    return min(losses, default=None)


def dearer_since(lease: Lease, *, at: datetime) -> tuple[datetime, datetime] | None:
    """Return since when the market asks more than the cap of a spot lease, and when that was published; else None."""
    cap_micros = lease.constraints.get("max_price_micros")
    if lease.term_kind != Lease.TermKind.SPOT or cap_micros is None:
        return None
    promised = lease.members.filter(epoch=lease.epoch).values_list("price_version_id", flat=True)
    dearer = PriceVersion.objects.filter(
        series__versions__in=list(promised), during__contains=at, price_micros_per_hour__gt=cap_micros
    )
    return min(((version.during.lower, version.published_at) for version in dearer), default=None)


def lost_hold(lease: Lease, *, at: datetime) -> tuple[datetime, str, str] | None:
    """Return (last second kept, reason, detail) if what a parked lease holds is of no use any more, else None."""
    return min(_losses_of_devices(lease, at=at), default=None)


def _losses_of_devices(lease: Lease, *, at: datetime) -> list[tuple[datetime, str, str]]:
    losses: list[tuple[datetime, str, str]] = []
    for allocation in calendar.live(lease_id=lease.pk):
        device, host = allocation.device, allocation.device.host
        if allocation.epoch != lease.epoch:
            continue
        if host.state in DEAD_HOST:
            heard = host.last_heard_at or at
            losses.append((min(heard, at), "host_lost", f"Host {host.name} was last heard at {heard:%H:%M:%S} UTC."))
        if is_leaving(host, at=at):
            detail = f"Host {host.name} is taken back: {host.scheduling_reason}"
            losses.append((silence.heard_until(host, at=at), "host_drained", detail))
        if device.health in DEAD_DEVICE or not device.present:
            since = min(device.health_since or at, at)
            losses.append((since, "device_failed", f"{device.uuid}: {device.health_reason or device.health}"))
    return losses


def _is_unnamed(workload: Workload) -> bool:
    """Return whether its host speaks, and has not named it for as long as a silent host is suspected."""
    heard, named = workload.host.last_heard_at, workload.reported_at
    return heard is not None and named is not None and heard - named > timedelta(seconds=settings.HOST_SUSPECT_AFTER_S)


def is_leaving(host: Host, *, at: datetime) -> bool:
    """Return whether leases must stop on a host that is drained, so that they are off it at the deadline."""
    if host.scheduling != Host.Scheduling.DRAINING or host.drain_deadline is None:
        return False
    return host.drain_deadline <= at + timedelta(seconds=settings.WORKLOAD_STOP_GRACE_S)


def recover(lease: Lease, *, workloads: list[Workload], at: datetime) -> None:
    """Carry out the policy of an interrupted lease; level-triggered, so safe to repeat."""
    policy = OnInterrupt(lease.on_interrupt)
    if restoring.is_fenced(lease, at=at):
        _adopt(lease, workloads=workloads, at=at)
    elif policy is OnInterrupt.RESTART_ELSEWHERE:
        lifecycle.requeue(lease_id=lease.pk, at=at, reason="restart_elsewhere")
    elif policy is OnInterrupt.END or any(is_leaving(workload.host, at=at) for workload in workloads):
        lifecycle.end(lease_id=lease.pk, reason=EndReason.HOST_LOST, at=at)
    elif _runs_again(lease, workloads=workloads, at=at):
        ready = max(workload.host.last_heard_at or at for workload in workloads)
        lifecycle.revive(lease_id=lease.pk, ready_at=min(ready, at), at=at)
    elif _came_back_without(lease, workloads=workloads, at=at):
        if all(workload.exit_code == 0 for workload in workloads):
            detail = "Its command exited with 0 while its host was not heard."
            lifecycle.end(lease_id=lease.pk, reason=EndReason.COMPLETED, at=at, detail=detail, exit_code=0)
        else:
            parking.start_anew(lease_id=lease.pk, at=at, reason="host_back")
    elif at > lease.state_since + timedelta(seconds=VALID_FOR_S[policy]):
        lifecycle.end(lease_id=lease.pk, reason=EndReason.HOST_LOST, at=at, detail="Its host did not come back.")


def _adopt(lease: Lease, *, workloads: list[Workload], at: datetime) -> None:
    """After a restore: take it on as it runs, or end it if it does not; meanwhile wait, and start nothing."""
    if _runs_again(lease, workloads=workloads, at=at):
        ready = max(workload.host.last_heard_at or at for workload in workloads)
        lifecycle.revive(lease_id=lease.pk, ready_at=min(ready, at), at=at)
    elif restoring.is_over(workloads, since=lease.state_since):
        restoring.give_up(lease, at=at)


def _runs_again(lease: Lease, *, workloads: list[Workload], at: datetime) -> bool:
    """Return whether every member has been heard to run since, and nothing stands against its use any more."""
    if not workloads or last_good_second(lease, workloads=workloads, at=at) is not None:
        return False
    return all(workload.step == "ready" and _is_back(workload, since=lease.state_since) for workload in workloads)


def _came_back_without(lease: Lease, *, workloads: list[Workload], at: datetime) -> bool:
    """Return whether its hosts are back and its GPUs well, but a container has ended: by its timer, or a reboot."""
    if not workloads or _losses_of_devices(lease, at=at):
        return False
    back = all(_is_back(workload, since=lease.state_since) for workload in workloads)
    return back and any(workload.exited_at is not None for workload in workloads)


def _is_back(workload: Workload, *, since: datetime) -> bool:
    # Each sync says all that runs, so what a host said after the interruption is how it is now.
    heard = workload.host.last_heard_at
    return heard is not None and heard > since and workload.host.state == Host.State.ONLINE


def billable_until(*, workloads: list[Workload], at: datetime, suspect_after_s: int) -> datetime:
    """Return the second at which a stop asked for at `at` ends the meter: earlier if a host has fallen silent."""
    heard = [w.host.last_heard_at for w in workloads if w.host.last_heard_at is not None]
    silent = [moment for moment in heard if (at - moment).total_seconds() > suspect_after_s]
    return min([at, *silent])


@transaction.atomic
def end_now(*, lease: Lease, reason: EndReason, at: datetime, detail: str = "") -> Lease:
    """End a lease at this second, or at the last one in which it was usable."""
    last_good = usable_until(moves.locked(lease.pk), at=at)
    return lifecycle.end(lease_id=lease.pk, reason=reason, at=at, last_good=last_good, detail=detail)


@transaction.atomic
def park_now(*, lease: Lease, keep: str, at: datetime) -> Lease:
    """Park a lease; it is billed to this second, or to the last one in which it was usable."""
    return parking.park(lease_id=lease.pk, keep=keep, at=at, last_good=usable_until(moves.locked(lease.pk), at=at))


@transaction.atomic
def restart_now(*, lease: Lease, at: datetime) -> Lease:
    """Start it anew in place; it is billed to this second, or to the last one in which it was usable."""
    return parking.restart(lease_id=lease.pk, at=at, last_good=usable_until(moves.locked(lease.pk), at=at))


def usable_until(lease: Lease, *, at: datetime) -> datetime:
    """Return the second at which a stop at `at` ends the lease's meter: earlier where its use was over before.

    Whoever stops it comes before the loop that would have seen it: a silent host, a GPU that failed, a command that
    exited, the end of its term or of its notice, a market above its cap.
    """
    workloads = list(starting.live_workloads(lease))
    over = [billable_until(workloads=workloads, at=at, suspect_after_s=settings.HOST_SUSPECT_AFTER_S)]
    if lease.state == State.PARKED:  # its containers are gone by its tenant's will
        lost = lost_hold(lease, at=at)
    else:
        lost = last_good_second(lease, workloads=workloads, at=at)
        over += [workload.exited_at for workload in workloads if workload.exited_at is not None]
    dearer = dearer_since(lease, at=at)
    over += [found[0] for found in (lost, dearer) if found is not None]
    over += [lease.leaves_at] if lease.leaves_at is not None else []
    over += [lease.end_at] if lease.end_at is not None and not (lease.renew and lease.period) else []
    return min(over)
