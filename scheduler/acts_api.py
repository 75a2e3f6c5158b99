"""Doors: what may be asked of a lease, `POST /leases/{id}/actions/{name}`. Each takes If-Match."""

from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from typing import Any, ClassVar

from rest_framework.request import Request
from rest_framework.response import Response

from apikit.errors import InvalidInput
from apikit.instants import instant
from leasing import actions, moves, parking, requesting, term_changes
from leasing.models import Lease
from leasing.states import EndReason
from scheduler import doorbell, offer_rendering, promises, recovery, rendering, resizing, resuming
from scheduler.lease_requests import ChangeEnd, ChangeStart, EndRequest, ParkRequest, RenewRequest, ResizeRequest
from tenants.access import OrganizationView


def end(view: OrganizationView, id: str) -> Response:
    """End or cancel it; repeating it is 200."""
    lease = view.found(view.mine(Lease), "lease", id)
    view.check_version(lease.version)
    lease = recovery.end_now(lease=lease, reason=EndReason.TENANT, at=view.at)
    doorbell.after_commit("scheduler.converge")
    return view.one(rendering.lease(lease, at=view.at), version=lease.version)


class LeaseEnd(OrganizationView):
    """`end` and `cancel`: one act under two names; repeating it is 200."""

    policy: ClassVar = {"post": "leases:write"}

    def post(self, request: Request, id: str) -> Response:
        self.read(EndRequest, optional=True)
        return end(self, id)


class LeaseAction(OrganizationView):
    """All other actions; any that the lease does not list is 409 `invalid-transition`."""

    policy: ClassVar = {"post": "leases:write"}

    def post(self, request: Request, id: str, action: str) -> Response:
        lease = self.found(self.mine(Lease), "lease", id)
        if action not in actions.of(lease):
            raise moves.WrongState(f"A lease that is {lease.state} has no action {action}.", lease=lease)
        if action not in LOCK_FOR_THEMSELVES:
            lease = self.found(self.mine(Lease).select_for_update(no_key=True), "lease", id)
        self.check_version(lease.version)
        done = ACTS[action](self, lease)
        if isinstance(done, Response):
            return done
        doorbell.after_commit("scheduler.converge")
        return self.one(rendering.lease(done, at=self.at), version=done.version)


def _change_end(view: OrganizationView, lease: Lease, *, sign: int) -> Lease:
    end_at = _new_end(lease, view.read(ChangeEnd), sign=sign)
    change = term_changes.change_end if sign > 0 else term_changes.shorten
    return promises.keeping(lambda: change(lease_id=lease.pk, end_at=end_at, at=view.at))


def _new_end(lease: Lease, asked: dict[str, Any], *, sign: int) -> datetime:
    if "end_at" in asked:
        end_at: datetime = asked["end_at"]
        _check_direction(lease, end_at, sign=sign)
        return end_at
    if lease.end_at is None:
        raise moves.WrongState("It has no end to move from; `shorten` with end_at gives it one.", lease=lease)
    return lease.end_at + timedelta(seconds=sign * asked["by_s"])


def _check_direction(lease: Lease, end_at: datetime, *, sign: int) -> None:
    """Refuse an `extend` to an earlier end and a `shorten` to a later one: somebody has misread a date.

    A lease without an end runs for ever, so any end is an earlier one.
    """
    if lease.end_at == end_at or (lease.end_at is not None and (end_at > lease.end_at) == (sign > 0)):
        return
    if lease.end_at is None and sign < 0:
        return
    right = "shorten" if sign > 0 else "extend"
    now = f"ends at {instant(lease.end_at)}" if lease.end_at else "has no end"
    detail = f"It {now}; that would be {'earlier' if sign > 0 else 'later'}. `{right}` does it."
    fault = {"pointer": "/end_at", "code": "out_of_range", "detail": detail, "nearest": [right]}
    raise InvalidInput(detail, errors=[fault])


def _defer(view: OrganizationView, lease: Lease) -> Lease:
    asked = view.read(ChangeStart)
    start_at = asked.get("start_at") or max(lease.start_at or view.at, view.at) + timedelta(seconds=asked["by_s"])
    return promises.keeping(lambda: term_changes.defer(lease_id=lease.pk, start_at=start_at, at=view.at))


def _renew(view: OrganizationView, lease: Lease) -> Lease:
    periods = view.read(RenewRequest, optional=True).get("periods", 1)
    return promises.keeping(lambda: term_changes.renew_by_hand(lease_id=lease.pk, periods=periods, at=view.at))


def _park(view: OrganizationView, lease: Lease) -> Lease:
    keep = view.read(ParkRequest, optional=True).get("keep", parking.HOLD)
    return recovery.park_now(lease=lease, keep=keep, at=view.at)


def _resume(view: OrganizationView, lease: Lease) -> Lease | Response:
    view.read(EndRequest, optional=True)
    plan = resuming.plan(lease=lease, at=view.at) if view.dry_run and lease.parked_keep == parking.QUEUE else None
    resumed = parking.resume(lease_id=lease.pk, at=view.at)  # a dry run is undone, but refused by the same
    return resumed if plan is None else Response({"plan": offer_rendering.plan(plan)})


def _restart(view: OrganizationView, lease: Lease) -> Lease:
    view.read(EndRequest, optional=True)
    return recovery.restart_now(lease=lease, at=view.at)


def _resize(view: OrganizationView, lease: Lease) -> Lease | Response:
    request = requesting.read_request(view.read(ResizeRequest)["request"])
    if view.dry_run:
        return Response({"plan": offer_rendering.plan(resizing.plan(lease=lease, request=request, at=view.at))})
    return resizing.resize(lease=lease, request=request, at=view.at, check=view.check_version)


def _move(view: OrganizationView, lease: Lease) -> Lease | Response:
    view.read(EndRequest, optional=True)
    if view.dry_run:
        return Response({"plan": offer_rendering.plan(resizing.plan_of_move(lease=lease, at=view.at))})
    return resizing.move(lease=lease, at=view.at, check=view.check_version)


type Act = Callable[[OrganizationView, Lease], Lease | Response]
ACTS: dict[str, Act] = {
    "extend": partial(_change_end, sign=1),
    "shorten": partial(_change_end, sign=-1),
    "defer": _defer,
    "renew": _renew,
    "park": _park,
    "resume": _resume,
    "restart": _restart,
    "resize": _resize,
    "move": _move,
}
# Their domain function locks more than the lease, and in its own order: the organization before.
LOCK_FOR_THEMSELVES = frozenset({"resize", "move"})
