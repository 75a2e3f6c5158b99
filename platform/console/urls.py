"""Addresses of the console: `probes` at the root, `urlpatterns` below /api/v1/."""

from django.urls import URLPattern, URLResolver, path

from console import api_pages
from console import probes as doors

probes: list[URLPattern | URLResolver] = [
    path("livez", doors.livez, name="livez"),
    path("readyz", doors.readyz, name="readyz"),
    path("metrics", doors.metrics, name="metrics"),
]

urlpatterns: list[URLPattern | URLResolver] = [
    path("openapi.json", api_pages.description, name="api-description"),
    path("docs", api_pages.docs, name="api-docs"),
]
