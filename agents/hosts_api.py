"""Doors of host owners: /hosts and /enrolments."""

from datetime import datetime, timedelta
from typing import Any, ClassVar

from django.db.models import QuerySet
from rest_framework.request import Request
from rest_framework.response import Response

from agents import enrolment, host_life, host_rendering, machine_access, maintenance, verification, workloads
from agents import score as scoring
from agents.models import Device, Enrolment, Host, HostEvent, Maintenance, SelfTest
from apikit import pagination, strict_query
from apikit.errors import InvalidInput
from apikit.instants import instant
from apikit.strict_fields import (
    Boolean,
    Choice,
    Instant,
    Integer,
    ListOf,
    MapOf,
    MoneyField,
    StrictSerializer,
    Text,
    fault,
)
from tenants.access import OrganizationView

DRAIN_MAX_S = 30 * 86_400
DRAIN_DEFAULT_S = 600
CLOCKS_DIFFER_S = 60


class Window(StrictSerializer):
    """One window of the week; what the words mean is said in agents.availability."""

    days = ListOf(child=Integer(min_value=0, max_value=6), min_length=1, max_length=7)
    to = Text(max_length=5)

    def get_fields(self) -> dict[str, Any]:
        # `from` is a keyword of Python, so it cannot be an attribute.
        return super().get_fields() | {"from": Text(max_length=5)}


class HostChange(StrictSerializer):
    price_floor = MoneyField(required=False)
    access = Choice(choices=Host.Access.values, required=False)
    hours = ListOf(child=Window(), max_length=21, required=False)
    hours_time_zone = Text(max_length=64, required=False)
    bare_metal = Boolean(required=False)  # whether it may be let as a whole machine


class ReasonBody(StrictSerializer):
    reason = Text(max_length=300, required=False, default="")


class DrainBody(StrictSerializer):
    reason = Text(max_length=300, required=False, default="")
    deadline = Instant(required=False)
    deadline_s = Integer(min_value=0, max_value=DRAIN_MAX_S, required=False)

    def validate(self, values: dict[str, Any]) -> Any:
        if "deadline" in values and "deadline_s" in values:
            raise fault("exactly_one_of", "Say deadline or deadline_s, not both.", pointer="/deadline_s")
        return values


class EnrolmentBody(StrictSerializer):
    name = Text(max_length=64)
    zone = Text(max_length=40)
    access = Choice(choices=Host.Access.values, required=False, default=Host.Access.PUBLIC.value)
    gpus = MapOf(
        name=Text(max_length=40),
        child=Integer(min_value=1, max_value=64),
        max_length=16,
        required=False,
        default=dict,
    )


class _HostView(OrganizationView):
    def hosts(self) -> QuerySet[Host]:
        return self.mine(Host, owner="owner")

    def shown(self) -> QuerySet[Host]:
        return self.hosts().select_related("zone__region", "port_check").prefetch_related("devices__model")

    def answer(self, host: Host) -> Response:
        host = self.shown().get(pk=host.pk)
        return self.one(host_rendering.host(host), version=host.version)


class HostCollection(_HostView):
    """The organization's own machines."""

    policy: ClassVar = {"get": "hosts:read"}
    query: ClassVar = {
        "get": {
            **pagination.PARAMETERS,
            "state": strict_query.choices(*Host.State.values),
            "name": strict_query.text(64),
        }
    }

    def get(self, request: Request) -> Response:
        rows = self.shown()
        if "state" in self.parameters:
            rows = rows.filter(state__in=self.parameters["state"])
        if "name" in self.parameters:
            rows = rows.filter(name=self.parameters["name"])
        return self.page(rows, host_rendering.host)


class HostItem(_HostView):
    policy: ClassVar = {"get": "hosts:read", "patch": "hosts:write"}

    def get(self, request: Request, id: str) -> Response:
        host = self.found(self.shown(), "host", id)
        return self.one(host_rendering.host(host), version=host.version)

    def patch(self, request: Request, id: str) -> Response:
        """Price floor, access class, hours: they count for leases made from now on."""
        asked = self.read(HostChange)
        host = self.found(self.hosts().select_for_update(no_key=True), "host", id)
        self.check_version(host.version, required=True)
        floor = asked.pop("price_floor", None)
        if floor is not None:
            currency = host.zone.region.currency
            if floor.currency != currency:
                detail = f"Hosts in {host.zone.region.slug} are sold in {currency}."
                raise InvalidInput(
                    detail, errors=[{"pointer": "/price_floor/currency", "code": "bad_value", "detail": detail}]
                )
            asked["price_floor_micros"] = floor.amount_micros
        bare_metal = asked.pop("bare_metal", None)
        if bare_metal is not None:
            turn: dict[str, Any] = {"host_id": host.pk, "by": self.principal.actor, "at": self.at}
            if bare_metal:
                machine_access.offer_again(**turn)
            else:
                machine_access.withdraw(reason="", **turn)
        return self.answer(host_life.edit(host_id=host.pk, changes=asked, by=self.principal.actor, at=self.at))


class HostAction(_HostView):
    """`cordon`, `uncordon`, `retire`, `verify`; any that the host does not list now is 409, a repeated one 200."""

    policy: ClassVar = {"post": "hosts:write"}

    def post(self, request: Request, id: str, action: str) -> Response:
        host = self.found(self.hosts(), "host", id)
        self.check_version(host.version)
        if action not in host_rendering.ACTIONS:
            allowed = host_rendering.actions(host)
            raise host_life.WrongHostState("There is no such action.", state=host.state, actions=allowed)
        body = self.read(DrainBody if action == "drain" else ReasonBody, optional=True)
        act: dict[str, Any] = {"host_id": host.pk, "by": self.principal.actor, "at": self.at}
        if action == "verify":
            verification.ask_again(host_id=host.pk, cause=f"asked for by {self.principal.actor}", at=self.at)
        elif action == "drain":
            after_s = body.get("deadline_s", DRAIN_DEFAULT_S)
            deadline = body.get("deadline", self.at + timedelta(seconds=after_s))
            _check_deadline(deadline, at=self.at)
            host_life.drain(deadline=deadline, reason=body["reason"], **act)
        elif action == "cordon":
            host_life.cordon(reason=body["reason"], **act)
        elif action == "uncordon":
            host_life.uncordon(reason=body["reason"], **act)
        else:
            host_life.retire(reason=body["reason"], **act)
        return self.answer(host)


def _check_deadline(deadline: datetime, *, at: datetime) -> None:
    """Refuse a deadline that has passed (by more than a clock may be off): `deadline_s: 0` says now."""
    if deadline < at - timedelta(seconds=CLOCKS_DIFFER_S):
        detail = f"It is {instant(at)}; a deadline lies ahead. `deadline_s: 0` ends what runs there now."
        raise InvalidInput(detail, errors=[{"pointer": "/deadline", "code": "out_of_range", "detail": detail}])


class HostDevices(_HostView):
    policy: ClassVar = {"get": "hosts:read"}
    query: ClassVar = {"get": pagination.PARAMETERS}

    def get(self, request: Request, id: str) -> Response:
        host = self.found(self.hosts(), "host", id)
        used = {uuid for workload in workloads.live_on(host.pk) for uuid in workload.spec.get("devices", [])}
        rows = self.mine(Device, owner="host__owner").filter(host=host).select_related("model", "host")
        return self.page(rows, lambda row: host_rendering.device(row, in_use=row.uuid in used), newest_first=False)


class HostEvents(_HostView):
    """The host's diary, newest first."""

    policy: ClassVar = {"get": "hosts:read"}
    query: ClassVar = {"get": pagination.PARAMETERS}

    def get(self, request: Request, id: str) -> Response:
        host = self.found(self.hosts(), "host", id)
        rows = self.mine(HostEvent, owner="host__owner").filter(host=host).select_related("device")
        return self.page(rows, host_rendering.event)


class HostScore(_HostView):
    """How reliable the host has been: number, formula, every point with its reason, and what would change it."""

    policy: ClassVar = {"get": "hosts:read"}

    def get(self, request: Request, id: str) -> Response:
        host = self.found(self.hosts(), "host", id)
        return Response(host_rendering.score(host, scoring.ledger(host.pk, at=self.at), at=self.at))


class HostSelfTests(_HostView):
    """What was asked of the host to verify it, what came back, and which check failed."""

    policy: ClassVar = {"get": "hosts:read"}
    query: ClassVar = {"get": pagination.PARAMETERS}

    def get(self, request: Request, id: str) -> Response:
        host = self.found(self.hosts(), "host", id)
        rows = self.mine(SelfTest, owner="host__owner").filter(host=host)
        return self.page(rows, host_rendering.self_test)


class MaintenanceBody(StrictSerializer):
    starts_at = Instant()
    ends_at = Instant()
    message = Text(max_length=300, min_length=1)
    lead_s = Integer(
        min_value=maintenance.LEAD_LEAST_S, max_value=maintenance.LEAD_MOST_S, required=False,
        default=maintenance.LEAD_DEFAULT_S,
    )  # fmt: skip


class HostMaintenances(_HostView):
    """Windows in which the machine will be away: tenants are told, it is drained before and opened again after."""

    policy: ClassVar = {"get": "hosts:read", "post": "hosts:write"}
    query: ClassVar = {"get": pagination.PARAMETERS}

    def get(self, request: Request, id: str) -> Response:
        host = self.found(self.hosts(), "host", id)
        rows = self.mine(Maintenance, owner="host__owner").filter(host=host).select_related("host")
        return self.page(rows, host_rendering.maintenance)

    def post(self, request: Request, id: str) -> Response:
        host = self.found(self.hosts(), "host", id)
        asked = self.read(MaintenanceBody)
        row = maintenance.announce(host_id=host.pk, by=self.principal.actor, at=self.at, **asked)
        return self.created(host_rendering.maintenance(row), version=1, location=f"/hosts/{id}/maintenance")


class HostMaintenance(_HostView):
    policy: ClassVar = {"delete": "hosts:write"}

    def delete(self, request: Request, id: str, maintenance_id: str) -> Response:
        """Take the window back; a host that is drained for it already is opened again."""
        host = self.found(self.hosts(), "host", id)
        rows = self.mine(Maintenance, owner="host__owner").filter(host=host)
        row = self.found(rows, "maint", maintenance_id)
        maintenance.withdraw(maintenance_id=row.pk, by=self.principal.actor, at=self.at)
        return Response(status=204)


class EnrolmentCollection(OrganizationView):
    policy: ClassVar = {"get": "hosts:read", "post": "hosts:write"}
    query: ClassVar = {"get": pagination.PARAMETERS}
    shows_secret: ClassVar = True

    def get(self, request: Request) -> Response:
        rows = self.mine(Enrolment).select_related("zone__region", "host")
        return self.page(rows, lambda row: host_rendering.enrolment(row, at=self.at))

    def post(self, request: Request) -> Response:
        """A one-time token to add one host; shown once."""
        asked = self.read(EnrolmentBody)
        row, token = enrolment.invite(
            organization=self.organization, created_by=self.principal.actor, at=self.at, **asked
        )
        shown = {**host_rendering.enrolment(row, at=self.at), "token": token}
        return self.created(shown, version=1, location=f"/enrolments/{row.public_id}")


class EnrolmentItem(OrganizationView):
    policy: ClassVar = {"get": "hosts:read", "delete": "hosts:write"}

    def get(self, request: Request, id: str) -> Response:
        row = self.found(self.mine(Enrolment).select_related("zone__region", "host"), "enrol", id)
        shown = host_rendering.enrolment(row, at=self.at)
        return self.one(shown, version=shown["version"])

    def delete(self, request: Request, id: str) -> Response:
        """Make the token worthless; one that was used or revoked stays as it is."""
        row = self.found(self.mine(Enrolment), "enrol", id)
        enrolment.revoke(enrolment=row, at=self.at)
        return Response(status=204)
