"""Operators' pages of what hosts have said, and what was written about them; nothing here can be changed."""

from django.contrib import admin

from agents.models import (
    CapacityChange,
    CleaningRecord,
    Enrolment,
    HostEvent,
    LogChunk,
    PortCheck,
    Receipt,
    ScoreEntry,
    SelfTest,
    Sweep,
)  # fmt: skip
from agents.operator_pages import ReadOnly


@admin.register(HostEvent)
class HostEventAdmin(ReadOnly):
    list_display = ["at", "host", "device", "kind", "detail", "by"]
    list_filter = ["kind"]
    search_fields = ["host__name", "device__uuid", "kind", "detail"]
    list_select_related = ["host", "device"]
    date_hierarchy = "at"


@admin.register(CleaningRecord)
class CleaningRecordAdmin(ReadOnly):
    list_display = ["at", "host", "device", "reference", "epoch", "was_clean", "duration_ms", "ended_at", "failed"]
    list_filter = ["was_clean", "host"]
    search_fields = ["reference", "device__uuid", "host__name"]
    list_select_related = ["host", "device"]
    date_hierarchy = "at"

    @admin.display(description="Not clean")
    def failed(self, record: CleaningRecord) -> str:
        return ", ".join(check["check"] for check in record.checks if check["passed"] is False)


@admin.register(Enrolment)
class EnrolmentAdmin(ReadOnly):
    list_display = [
        "name",
        "organization",
        "zone",
        "access",
        "created_at",
        "expires_at",
        "used_at",
        "revoked_at",
        "host",
    ]
    list_filter = ["access", "zone__region", ("used_at", admin.EmptyFieldListFilter)]
    search_fields = ["name", "=id", "organization__name", "host__name"]
    list_select_related = ["organization", "zone", "host"]
    exclude = ["token_sha256"]
    date_hierarchy = "created_at"


@admin.register(SelfTest)
class SelfTestAdmin(ReadOnly):
    list_display = ["host", "level", "cause", "asked_at", "answered_at", "passed", "simulated"]
    list_filter = ["passed", "level", "simulated"]
    search_fields = ["host__name", "=id", "cause"]
    list_select_related = ["host"]
    date_hierarchy = "asked_at"


@admin.register(ScoreEntry)
class ScoreEntryAdmin(ReadOnly):
    list_display = ["at", "host", "points", "event"]
    search_fields = ["host__name"]
    list_select_related = ["host", "event"]
    date_hierarchy = "at"


@admin.register(Receipt)
class ReceiptAdmin(ReadOnly):
    list_display = ["reference", "member", "epoch", "n", "kind", "host", "faults", "received_at"]
    list_filter = ["kind"]
    search_fields = ["reference", "host__name", "sha256"]
    list_select_related = ["host"]


@admin.register(LogChunk)
class LogChunkAdmin(ReadOnly):
    list_display = ["reference", "member", "position", "size", "at"]
    search_fields = ["=reference"]
    fields = [
        "reference",
        "member",
        "first",
        "last",
        "position",
        "size",
        "at",
    ]  # a tenant's output is not for operators
    date_hierarchy = "at"


@admin.register(CapacityChange)
class CapacityChangeAdmin(ReadOnly):
    list_display = ["host", "xid8", "at"]
    search_fields = ["host__name"]
    list_select_related = ["host"]


@admin.register(Sweep)
class SweepAdmin(ReadOnly):
    list_display = ["swept_at", "listening_since", "breaker_since", "forgotten_below"]


@admin.register(PortCheck)
class PortCheckAdmin(ReadOnly):
    list_display = ["host", "address", "first", "end", "reachable", "closed", "failures", "checked_at", "next_at"]
    list_filter = ["reachable"]
    search_fields = ["host__name", "address"]
    list_select_related = ["host"]
    exclude = ["word"]  # whoever knows it could answer in the host's stead
