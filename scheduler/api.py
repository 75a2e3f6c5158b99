"""Doors: /leases, since any of their writes may ask the decider. Its actions stand in `acts_api.py`."""

from collections.abc import AsyncIterator
from typing import Any, ClassVar

from django.core.handlers.asgi import ASGIRequest
from django.db import connection
from django.http import StreamingHttpResponse
from rest_framework.request import Request
from rest_framework.response import Response

from apikit import etag, pagination, strict_query
from apikit.errors import NotFound
from billing import receipts
from leasing import moves, requesting, term_changes
from leasing.models import Lease, Quote
from leasing.states import State
from scheduler import acts_api, doorbell, following, offer_rendering, planning, rendering, streaming
from scheduler.lease_requests import LeaseEdit, LeaseRequest
from tenants.access import OrganizationView


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
                return Response({"plan": offer_rendering.plan(plan)})
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
        lease = term_changes.edit(lease_id=lease.pk, changes=values, at=self.at)
        return self.one(rendering.lease(lease, at=self.at), version=lease.version)

    def delete(self, request: Request, id: str) -> Response:
        return acts_api.end(self, id)


def wants_stream(request: Request) -> bool:
    """Say whether to stream: asked for, and by a process that holds streams (ASGI); others answer one page."""
    kinds = [kind.partition(";")[0].strip() for kind in request.headers.get("Accept", "").split(",")]
    return "text/event-stream" in kinds and isinstance(request._request, ASGIRequest)


def _resumed(request: Request, position: int) -> int:
    """Return where to go on: after the last message that the follower has seen, if it says so."""
    last = request.headers.get("Last-Event-ID")
    return position if not last else strict_query.read_header("Last-Event-ID", last, strict_query.integer(0, 2**62))


def _stream(messages: AsyncIterator[str]) -> StreamingHttpResponse:
    if not connection.in_atomic_block:
        connection.close()  # what was asked for this request is answered, and a stream holds none
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
