"""Addresses of the console: `probes` and `pages` at the root, `urlpatterns` below /api/v1/."""

from django.urls import URLPattern, URLResolver, path

from console import account_page, api_pages
from console import probes as doors

probes: list[URLPattern | URLResolver] = [
    path("livez", doors.livez, name="livez"),
    path("readyz", doors.readyz, name="readyz"),
    path("metrics", doors.metrics, name="metrics"),
]

pages: list[URLPattern | URLResolver] = [path("accounts/", account_page.account, name="account")]

urlpatterns: list[URLPattern | URLResolver] = [
    path("openapi.json", api_pages.description, name="api-description"),
    path("docs", api_pages.docs, name="api-docs"),
]
