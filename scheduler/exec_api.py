"""Doors: a command in what is leased, `POST /leases/{id}/exec`, and what came of it."""

from datetime import datetime
from typing import Any, ClassVar

from rest_framework.request import Request
from rest_framework.response import Response

from agents import executions
from agents.models import Execution
from apikit.errors import InvalidInput
from apikit.instants import instant
from apikit.strict_fields import Integer, ListOf, StrictSerializer, Text
from audit import log
from leasing import starting
from leasing.models import Lease
from tenants.access import OrganizationView

WORDS_MOST, TEXT_MOST = 256, 16 * 1024


class ExecBody(StrictSerializer):
    command = ListOf(child=Text(max_length=TEXT_MOST), min_length=1, max_length=WORDS_MOST)
    member = Integer(min_value=0, max_value=255, required=False)
    timeout_s = Integer(min_value=1, max_value=300, required=False)


class LeaseExecs(OrganizationView):
    policy: ClassVar = {"post": "leases:write"}

    def post(self, request: Request, id: str) -> Response:
        """Run a command in a member's container, as what it runs as; its output and exit code come with `GET`."""
        lease = self.found(self.mine(Lease), "lease", id)
        asked = self.read(ExecBody)
        if sum(map(len, asked["command"])) > TEXT_MOST:
            raise _invalid("/command", f"At most {TEXT_MOST} characters in all.")
        member = asked.get("member", 0)
        workload = next((row for row in starting.live_workloads(lease) if row.member == member), None)
        if workload is None:
            raise executions.NotRunning("It has no such member now.", step="absent")
        row = executions.ask(
            workload=workload, argv=asked["command"], timeout_s=asked.get("timeout_s", 60),
            by=self.principal.actor, at=self.at,
        )  # fmt: skip
        log.record(
            actor=self.principal.actor, organization=self.organization.pk, action="lease.exec", target=lease.public_id,
            after={"id": row.public_id, "member": member, "command": asked["command"][:1]}, why="", at=self.at,
        )  # fmt: skip
        location = f"/leases/{lease.public_id}/exec/{row.public_id}"
        return self.created(shown(row, at=self.at), version=1, location=location)


class LeaseExec(OrganizationView):
    policy: ClassVar = {"get": "leases:write"}  # what a command said is as secret as being able to run it

    def get(self, request: Request, id: str, exec_id: str) -> Response:
        lease = self.found(self.mine(Lease), "lease", id)
        row = self.found(Execution.objects.filter(reference=lease.public_id), "exec", exec_id)
        return Response(shown(row, at=self.at))


def shown(row: Execution, *, at: datetime) -> dict[str, Any]:
    return {
        "id": row.public_id,
        "member": row.member,
        "command": row.argv,
        "state": executions.state(row, at=at),
        "exit_code": row.exit_code,
        "output": row.output,
        "truncated": row.truncated,
        "failure": row.failure,
        "asked_at": instant(row.asked_at),
        "simulated": row.host.simulated,
    }


def _invalid(pointer: str, detail: str) -> InvalidInput:
    return InvalidInput(detail, errors=[{"pointer": pointer, "code": "too-long", "detail": detail}])
