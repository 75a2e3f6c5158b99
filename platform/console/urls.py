"""Addresses of the console: `probes` at the root."""

from django.urls import URLPattern, URLResolver, path

from console import probes as doors

probes: list[URLPattern | URLResolver] = [
    path("livez", doors.livez, name="livez"),
    path("readyz", doors.readyz, name="readyz"),
    path("metrics", doors.metrics, name="metrics"),
]
