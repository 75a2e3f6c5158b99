"""Addresses of the hosts' doors: `urlpatterns` below /api/v1/, `agent_urlpatterns` below /agent/v1/."""

from django.urls import URLPattern, URLResolver, path

from agents import api, hosts_api, release_door

urlpatterns: list[URLPattern | URLResolver] = [
    path("hosts", hosts_api.HostCollection.as_view(), name="host_list"),
    path("hosts/<str:id>", hosts_api.HostItem.as_view(), name="host"),
    path("hosts/<str:id>/actions/<str:action>", hosts_api.HostAction.as_view(), name="host_action"),
    path("hosts/<str:id>/devices", hosts_api.HostDevices.as_view(), name="host_devices"),
    path("hosts/<str:id>/maintenance", hosts_api.HostMaintenances.as_view(), name="host_maintenances"),
    path(
        "hosts/<str:id>/maintenance/<str:maintenance_id>", hosts_api.HostMaintenance.as_view(), name="host_maintenance"
    ),
    path("hosts/<str:id>/events", hosts_api.HostEvents.as_view(), name="host_events"),
    path("hosts/<str:id>/score", hosts_api.HostScore.as_view(), name="host_score"),
    path("hosts/<str:id>/self-tests", hosts_api.HostSelfTests.as_view(), name="host_self_tests"),
    path("enrolments", hosts_api.EnrolmentCollection.as_view(), name="enrolment_list"),
    path("enrolments/<str:id>", hosts_api.EnrolmentItem.as_view(), name="enrolment"),
]

agent_urlpatterns: list[URLPattern | URLResolver] = [
    path("enrol", api.enrol, name="agent-enrol"),
    path("sync", api.sync, name="agent-sync"),
    path("releases/<str:sha256>", release_door.wheel, name="agent-release"),
]
