"""Releases of the agent as operators see them; they are added and rolled out by `manage.py agent_release`."""

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse

from agents import releases
from agents.models import AgentRelease, AgentUpgrade
from agents.operator_pages import ReadOnly, act_with_reason, actor
from apikit import clock


@admin.register(AgentRelease)
class AgentReleaseAdmin(ReadOnly):
    list_display = ["version", "percent", "added_at", "added_by", "stopped_at", "stopped_why"]
    search_fields = ["version", "sha256"]
    exclude = ["wheel"]
    actions = ["stop"]

    @admin.action(description="Stop: ask no more hosts")
    def stop(self, request: HttpRequest, rows: QuerySet[AgentRelease]) -> HttpResponse | None:
        return act_with_reason(
            self, request, rows, action="stop", title="Stop a release of the agent",
            explanation="No more hosts are asked to take it. Those that run it keep it until a newer one comes.",
            act=lambda row, reason: releases.stop(
                version=row.version, reason=reason, by=actor(request), at=clock.now()
            ),
        )  # fmt: skip


@admin.register(AgentUpgrade)
class AgentUpgradeAdmin(ReadOnly):
    list_display = ["host", "release", "asked_at", "ended_at", "outcome", "detail"]
    list_filter = ["outcome", "release__version"]
    search_fields = ["host__name", "release__version", "detail"]
    list_select_related = ["host", "release"]
    date_hierarchy = "asked_at"
