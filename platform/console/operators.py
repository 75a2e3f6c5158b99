"""The operators' site: Django's admin, with a first page that says how the platform is."""

from typing import Any

from allauth.account.decorators import secure_admin_login
from django.conf import settings
from django.contrib import messages
from django.contrib.admin import AdminSite
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import path

from accounts.signing_in import shows_second_factor
from apikit import clock
from console import host_money_pages
from console.overview import overview

SEES = ("agents.view_host", "leasing.view_lease")  # what the page needs; money is apart


class OperatorsSite(AdminSite):
    site_header = "gpuyard operators"
    site_title = "gpuyard"
    index_title = "How the platform is"
    site_url = None  # there is no page for the public behind "view site"
    enable_nav_sidebar = False  # wide tables need its room; the first page has every table
    index_template = "console/operators_index.html"

    def has_permission(self, request: HttpRequest) -> bool:
        """Staff only, and by a session that has shown a second factor where one is asked for."""
        return super().has_permission(request) and (not settings.STAFF_SECOND_FACTOR or shows_second_factor(request))

    def login(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Send people to the one page to sign in, and staff without a second factor to where they get one."""
        if super().has_permission(request) and not self.has_permission(request):
            messages.error(request, "The operators' pages need a second factor: add one, then sign in with it.")
            return redirect("mfa_index")
        answer: HttpResponse = secure_admin_login(super().login)(request, extra_context)
        return answer

    def each_context(self, request: HttpRequest) -> dict[str, Any]:
        return {**super().each_context(request), "staff_second_factor": settings.STAFF_SECOND_FACTOR}

    def get_urls(self) -> list[Any]:
        pages = [
            path("money-of-hosts/", self.admin_view(host_money_pages.hosts), name="host_money_list"),
            path("money-of-hosts/<uuid:host_id>/", self.admin_view(host_money_pages.host), name="host_money"),
        ]
        return [*pages, *super().get_urls()]

    def index(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> TemplateResponse:
        seen = None
        if request.user.has_perms(SEES):
            seen = overview(simulated_currency=settings.SIMULATED_CURRENCY, at=clock.now())
        shown = {"overview": seen, "sees_money": request.user.has_perm("billing.view_journal")}
        return super().index(request, {**(extra_context or {}), **shown})
