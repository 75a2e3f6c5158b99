"""Members and roles: nobody grants what he lacks, and an organization keeps an owner."""

from collections.abc import Callable
from typing import Any

import pytest

from audit import log
from audit.models import Entry
from tenants import roles
from tenants.models import ApiKey, Membership, Role
from tests.factories import make_organization
from tests.tenants.conftest import MemberCaller, make_member

MEMBERS = "/api/v1/members"
pytestmark = [pytest.mark.urls("tests.tenants.doors"), pytest.mark.django_db]

# The table of the API's design page, written out once more by hand: (permission, roles that have it).
EXPECTED = {
    "leases:read": "owner admin developer billing viewer",
    "leases:write": "owner admin developer",
    "hosts:read": "owner admin developer billing viewer",
    "hosts:write": "owner admin",
    "billing:read": "owner admin billing",
    "billing:write": "owner billing",
    "members:read": "owner admin",
    "members:write": "owner admin",
    "keys:read": "owner admin developer billing viewer",
    "keys:write": "owner admin developer billing viewer",
    "keys_of_others:read": "owner admin",
    "keys_of_others:write": "owner admin",
    "webhooks:read": "owner admin",
    "webhooks:write": "owner admin",
    "audit:read": "owner admin billing",
    "owners:write": "owner",
}


def slug(answer: Any) -> str:
    return str(answer.json()["type"]).rpartition("/")[2]


def test_the_roles_are_those_of_the_design() -> None:
    assert {permission: frozenset(names.split()) for permission, names in EXPECTED.items()} == {
        permission: frozenset(role.value for role in allowed) for permission, allowed in roles.ROLES.items()
    }


def test_a_member_is_added_and_listed(as_member: Callable[..., MemberCaller]) -> None:
    owner = as_member(Role.OWNER)

    answer = owner.post(MEMBERS, {"email": "New@Example.org", "role": "developer"})

    assert answer.status_code == 201
    assert answer.json()["email"] == "new@example.org"
    assert owner.get(answer["Location"]).json() == answer.json()
    assert len(owner.get(MEMBERS).json()["items"]) == 2
    assert Entry.objects.filter(action="member.added", organization_id=owner.organization.pk).count() == 1
    assert log.verify() == []
    again = owner.post(MEMBERS, {"email": "new@example.org", "role": "viewer"})
    assert (again.status_code, slug(again)) == (422, "validation-error")


@pytest.mark.parametrize(("by", "role"), [("admin", "owner"), ("admin", "billing")])
def test_nobody_grants_a_role_beyond_his_own(as_member: Callable[..., MemberCaller], by: str, role: str) -> None:
    admin = as_member(Role(by))
    viewer = make_member(admin.organization, Role.VIEWER)

    added = admin.post(MEMBERS, {"email": "x@example.org", "role": role})
    changed = admin.send("PATCH", f"{MEMBERS}/{viewer.public_id}", {"role": role}, If_Match='"1"')

    assert [slug(answer) for answer in (added, changed)] == ["permission-denied"] * 2
    assert Membership.objects.get(pk=viewer.pk).role == Role.VIEWER


def test_an_owner_is_changed_by_owners_only(as_member: Callable[..., MemberCaller]) -> None:
    owner = as_member(Role.OWNER)
    admin = as_member(Role.ADMIN, organization=owner.organization)
    place = f"{MEMBERS}/{owner.membership.public_id}"

    assert slug(admin.send("PATCH", place, {"role": "viewer"}, If_Match='"1"')) == "permission-denied"
    assert slug(admin.send("DELETE", place)) == "permission-denied"


def test_the_last_owner_stays(as_member: Callable[..., MemberCaller]) -> None:
    owner = as_member(Role.OWNER)
    place = f"{MEMBERS}/{owner.membership.public_id}"

    assert slug(owner.send("PATCH", place, {"role": "admin"}, If_Match='"1"')) == "invalid-transition"
    assert slug(owner.send("DELETE", place)) == "invalid-transition"
    make_member(owner.organization, Role.OWNER)
    assert owner.send("PATCH", place, {"role": "admin"}, If_Match='"1"').status_code == 200


def test_a_removed_member_takes_his_keys_along(as_member: Callable[..., MemberCaller]) -> None:
    owner = as_member(Role.OWNER)
    developer = as_member(Role.DEVELOPER, organization=owner.organization)

    assert owner.send("DELETE", f"{MEMBERS}/{developer.membership.public_id}").status_code == 204

    assert developer.get("/api/v1/api-keys").status_code == 401
    assert ApiKey.objects.get(pk=developer.key.pk).revoked_at is not None


def test_another_organizations_member_is_not_there(as_member: Callable[..., MemberCaller]) -> None:
    owner = as_member(Role.OWNER)
    foreign = make_member(make_organization(), Role.VIEWER)

    for method, sent in (("GET", None), ("PATCH", {"role": "admin"}), ("DELETE", None)):
        answer = owner.send(method, f"{MEMBERS}/{foreign.public_id}", sent, If_Match='"1"')
        assert (answer.status_code, slug(answer)) == (404, "not-found")
    assert Membership.objects.filter(pk=foreign.pk, role=Role.VIEWER).exists()


@pytest.mark.parametrize("email", ["", "a", "a@b", "a@@b.c", "a b@c.de", "a@b.c\n", "ä@b.de", 1, None])
def test_what_is_no_address_is_refused(as_member: Callable[..., MemberCaller], email: Any) -> None:
    answer = as_member(Role.OWNER).post(MEMBERS, {"email": email, "role": "viewer"})

    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "/email")


def test_the_audit_events_are_read_by_page(as_member: Callable[..., MemberCaller]) -> None:
    owner = as_member(Role.OWNER)
    for n in range(3):
        owner.post(MEMBERS, {"email": f"m{n}@example.org", "role": "viewer"})

    first = owner.get("/api/v1/audit-events?limit=2").json()
    second = owner.get(f"/api/v1/audit-events?limit=2&cursor={first['next_cursor']}").json()

    positions = [event["position"] for event in first["items"] + second["items"]]
    assert positions == sorted(positions, reverse=True)
    assert first["items"][0]["actor"] == owner.key.public_id
    assert first["items"][0]["request_id"].startswith("req_")
    assert as_member(Role.OWNER).get("/api/v1/audit-events").json()["items"][0]["target"] != first["items"][0]["target"]
