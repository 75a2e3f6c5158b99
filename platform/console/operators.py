"""The operators' site: Django's admin, with a dashboard as its first page."""

from django.contrib.admin import AdminSite


class OperatorsSite(AdminSite):
    site_header = "gpuyard operators"
    site_title = "gpuyard"
