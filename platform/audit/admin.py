"""The log in the operators' admin: to read, never to change."""

from django.contrib import admin
from django.http import HttpRequest

from audit.models import Entry


@admin.register(Entry)
class EntryAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    list_display = ["at", "action", "target", "actor", "organization_id", "why", "request_id"]
    list_filter = ["action", "at"]
    search_fields = ["=id", "target", "actor", "request_id", "=organization_id"]
    ordering = ["-at"]
    date_hierarchy = "at"
    list_per_page = 50
    show_full_result_count = False

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Entry | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Entry | None = None) -> bool:
        return False
