"""The operators' site: Django's admin, with a first page that says how the platform is."""

from typing import Any

from django.conf import settings
from django.contrib.admin import AdminSite
from django.http import HttpRequest
from django.template.response import TemplateResponse

from apikit import clock
from console.overview import overview

SEES = ("agents.view_host", "leasing.view_lease")  # what the page needs; money is apart


class OperatorsSite(AdminSite):
    site_header = "gpuyard operators"
    site_title = "gpuyard"
    index_title = "How the platform is"
    site_url = None  # there is no page for the public behind "view site"
    enable_nav_sidebar = False  # wide tables need its room; the first page has every table
    index_template = "console/operators_index.html"

    def index(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> TemplateResponse:
        seen = None
        if request.user.has_perms(SEES):
            seen = overview(simulated_currency=settings.SIMULATED_CURRENCY, at=clock.now())
        shown = {"overview": seen, "sees_money": request.user.has_perm("billing.view_journal")}
        return super().index(request, {**(extra_context or {}), **shown})
