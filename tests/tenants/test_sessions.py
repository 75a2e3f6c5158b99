"""People in a session: CSRF, and the organization that they name."""

from typing import Any

import pytest
from django.test import Client

from tenants.models import Membership, Role
from tests.factories import make_organization
from tests.tenants.conftest import make_member

KEYS = "/api/v1/api-keys"
pytestmark = [pytest.mark.urls("tests.tenants.doors"), pytest.mark.django_db]


def sign_in(membership: Membership, **options: Any) -> Client:
    client = Client(raise_request_exception=False, **options)
    client.force_login(membership.user)
    return client


def slug(answer: Any) -> str:
    return str(answer.json()["type"]).rpartition("/")[2]


def test_a_person_acts_for_the_organization_that_he_names() -> None:
    membership = make_member(make_organization(), Role.VIEWER)
    client = sign_in(membership)

    answer = client.get(KEYS, headers={"Gpuyard-Organization": membership.organization.public_id})

    assert answer.status_code == 200
    assert slug(client.get(KEYS)) == "permission-denied"


def test_another_organization_is_not_there() -> None:
    client = sign_in(make_member(make_organization(), Role.OWNER))

    for name in (make_organization().public_id, "org_x", "", "1"):
        answer = client.get(KEYS, headers={"Gpuyard-Organization": name})
        assert (answer.status_code, slug(answer)) == (404, "not-found")


def test_a_role_bounds_a_person() -> None:
    membership = make_member(make_organization(), Role.VIEWER)
    named = {"Gpuyard-Organization": membership.organization.public_id}

    assert slug(sign_in(membership).get("/api/v1/members", headers=named)) == "permission-denied"


def test_a_write_from_another_site_is_refused() -> None:
    membership = make_member(make_organization(), Role.OWNER)
    client = sign_in(membership, enforce_csrf_checks=True)
    headers = {"Gpuyard-Organization": membership.organization.public_id, "Idempotency-Key": "k"}
    body = {"name": "n", "scopes": ["leases:read"]}

    forged = client.post(KEYS, body, content_type="application/json", headers=headers)
    client.cookies["csrftoken"] = token = "a" * 32
    honest = client.post(KEYS, body, content_type="application/json", headers={**headers, "X-CSRFToken": token})

    assert (forged.status_code, slug(forged)) == (403, "permission-denied")
    assert honest.status_code == 201


def test_a_locked_out_person_is_nobody() -> None:
    membership = make_member(make_organization(), Role.OWNER)
    client = sign_in(membership)
    membership.user.is_active = False
    membership.user.save()

    answer = client.get(KEYS, headers={"Gpuyard-Organization": membership.organization.public_id})

    assert (answer.status_code, slug(answer)) == (401, "unauthenticated")
