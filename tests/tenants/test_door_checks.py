"""A door without a policy does not start."""

from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.http import HttpRequest, HttpResponse
from django.test import override_settings
from django.urls import path
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from tenants.access import OrganizationView
from tenants.door_checks import check_doors


class Good(OrganizationView):
    policy = {"get": "leases:read"}

    def get(self, request: Request) -> Response:
        return Response({})


class Forgotten(Good):
    def post(self, request: Request) -> Response:
        return Response({})


class Misspelt(Good):
    policy = {"get": "lease:read", "patch": "leases:write"}


class Foreign(APIView):
    def get(self, request: Request) -> Response:
        return Response({})


def function(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


class Urls:
    """A root of routes with one door."""

    def __init__(self, view: Any, route: str = "api/v1/things") -> None:
        self.urlpatterns = [path(route, view)]


@pytest.mark.parametrize(
    ("view", "fault"),
    [
        (Forgotten.as_view(), "Forgotten.post has no policy entry"),
        (Misspelt.as_view(), "there is no permission lease:read"),
        (Misspelt.as_view(), "has a policy for patch, which it does not offer"),
        (Foreign.as_view(), "is no OrganizationView"),
        (function, "is no OrganizationView"),
    ],
)
def test_start_up_refuses_a_door_that_is_open_by_mistake(view: Any, fault: str) -> None:
    with override_settings(ROOT_URLCONF=Urls(view)):
        assert any(fault in error.msg for error in check_doors())
        with pytest.raises(SystemCheckError, match="things"):
            call_command("check")


def test_a_door_with_its_policy_starts() -> None:
    with override_settings(ROOT_URLCONF=Urls(Good.as_view())):
        assert check_doors() == []


def test_a_door_of_the_short_list_starts() -> None:
    with override_settings(ROOT_URLCONF=Urls(function), DOORS_WITHOUT_POLICY=["api/v1/things"]):
        assert check_doors() == []


def test_the_real_doors_start() -> None:
    assert check_doors() == []
