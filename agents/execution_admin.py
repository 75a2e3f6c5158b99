"""A tenant's commands as operators see them: who asked when, and whether it worked; not what was said."""

from django.contrib import admin

from agents.models import Execution
from agents.operator_pages import ReadOnly


@admin.register(Execution)
class ExecutionAdmin(ReadOnly):
    list_display = ("public_id", "reference", "member", "host", "asked_by", "asked_at", "answered_at", "exit_code")
    list_filter = ("truncated",)
    search_fields = ("reference", "asked_by")
    date_hierarchy = "asked_at"
    exclude = ("argv", "output")  # the tenant's own
