"""Door: what the GPUs of a lease measured over time, `GET /leases/{id}/metrics`."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, ClassVar

from django.conf import settings
from django.db.models import Q
from rest_framework.request import Request
from rest_framework.response import Response

from agents import measurements
from agents.models import Device, Workload
from apikit import strict_query
from apikit.errors import InvalidInput
from apikit.instants import instant
from leasing.models import Lease
from tenants.access import OrganizationView

STEPS_S = (60, 300, 900, 3600, 21_600, 86_400)
POINTS_MOST = 5_000  # GPUs x steps of one answer
MINUTES_MOST = 100_000  # that are read for one answer
SHOWN_S = 3600  # where no `since` is given
MINUTE = timedelta(minutes=1)


class LeaseMetrics(OrganizationView):
    policy: ClassVar = {"get": "leases:read"}
    query: ClassVar = {
        "get": {
            "member": strict_query.integer(0, 255),
            "since": strict_query.instant,
            "until": strict_query.instant,
            "step_s": strict_query.choice(*map(str, STEPS_S)),
        }
    }

    def get(self, request: Request, id: str) -> Response:
        """What each GPU of a lease measured, in steps of equal length; the last hour where no `since` is given.

        A figure is the mean and the highest of the step's samples (one in 15 s), null where nothing was measured. Kept
        for a week. `step_s` is chosen by the length of the range where it is not given.
        """
        lease = self.found(self.mine(Lease), "lease", id)
        since, until = self._range()
        workloads = _workloads(lease, self.parameters.get("member"), since=since, until=until)
        step_s = _step_s(self.parameters.get("step_s"), workloads, since=since, until=until)
        return Response(_shown(lease, workloads, since=since, until=until, step=timedelta(seconds=step_s)))

    def _range(self) -> tuple[datetime, datetime]:
        """Return whole minutes around what was asked for, within what is kept."""
        now = _floor(self.at) + MINUTE
        until = min(_floor(self.parameters.get("until", now) + MINUTE - timedelta(microseconds=1)), now)
        since = _floor(self.parameters.get("since", until - timedelta(seconds=SHOWN_S)))
        since = max(since, now - timedelta(seconds=settings.METRICS_KEPT_S))
        if since >= until:
            raise _refused("since", "It must be before `until`, and in the past.")
        return since, until


def _floor(at: datetime) -> datetime:
    return at.replace(second=0, microsecond=0)


def _workloads(lease: Lease, member: int | None, *, since: datetime, until: datetime) -> list[Workload]:
    """Return what ran between the two, in the order of members and epochs."""
    ran = Workload.objects.filter(reference=lease.public_id, ready_at__lt=until)
    ran = ran.filter(Q(exited_at=None) | Q(exited_at__gte=since))
    if member is not None:
        ran = ran.filter(member=member)
    return list(ran.select_related("host").order_by("member", "epoch"))


def _step_s(asked: str | None, workloads: Sequence[Workload], *, since: datetime, until: datetime) -> int:
    """Return the step that was asked for, or the shortest with which the answer is not too long."""
    range_s = (until - since).total_seconds()
    gpus = sum(len(workload.spec.get("devices", [])) for workload in workloads)
    short_enough = [step_s for step_s in STEPS_S if gpus * -(-range_s // step_s) <= POINTS_MOST]
    is_too_much = len(workloads) * range_s / 60 > MINUTES_MOST
    if is_too_much or not short_enough:
        raise _refused("since", "That is too much for one answer: name a `member`, or a shorter range.")
    if asked is None:
        return short_enough[0]
    if int(asked) not in short_enough:
        raise _refused("step_s", f"With steps of {asked} s the answer is too long: {short_enough[0]} s would do.")
    return int(asked)


def _shown(
    lease: Lease, workloads: Sequence[Workload], *, since: datetime, until: datetime, step: timedelta
) -> dict[str, Any]:
    found = measurements.steps(workloads, since=since, until=until, step=step)
    starts = [since + step * n for n in range(-((since - until) // step))]
    devices = {(d.host_id, d.uuid): d for d in _devices(workloads)}
    series = [
        _series(workload, uuid, devices.get((workload.host_id, uuid)))
        | {
            figure: _figures(found.get((workload.pk, uuid, figure), {}), starts)
            for figure in measurements.FIGURES
        }
        for workload in workloads
        for uuid in workload.spec.get("devices", [])
    ]  # fmt: skip
    return {
        "id": lease.public_id,
        "from": instant(since),
        "to": instant(until),
        "step_s": int(step.total_seconds()),
        "sampled_every_s": measurements.SAMPLED_EVERY_S,
        "kept_s": settings.METRICS_KEPT_S,
        "at": [instant(start) for start in starts],
        "series": series,
        "simulated": lease.simulated,
    }


def _devices(workloads: Sequence[Workload]) -> list[Device]:
    uuids = {uuid for workload in workloads for uuid in workload.spec.get("devices", [])}
    hosts = {workload.host_id for workload in workloads}
    return list(Device.objects.filter(host__in=hosts, uuid__in=uuids).select_related("model"))


def _series(workload: Workload, uuid: str, device: Device | None) -> dict[str, Any]:
    return {
        "member": workload.member,
        "epoch": workload.epoch,
        "host": workload.host.public_id,
        "gpu": uuid,
        "gpu_model": device.model.slug if device and device.model else None,
        "memory_total_mib": device.memory_mib if device else None,
        "simulated": workload.host.simulated,
    }


def _figures(measured: dict[datetime, measurements.Step], starts: Sequence[datetime]) -> dict[str, list[int | None]]:
    found = [measured.get(start) for start in starts]
    return {
        "mean": [None if step is None else step.mean for step in found],
        "max": [None if step is None else step.peak for step in found],
    }


def _refused(parameter: str, detail: str) -> InvalidInput:
    return InvalidInput(detail, errors=[{"parameter": parameter, "code": "out_of_range", "detail": detail}])
