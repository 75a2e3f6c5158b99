"""Operators' pages of hosts. What a host reports is read-only; acts go through the domain, with a reason, recorded."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from django.contrib import admin
from django.db.models import Count, Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.html import format_html

from agents import challenges, device_life, host_events, host_life, host_record_admin, silence, verification
from agents.execution_admin import ExecutionAdmin
from agents.machine_admin import HandoverAdmin, MachineAccessAdmin, MaintenanceAdmin
from agents.models import (
    Alarm,
    Device,
    Host,
    HostVolume,
    Workload,
)
from agents.operator_pages import ReadOnly, act_with_reason, actor
from agents.release_admin import AgentReleaseAdmin, AgentUpgradeAdmin
from apikit import clock

__all__ = [
    "AgentReleaseAdmin",
    "AgentUpgradeAdmin",
    "ExecutionAdmin",
    "HandoverAdmin",
    "MachineAccessAdmin",
    "MaintenanceAdmin",
    "host_record_admin",
]  # registered as this page is read
DRAIN_S = 3600


class Devices(admin.TabularInline):  # type: ignore[type-arg]
    model = Device
    extra = 0
    can_delete = False
    fields = ["index", "uuid", "model", "health", "health_reason", "cordoned", "present"]
    readonly_fields = ["index", "uuid", "model", "health", "health_reason", "cordoned", "present"]
    show_change_link = True

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


@admin.register(Host)
class HostAdmin(ReadOnly):
    list_display = [
        "name", "owner", "zone", "state", "scheduling", "tier", "access", "gpus", "last_heard_at", "simulated",
        "conditions",
    ]  # fmt: skip
    list_filter = ["state", "scheduling", "tier", "access", "simulated", "zone__region"]
    search_fields = ["name", "=id", "owner__name", "key_id", "address", "devices__uuid"]
    list_select_related = ["owner", "zone"]
    exclude = ["signing_key", "sealing_key", "inventory"]
    readonly_fields = ["money"]
    inlines = [Devices]
    date_hierarchy = "created_at"
    actions = ["cordon", "uncordon", "drain", "verify", "declare_lost", "quarantine", "release", "certify",
        "uncertify", "retire"]  # fmt: skip

    def get_queryset(self, request: HttpRequest) -> QuerySet[Host]:
        rows: QuerySet[Host] = super().get_queryset(request)
        return rows.annotate(gpu_count=Count("devices", filter=Q(devices__present=True)))

    @admin.display(description="GPUs", ordering="gpu_count")
    def gpus(self, host: Any) -> int:
        return int(host.gpu_count)

    @admin.display(description="money")
    def money(self, host: Host) -> str:
        return format_html('<a href="{}">What it earns</a>', reverse("admin:host_money", args=[host.pk]))

    @admin.action(description="Cordon, with a reason")
    def cordon(self, request: HttpRequest, hosts: QuerySet[Host]) -> HttpResponse | None:
        return self._act(
            request, hosts, "cordon", "Cordon hosts", "They take no new lease; what runs goes on.", host_life.cordon
        )

    @admin.action(description="Uncordon, with a reason")
    def uncordon(self, request: HttpRequest, hosts: QuerySet[Host]) -> HttpResponse | None:
        return self._act(
            request, hosts, "uncordon", "Uncordon hosts", "They take new leases again.", host_life.uncordon
        )

    @admin.action(description="Drain within an hour, with a reason")
    def drain(self, request: HttpRequest, hosts: QuerySet[Host]) -> HttpResponse | None:
        def act(*, host_id: Any, reason: str, by: str, at: Any) -> Host:
            return host_life.drain(
                host_id=host_id, deadline=at + timedelta(seconds=DRAIN_S), reason=reason, by=by, at=at
            )

        what = "Tenants are told; what still runs in an hour is ended. They take no new lease."
        return self._act(request, hosts, "drain", "Drain hosts", what, act)

    @admin.action(description="Verify again, with a reason")
    def verify(self, request: HttpRequest, hosts: QuerySet[Host]) -> HttpResponse | None:
        def act(*, host_id: Any, reason: str, by: str, at: Any) -> object:
            return verification.ask_again(host_id=host_id, cause=f"{by}: {reason}", at=at)

        what = "They are asked for a self-test; a wrong answer, or none, costs them their place."
        return self._act(request, hosts, "verify", "Verify hosts", what, act)

    @admin.action(description="Declare lost (over the breaker), with a reason")
    def declare_lost(self, request: HttpRequest, hosts: QuerySet[Host]) -> HttpResponse | None:
        what = "Only suspect hosts. Their leases are interrupted and recover by their policy."
        return self._act(request, hosts, "declare_lost", "Declare hosts lost", what, silence.declare_lost)

    @admin.action(description="Quarantine, with a reason")
    def quarantine(self, request: HttpRequest, hosts: QuerySet[Host]) -> HttpResponse | None:
        what = "Their identity is not trusted: their leases are moved, and only an operator lets them back."
        return self._act(request, hosts, "quarantine", "Quarantine hosts", what, host_life.quarantine)

    @admin.action(description="Release from quarantine, with a reason")
    def release(self, request: HttpRequest, hosts: QuerySet[Host]) -> HttpResponse | None:
        what = "They start again as unverified, and serve when they have passed a self-test."
        return self._act(request, hosts, "release", "Release hosts", what, host_life.release)

    @admin.action(description="Certify, with the contract as the reason")
    def certify(self, request: HttpRequest, hosts: QuerySet[Host]) -> HttpResponse | None:
        what = "Data-centre power, network and a contract: sold at the certified tier's prices. Needs an L2 that holds."
        return self._act(request, hosts, "certify", "Certify hosts", what, challenges.certify)

    @admin.action(description="Take the certificate back, with a reason")
    def uncertify(self, request: HttpRequest, hosts: QuerySet[Host]) -> HttpResponse | None:
        what = "Verified from now on; leases that run keep their price."
        return self._act(request, hosts, "uncertify", "Take certificates back", what, challenges.uncertify)

    @admin.action(description="Retire for good, with a reason")
    def retire(self, request: HttpRequest, hosts: QuerySet[Host]) -> HttpResponse | None:
        what = "Their keys are void from now on. Refused while something runs. This cannot be undone."
        return self._act(request, hosts, "retire", "Retire hosts", what, host_life.retire)

    def _act(
        self, request: HttpRequest, hosts: QuerySet[Host], action: str, title: str, explanation: str,
        act: Callable[..., object],
    ) -> HttpResponse | None:  # fmt: skip
        at = clock.now()
        return act_with_reason(
            self, request, hosts, action=action, title=title, explanation=explanation,
            act=lambda host, reason: act(host_id=host.pk, reason=reason, by=actor(request), at=at),
        )  # fmt: skip


@admin.register(Device)
class DeviceAdmin(ReadOnly):
    list_display = ["uuid", "host", "index", "model", "health", "health_reason", "cordoned", "present", "readings_at"]
    list_filter = ["health", "cordoned", "present", "model", "host__simulated"]
    search_fields = ["uuid", "=id", "host__name", "reported_name", "pci_bus_id"]
    list_select_related = ["host", "model"]
    actions = ["cordon", "uncordon", "fail", "restore"]

    @admin.action(description="Cordon, with a reason")
    def cordon(self, request: HttpRequest, devices: QuerySet[Device]) -> HttpResponse | None:
        what = "They are let to nobody new; what runs goes on."
        return self._act(request, devices, "cordon", "Cordon devices", what, device_life.cordon)

    @admin.action(description="Uncordon, with a reason")
    def uncordon(self, request: HttpRequest, devices: QuerySet[Device]) -> HttpResponse | None:
        return self._act(
            request, devices, "uncordon", "Uncordon devices", "They are offered again.", device_life.uncordon
        )

    @admin.action(description="Mark as failed, with a reason")
    def fail(self, request: HttpRequest, devices: QuerySet[Device]) -> HttpResponse | None:
        what = "They are out of service until restored; leases on them are moved and not charged from now on."
        return self._act(request, devices, "fail", "Mark devices as failed", what, device_life.fail)

    @admin.action(description="Restore after a repair, with a reason")
    def restore(self, request: HttpRequest, devices: QuerySet[Device]) -> HttpResponse | None:
        what = "What was held against them is forgotten; they serve again when they have passed a self-test."
        return self._act(request, devices, "restore", "Restore devices", what, device_life.restore)

    def _act(
        self, request: HttpRequest, devices: QuerySet[Device], action: str, title: str, explanation: str,
        act: Callable[..., object],
    ) -> HttpResponse | None:  # fmt: skip
        at = clock.now()
        return act_with_reason(
            self, request, devices, action=action, title=title, explanation=explanation,
            act=lambda device, reason: act(device_id=device.pk, reason=reason, by=actor(request), at=at),
        )  # fmt: skip


@admin.register(Workload)
class WorkloadAdmin(ReadOnly):
    exclude = ["sealed"]
    list_display = [
        "reference", "member", "epoch", "host", "wanted", "step", "failure", "ready_at", "exited_at", "gone_at",
        "last_valid_until",
    ]  # fmt: skip
    list_filter = ["wanted", "step", "failure", ("gone_at", admin.EmptyFieldListFilter)]
    search_fields = ["reference", "host__name", "container"]
    list_select_related = ["host"]
    date_hierarchy = "wanted_at"


@admin.register(HostVolume)
class HostVolumeAdmin(ReadOnly):
    list_display = [
        "host",
        "reference",
        "place",
        "size_mib",
        "used_mib",
        "wanted",
        "wanted_at",
        "unwanted_at",
        "gone_at",
    ]
    list_filter = ["wanted", ("gone_at", admin.EmptyFieldListFilter)]
    search_fields = ["reference", "place", "host__name"]
    list_select_related = ["host"]


@admin.register(Alarm)
class AlarmAdmin(ReadOnly):
    list_display = ["kind", "subject", "detail", "opened_at", "closed_at"]
    list_filter = ["kind", ("closed_at", admin.EmptyFieldListFilter)]
    search_fields = ["kind", "subject", "detail"]
    date_hierarchy = "opened_at"
    actions = ["settle"]

    @admin.action(description="Settle: somebody has looked at it, with a reason")
    def settle(self, request: HttpRequest, alarms: QuerySet[Alarm]) -> HttpResponse | None:
        at = clock.now()
        return act_with_reason(
            self, request, alarms, action="settle", title="Settle alarms",
            explanation="They come back if what raised them is still so.",
            act=lambda alarm, reason: host_events.settle_alarm(
                kind=alarm.kind, subject=alarm.subject, at=at, by=actor(request), reason=reason
            ),
        )  # fmt: skip
