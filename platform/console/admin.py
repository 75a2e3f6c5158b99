"""How the loops and the books are, in the operators' admin."""

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest

from agents.operator_pages import ReadOnly
from console.models import InvariantCheck
from scheduler.models import LoopProgress


@admin.register(LoopProgress)
class LoopProgressAdmin(ReadOnly):
    list_display = ["name", "succeeded_at", "ended_at", "runs", "failures", "failed_at", "last_error"]
    search_fields = ["name", "last_error"]
    ordering = ["name"]


class Holds(admin.SimpleListFilter):
    title = "holds"
    parameter_name = "holds"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("yes", "Yes"), ("no", "No")]

    def queryset(self, request: HttpRequest, rows: QuerySet[InvariantCheck]) -> QuerySet[InvariantCheck]:
        if self.value() is None:
            return rows
        return rows.filter(findings=0) if self.value() == "yes" else rows.exclude(findings=0)


@admin.register(InvariantCheck)
class InvariantCheckAdmin(ReadOnly):
    list_display = ["name", "findings", "checked_at"]
    list_filter = [Holds]
    search_fields = ["name"]
