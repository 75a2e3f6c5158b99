"""Operators' acts on leases: with a reason, recorded."""

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse

from apikit import clock
from audit import log
from leasing.admin import LeaseAdmin as LeasePages
from leasing.admin import ReadOnly
from leasing.models import Lease
from leasing.states import EndReason
from scheduler import recovery
from scheduler.models import RecentUse, SpotStep


class ReasonForm(forms.Form):
    reason = forms.CharField(max_length=200, widget=forms.TextInput(attrs={"size": 60, "autofocus": True}))


@admin.register(Lease)
class LeaseAdmin(LeasePages):
    actions = ["end_with_reason"]

    @admin.action(description="End the selected leases, with a reason")
    def end_with_reason(self, request: HttpRequest, leases: QuerySet[Lease]) -> HttpResponse | None:
        form = ReasonForm(request.POST if "reason" in request.POST else None)
        if not form.is_valid():
            page: dict[str, Any] = {
                **self.admin_site.each_context(request),
                "title": "End leases",
                "objects": leases,
                "form": form,
                "action": "end_with_reason",
                "explanation": "Their meters stop now; tenants see the reason. This cannot be undone.",
            }
            return TemplateResponse(request, "admin/act_with_reason.html", page)
        at, reason = clock.now(), form.cleaned_data["reason"]
        for lease in leases:
            before = str(lease.state)
            ended = recovery.end_now(lease=lease, reason=EndReason.OPERATOR, at=at, detail=reason)
            log.record(
                actor=f"user:{request.user.pk}", organization=lease.organization_id, action="lease.ended_by_operator",
                target=lease.public_id, before={"state": before}, after={"state": str(ended.state)}, why=reason,
                request_id=getattr(request, "request_id", ""), at=at,
            )  # fmt: skip
        messages.success(request, f"{len(leases)} leases end now: {reason}")
        return None


@admin.register(SpotStep)
class SpotStepAdmin(ReadOnly):
    list_display = ["series", "at", "rule", "used_percent", "version"]
    list_filter = ["series__region", "series__notice_s", "rule"]
    search_fields = ["series__sku", "series__region"]
    list_select_related = ["series", "version"]

    @admin.display(description="in use", ordering="used_bp")
    def used_percent(self, step: SpotStep) -> str:
        return "" if step.used_bp is None else f"{step.used_bp / 100:.2f} %"


@admin.register(RecentUse)
class RecentUseAdmin(ReadOnly):
    """What decides between organizations in the queue, beside their weight and how long each lease has waited."""

    list_display = ["organization", "currency", "used_micros", "as_of"]
    list_filter = ["currency"]
    search_fields = ["organization__name", "organization__slug"]
    list_select_related = ["organization"]
    ordering = ["-used_micros"]
