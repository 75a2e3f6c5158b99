"""How operators act on rows: read-only pages, and actions that ask for a reason first."""

from collections.abc import Callable
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse

from apikit.errors import DomainError


class ReasonForm(forms.Form):
    reason = forms.CharField(max_length=200, widget=forms.TextInput(attrs={"size": 60, "autofocus": True}))


class ReadOnly(admin.ModelAdmin):  # type: ignore[type-arg]
    """Rows that only the domain writes."""

    list_per_page = 50

    def has_add_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False


def actor(request: HttpRequest) -> str:
    return f"user:{request.user.pk}"


def act_with_reason(
    page: admin.ModelAdmin,  # type: ignore[type-arg]
    request: HttpRequest,
    rows: QuerySet[Any],
    *,
    action: str,
    title: str,
    explanation: str,
    act: Callable[[Any, str], object],
) -> HttpResponse | None:
    """Ask for the reason, then call `act(row, reason)` for each row; a refusal is shown and stops no other row."""
    form = ReasonForm(request.POST if "reason" in request.POST else None)
    if not form.is_valid():
        context = {
            **page.admin_site.each_context(request),
            "title": title,
            "objects": rows,
            "form": form,
            "action": action,
            "explanation": explanation,
        }
        return TemplateResponse(request, "admin/act_with_reason.html", context)
    for row in rows:
        try:
            act(row, form.cleaned_data["reason"])
        except DomainError as refusal:
            messages.error(request, f"{row}: {refusal.detail}")
        else:
            messages.success(request, f"{row}: done.")
    return None
