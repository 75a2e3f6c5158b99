"""Operators' pages of whole machines: the platform's ways in, and who was given which machine."""

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse

from agents import machine_access, machines_back, ssh
from agents.machine_records import Handover, MachineAccess, Maintenance
from agents.operator_pages import ReadOnly, act_with_reason, actor
from apikit import clock


@admin.register(MachineAccess)
class MachineAccessAdmin(ReadOnly):
    list_display = ["host", "address", "port", "user", "pinned", "shown", "offered", "trouble", "pinned_at"]
    list_filter = ["offered", ("shown_at", admin.EmptyFieldListFilter)]
    search_fields = ["host__name", "address", "trouble"]
    list_select_related = ["host"]
    actions = ["accept_key"]

    @admin.display(description="pinned host key")
    def pinned(self, row: MachineAccess) -> str:
        return ssh.HostKey(row.key_kind, row.key_body).fingerprint

    @admin.display(description="other key it has shown")
    def shown(self, row: MachineAccess) -> str:
        return ssh.HostKey(row.shown_kind, row.shown_body).fingerprint if row.shown_body else ""

    @admin.action(description="Accept the other host key, with its fingerprint and a reason")
    def accept_key(self, request: HttpRequest, rows: QuerySet[MachineAccess]) -> HttpResponse | None:
        def act(row: MachineAccess, text: str) -> object:
            fingerprint, _, reason = text.strip().partition(" ")
            return machine_access.accept_key(
                host_id=row.host_id, fingerprint=fingerprint, reason=reason, by=actor(request), at=clock.now()
            )

        what = "Write the fingerprint as you read it on the machine itself (SHA256:...), a space, and the reason."
        return act_with_reason(
            self, request, rows, action="accept_key", title="Accept host keys", explanation=what, act=act
        )


@admin.register(Handover)
class HandoverAdmin(ReadOnly):
    list_display = [
        "workload",
        "host",
        "user",
        "state",
        "state_since",
        "given_at",
        "given_until",
        "let_in_at",
        "shut_since",
        "drift",
        "last_error",
    ]
    list_filter = ["state", ("shut_since", admin.EmptyFieldListFilter)]
    search_fields = ["workload__reference", "workload__host__name", "user"]
    list_select_related = ["workload__host"]
    date_hierarchy = "state_since"
    actions = ["settle"]

    @admin.display(ordering="workload__host__name")
    def host(self, row: Handover) -> str:
        return row.workload.host.name

    @admin.action(description="Settle: nothing of the tenant is left on it, with a reason")
    def settle(self, request: HttpRequest, rows: QuerySet[Handover]) -> HttpResponse | None:
        at = clock.now()
        return act_with_reason(
            self, request, rows, action="settle", title="Settle machines",
            explanation="You have looked at it yourself. Its devices are free then; its host is verified anew.",
            act=lambda row, reason: machines_back.settle(handover_id=row.pk, reason=reason, by=actor(request), at=at),
        )  # fmt: skip


@admin.register(Maintenance)
class MaintenanceAdmin(ReadOnly):
    list_display = ["host", "starts_at", "ends_at", "message", "drained_at", "over_at", "withdrawn_at", "announced_by"]
    search_fields = ["host__name", "message"]
    list_select_related = ["host"]
    date_hierarchy = "starts_at"
