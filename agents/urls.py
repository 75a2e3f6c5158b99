"""Addresses of the hosts' doors: `urlpatterns` below /api/v1/, `agent_urlpatterns` below /agent/v1/."""

from django.urls import URLPattern, URLResolver, path

from agents import api

urlpatterns: list[URLPattern | URLResolver] = []

agent_urlpatterns: list[URLPattern | URLResolver] = [
    path("enrol", api.enrol, name="agent-enrol"),
    path("sync", api.sync, name="agent-sync"),
]
