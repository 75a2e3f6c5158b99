"""How the loops and the books are, in the operators' admin."""

from django.contrib import admin

from agents.operator_pages import ReadOnly
from console.models import InvariantCheck
from scheduler.models import LoopProgress


@admin.register(LoopProgress)
class LoopProgressAdmin(ReadOnly):
    list_display = ["name", "succeeded_at", "ended_at", "runs", "failures", "failed_at", "last_error"]
    search_fields = ["name", "last_error"]
    ordering = ["name"]


@admin.register(InvariantCheck)
class InvariantCheckAdmin(ReadOnly):
    list_display = ["name", "findings", "checked_at"]
    list_filter = [("examples", admin.EmptyFieldListFilter)]
    search_fields = ["name"]
