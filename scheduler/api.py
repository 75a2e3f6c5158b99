"""Doors: /leases, /offers and /quotes, since any of their writes may ask the decider."""

from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from functools import partial
from typing import Any, ClassVar

from django.core.handlers.asgi import ASGIRequest
from django.http import StreamingHttpResponse
from rest_framework.request import Request
from rest_framework.response import Response

from apikit import etag, pagination, strict_query
from apikit.errors import NotFound
from billing import receipts
from leasing import lifecycle, moves, parking, quotes, requesting
from leasing.models import Lease, Quote
from leasing.states import ACTIONS, EndReason, State
from scheduler import doorbell, following, planning, recovery, rendering, streaming
from scheduler.lease_requests import ChangeEnd, EndRequest, LeaseEdit, LeaseRequest, ParkRequest, QuoteRequest
from tenants.access import OrganizationView

DEFAULT_TTL_S = 120
TERMS = ("on_demand", "spot", "spot:0", "spot:120", "spot:600", "reserved:P1W", "reserved:P1M", "reserved:P1Y")


class LeaseCollection(OrganizationView):
    policy: ClassVar = {"get": "leases:read", "post": "leases:write"}
    query: ClassVar = {
        "get": {**pagination.PARAMETERS, "state": strict_query.choices(*State), "name": strict_query.text(64)},
    }
    limits: ClassVar = {"post": "lease_create"}

    def get(self, request: Request) -> Response:
        rows = self.mine(Lease)
        if "state" in self.parameters:
            rows = rows.filter(state__in=self.parameters["state"])
        if "name" in self.parameters:
            rows = rows.filter(name=self.parameters["name"])
        found = pagination.page(rows, request=request, asked=self.parameters, owner=str(self.organization.pk))
        shown = rendering.leases(found.items, at=self.at, with_cost=False)
        by_id = {row.pk: lease for row, lease in zip(found.items, shown, strict=True)}
        return found.response(request, lambda row: by_id[row.pk])

    def post(self, request: Request) -> Response:
        values = self.read(LeaseRequest)
        if "quote" in values:
            lease = self._redeem(values)
        else:
            wanted = requesting.understand(organization=self.organization, asked=values, at=self.at)
            if self.dry_run:
                plan = planning.plan(organization=self.organization, wanted=wanted, at=self.at)
                return Response({"plan": rendering.plan(plan)})
            if values.get("if_no_capacity") == "refuse":
                lease = planning.request_now(
                    organization=self.organization, wanted=wanted, at=self.at, created_by=self.principal.actor
                )
            else:
                lease = requesting.request_lease(
                    organization_id=self.organization.pk, wanted=wanted, at=self.at, created_by=self.principal.actor
                )
        doorbell.after_commit("scheduler.place_pending")
        shown = rendering.lease(lease, at=self.at)
        return self.created(shown, version=lease.version, location=f"/leases/{lease.public_id}")

    def _redeem(self, values: dict[str, Any]) -> Lease:
        quote = self.mine(Quote).filter(pk=values["quote"]).first()
        if quote is None:
            raise NotFound("There is no such quote, or it is not yours.")
        return planning.redeem(
            organization=self.organization, quote=quote, said=values, at=self.at, created_by=self.principal.actor
        )


class LeaseItem(OrganizationView):
    policy: ClassVar = {"get": "leases:read", "patch": "leases:write", "delete": "leases:write"}
    query: ClassVar = {"get": {"wait_s": strict_query.integer(0, 30)}}

    def get(self, request: Request, id: str) -> Response:
        lease = self.found(self.mine(Lease), "lease", id)
        known = request.headers.get("If-None-Match")
        if known is not None and etag.names(known, lease.version):
            lease = following.wait_for_change(lease, wait_s=self.parameters.get("wait_s", 0))
        return self.one(rendering.lease(lease, at=self.at), version=lease.version)

    def patch(self, request: Request, id: str) -> Response:
        values = self.read(LeaseEdit)
        lease = self.found(self.mine(Lease).select_for_update(no_key=True), "lease", id)
        self.check_version(lease.version, required=True)
        lease = lifecycle.edit(lease_id=lease.pk, changes=values)
        return self.one(rendering.lease(lease, at=self.at), version=lease.version)

    def delete(self, request: Request, id: str) -> Response:
        return _end(self, id)


def _end(view: OrganizationView, id: str) -> Response:
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
        return _end(self, id)


class LeaseAction(OrganizationView):
    """All other actions; any that the lease's state does not list is 409 `invalid-transition`."""

    policy: ClassVar = {"post": "leases:write"}

    def post(self, request: Request, id: str, action: str) -> Response:
        lease = self.found(self.mine(Lease), "lease", id)
        if action not in ACTIONS[State(lease.state)]:
            raise moves.WrongState(f"A lease that is {lease.state} has no action {action}.", lease=lease)
        lease = ACTS[action](self, lease)
        doorbell.after_commit("scheduler.converge")
        return self.one(rendering.lease(lease, at=self.at), version=lease.version)


def _change_end(view: OrganizationView, lease: Lease, *, sign: int) -> Lease:
    end_at = _new_end(lease, view.read(ChangeEnd), sign=sign)
    return lifecycle.change_end(lease_id=lease.pk, end_at=end_at, at=view.at)


def _park(view: OrganizationView, lease: Lease) -> Lease:
    keep = view.read(ParkRequest, optional=True).get("keep", parking.HOLD)
    return recovery.park_now(lease=lease, keep=keep, at=view.at)


def _resume(view: OrganizationView, lease: Lease) -> Lease:
    view.read(EndRequest, optional=True)
    return parking.resume(lease_id=lease.pk, at=view.at)


def _restart(view: OrganizationView, lease: Lease) -> Lease:
    view.read(EndRequest, optional=True)
    return recovery.restart_now(lease=lease, at=view.at)


ACTS: dict[str, Callable[[OrganizationView, Lease], Lease]] = {
    "extend": partial(_change_end, sign=1),
    "shorten": partial(_change_end, sign=-1),
    "park": _park,
    "resume": _resume,
    "restart": _restart,
}


def _new_end(lease: Lease, asked: dict[str, Any], *, sign: int) -> Any:
    if "end_at" in asked:
        return asked["end_at"]
    if lease.end_at is None:
        raise moves.WrongState("It has no end to move from; say end_at.", lease=lease)
    return lease.end_at + timedelta(seconds=sign * asked["by_s"])


def wants_stream(request: Request) -> bool:
    """Say whether to stream: asked for, and by a process that holds streams (ASGI); others answer one page."""
    kinds = [kind.partition(";")[0].strip() for kind in request.headers.get("Accept", "").split(",")]
    return "text/event-stream" in kinds and isinstance(request._request, ASGIRequest)


def _resumed(request: Request, position: int) -> int:
    """Return where to go on: after the last message that the follower has seen, if it says so."""
    last = request.headers.get("Last-Event-ID")
    return position if not last else strict_query.read_header("Last-Event-ID", last, strict_query.integer(0, 2**62))


def _stream(messages: AsyncIterator[str]) -> StreamingHttpResponse:
    # X-Accel-Buffering: a proxy that gathers the answer would keep the follower waiting.
    return StreamingHttpResponse(messages, content_type="text/event-stream", headers={"X-Accel-Buffering": "no"})


class LeaseEvents(OrganizationView):
    policy: ClassVar = {"get": "leases:read"}
    query: ClassVar = {"get": {"after": strict_query.integer(0, 2**31), "wait_s": strict_query.integer(0, 30)}}

    def get(self, request: Request, id: str) -> Response | StreamingHttpResponse:
        """Events after a number; as a stream where `Accept` asks for one."""
        lease = self.found(self.mine(Lease), "lease", id)
        after = self.parameters.get("after", 0)
        if wants_stream(request):
            return _stream(streaming.events(lease, after=_resumed(request, after)))
        rows = following.events_after(lease, after=after, wait_s=self.parameters.get("wait_s", 0))
        last = rows[-1].seq if rows else after
        return Response({"items": [rendering.event(row) for row in rows], "next_after": last})


class LeaseLogs(OrganizationView):
    policy: ClassVar = {"get": "leases:read"}
    query: ClassVar = {
        "get": {
            "member": strict_query.integer(0, 255),
            "offset": strict_query.integer(0, 2**62),
            "since": strict_query.instant,
            "wait_s": strict_query.integer(0, 30),
        }
    }

    def get(self, request: Request, id: str) -> Response | StreamingHttpResponse:
        """What a member printed from a byte on, or since an instant; as a stream where `Accept` asks for one."""
        lease = self.found(self.mine(Lease), "lease", id)
        member, offset = self.parameters.get("member", 0), self.parameters.get("offset", 0)
        if "since" in self.parameters:
            began = following.output_since(lease, member=member, since=self.parameters["since"])
            offset = max(offset, began)
        if wants_stream(request):
            return _stream(streaming.output(lease, member=member, offset=_resumed(request, offset)))
        return Response(
            following.logs_from(
                lease,
                member=member,
                offset=offset,
                wait_s=self.parameters.get("wait_s", 0),
            )
        )


class LeaseMembers(OrganizationView):
    policy: ClassVar = {"get": "leases:read"}

    def get(self, request: Request, id: str) -> Response:
        lease = self.found(self.mine(Lease), "lease", id)
        return Response({"items": rendering.lease(lease, at=self.at)["members"]})


class LeaseCharges(OrganizationView):
    policy: ClassVar = {"get": "leases:read"}

    def get(self, request: Request, id: str) -> Response:
        lease = self.found(self.mine(Lease), "lease", id)
        return Response(rendering.charges(lease, at=self.at))


class LeaseReceipt(OrganizationView):
    """The signed record of what was used and what it cost until now; `billing.receipt_check` recomputes it."""

    policy: ClassVar = {"get": "leases:read"}

    def get(self, request: Request, id: str) -> Response:
        lease = self.found(self.mine(Lease), "lease", id)
        if lease.first_active_at is None:
            raise moves.WrongState("It has never been active, so nothing was metered.", lease=lease)
        return Response(receipts.export(reference=lease.public_id, at=lease.ended_at or self.at))


class OfferCollection(OrganizationView):
    policy: ClassVar = {"get": "leases:read"}
    query: ClassVar = {
        "get": {
            "request": strict_query.text(256),
            "region": strict_query.text(40),
            "term": strict_query.choice(*TERMS),
            "currency": strict_query.text(3, pattern="[A-Z]{3}"),
            "sort": strict_query.choice("price", "-price", "available", "-available"),
            "group_by": strict_query.choices("model", "region"),
        }
    }

    def get(self, request: Request) -> Response:
        lines = planning.offers(
            organization=self.organization,
            currency=self.parameters.get("currency", self.organization.currency),
            term=self.parameters.get("term", "on_demand"),
            region=self.parameters.get("region"),
            request=self.parameters.get("request"),
            at=self.at,
        )
        shown = rendering.offers(
            lines, sort=self.parameters.get("sort", "price"), group_by=self.parameters.get("group_by", ())
        )
        return Response({"items": shown, "next_cursor": None})


class QuoteCollection(OrganizationView):
    policy: ClassVar = {"get": "leases:read", "post": "leases:write"}
    query: ClassVar = {"get": pagination.PARAMETERS}

    def get(self, request: Request) -> Response:
        return self.page(self.mine(Quote).select_related("lease"), rendering.quote)

    def post(self, request: Request) -> Response:
        values = self.read(QuoteRequest)
        ttl_s = values.pop("ttl_s", DEFAULT_TTL_S)
        wanted = requesting.understand(organization=self.organization, asked=values, at=self.at)
        quote = planning.quote(organization=self.organization, wanted=wanted, ttl_s=ttl_s, at=self.at)
        return self.created(rendering.quote(quote), version=quote.version, location=f"/quotes/{quote.public_id}")


class QuoteItem(OrganizationView):
    policy: ClassVar = {"get": "leases:read", "delete": "leases:write"}

    def get(self, request: Request, id: str) -> Response:
        quote = self.found(self.mine(Quote).select_related("lease"), "quote", id)
        return self.one(rendering.quote(quote), version=quote.version)

    def delete(self, request: Request, id: str) -> Response:
        quote = quotes.cancel(quote_id=self.found(self.mine(Quote), "quote", id).pk, at=self.at)
        return self.one(rendering.quote(quote), version=quote.version)


class QuoteCancel(OrganizationView):
    policy: ClassVar = {"post": "leases:write"}

    def post(self, request: Request, id: str) -> Response:
        self.read(EndRequest, optional=True)
        quote = quotes.cancel(quote_id=self.found(self.mine(Quote), "quote", id).pk, at=self.at)
        return self.one(rendering.quote(quote), version=quote.version)
