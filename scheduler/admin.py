"""Operators' acts on leases: with a reason, recorded."""

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse

from agents.operator_pages import act_with_reason, actor
from apikit import clock
from apikit.errors import DomainError
from audit import log
from leasing import moves, refunding
from leasing.admin import LeaseAdmin as LeasePages
from leasing.admin import Part, ReadOnly
from leasing.models import Lease
from leasing.notice_models import LeaseMove, Notice
from leasing.states import EndReason, State
from scheduler import bans, moving, recovery
from scheduler.models import Promise, RecentUse, SpotStep
from tenants.admin import OrganizationAdmin as OrganizationPages
from tenants.models import Organization


class ReasonForm(forms.Form):
    reason = forms.CharField(max_length=200, widget=forms.TextInput(attrs={"size": 60, "autofocus": True}))


class Notices(Part):
    model = Notice
    fk_name = "lease"
    fields = ["cause", "given_at", "ends_at", "promised_s", "successor", "outcome", "detail"]
    ordering = ["given_at"]


@admin.register(Organization)
class OrganizationAdmin(OrganizationPages):
    actions = ["ban", "unban"]

    @admin.action(description="Ban, with a reason: its keys are refused, its leases end", permissions=["change"])
    def ban(self, request: HttpRequest, chosen: QuerySet[Organization]) -> HttpResponse | None:
        return act_with_reason(
            self, request, chosen, action="ban", title="Ban organizations",
            explanation="Their keys and members are refused, their leases end now, nobody new comes onto their hosts.",
            act=lambda each, reason: bans.ban(organization=each, reason=reason, by=actor(request), at=clock.now()),
        )  # fmt: skip

    @admin.action(description="Let in again, with a reason", permissions=["change"])
    def unban(self, request: HttpRequest, chosen: QuerySet[Organization]) -> HttpResponse | None:
        return act_with_reason(
            self, request, chosen, action="unban", title="Let organizations in again",
            explanation="Their keys and members are accepted again. What ended stays ended; their hosts stay cordoned.",
            act=lambda each, reason: bans.unban(organization=each, reason=reason, by=actor(request), at=clock.now()),
        )  # fmt: skip


@admin.register(Lease)
class LeaseAdmin(LeasePages):
    actions = ["end_with_reason", "move_with_reason", "refund"]
    inlines = [*LeasePages.inlines, Notices]

    @admin.action(description="Move the selected leases off their hosts after their notice, with a reason")
    def move_with_reason(self, request: HttpRequest, leases: QuerySet[Lease]) -> HttpResponse | None:
        explanation = "Each is told, and starts elsewhere at the end of its notice; a place is held for it from now on."
        form = ReasonForm(request.POST if "reason" in request.POST else None)
        if not form.is_valid():
            return self._ask(request, leases, form, "move_with_reason", "Move leases", explanation)
        at, reason, by = clock.now(), form.cleaned_data["reason"], f"user:{request.user.pk}"
        for lease in leases:
            try:
                notice = moving.off_its_host(lease=lease, by=by, reason=reason, at=at)
            except DomainError as fault:
                messages.error(request, f"{lease.public_id}: {fault.detail}")
                continue
            relocation = notice.relocation
            log.record(
                actor=by, organization=lease.organization_id, action="lease.moved_by_operator", target=lease.public_id,
                before={"host": str(relocation.from_host_id)}, why=reason, at=at,
                after={"host": str(relocation.to_host_id), "at": notice.ends_at.isoformat()},
                request_id=getattr(request, "request_id", ""),
            )  # fmt: skip
            messages.success(request, f"{lease.public_id} moves at {notice.ends_at:%H:%M:%S} UTC: {reason}")
        return None

    def _ask(
        self, request: HttpRequest, leases: QuerySet[Lease], form: ReasonForm, action: str, title: str, explanation: str
    ) -> HttpResponse:
        page: dict[str, Any] = {
            **self.admin_site.each_context(request),
            "title": title,
            "objects": leases,
            "form": form,
            "action": action,
            "explanation": explanation,
        }
        return TemplateResponse(request, "admin/act_with_reason.html", page)

    @admin.action(description="Refund all that was charged for them, with a reason")
    def refund(self, request: HttpRequest, leases: QuerySet[Lease]) -> HttpResponse | None:
        if not request.user.has_perm("billing.add_journal"):
            raise PermissionDenied
        return act_with_reason(
            self, request, leases, action="refund", title="Refund leases",
            explanation="Every charged second goes back into the tenant's wallet, and out of the owner's earnings.",
            act=lambda each, reason: refunding.refund(
                lease_id=each.pk, reason=reason, by=actor(request), at=clock.now()
            ),
        )  # fmt: skip

    @admin.action(description="End the selected leases, with a reason")
    def end_with_reason(self, request: HttpRequest, leases: QuerySet[Lease]) -> HttpResponse | None:
        def act(lease: Lease, reason: str) -> None:
            _end(lease, reason=reason, by=actor(request), request_id=getattr(request, "request_id", ""))

        return act_with_reason(
            self, request, leases, action="end_with_reason", title="End leases",
            explanation="Their meters stop now; tenants see the reason. This cannot be undone.", act=act,
        )  # fmt: skip


@transaction.atomic
def _end(lease: Lease, *, reason: str, by: str, request_id: str) -> None:
    """End a lease and record it together; one that had ended when the page was sent stays as it was. WrongState."""
    at, before = clock.now(), moves.locked(lease.pk)
    if before.state in {State.ENDING, State.ENDED}:
        raise moves.WrongState(f"It is {before.state} already.", lease=before)
    ended = recovery.end_now(lease=before, reason=EndReason.OPERATOR, at=at, detail=reason)
    log.record(
        actor=by, organization=lease.organization_id, action="lease.ended_by_operator", target=lease.public_id,
        before={"state": str(before.state)}, after={"state": str(ended.state)}, why=reason, request_id=request_id,
        at=at,
    )  # fmt: skip


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


@admin.register(Notice)
class NoticeAdmin(ReadOnly):
    """Reclaims, and whatever else tenants were told of before it came."""

    list_display = ["given_at", "lease", "cause", "ends_at", "promised_s", "successor", "lost_micros", "outcome"]
    list_filter = ["cause", "outcome", ("closed_at", admin.EmptyFieldListFilter)]
    search_fields = ["lease__id", "successor__id", "detail"]
    date_hierarchy = "given_at"
    list_select_related = ["lease", "successor"]


@admin.register(LeaseMove)
class LeaseMoveAdmin(ReadOnly):
    list_display = ["planned_at", "lease", "from_host", "to_host", "gpu_milli", "by", "reason", "done_at"]
    list_filter = ["by", ("done_at", admin.EmptyFieldListFilter)]
    search_fields = ["lease__id", "from_host__name", "to_host__name", "reason"]
    date_hierarchy = "planned_at"
    list_select_related = ["lease", "from_host", "to_host"]


@admin.register(Promise)
class PromiseAdmin(ReadOnly):
    """Seats that are kept for leases that wait: what their certain ETA means."""

    list_display = ["lease", "starts_at", "ends_at"]
    search_fields = ["lease__id", "lease__organization__name"]
    list_select_related = ["lease"]
    date_hierarchy = "starts_at"
