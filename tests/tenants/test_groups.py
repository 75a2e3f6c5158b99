"""Groups: what a member may do is what his role or one of his groups allows, today; nobody gives what he lacks."""

from collections.abc import Callable

import pytest
from django.test import Client

from audit import log
from audit.models import Entry
from tenants.group_models import Group, GroupMember
from tenants.models import Role
from tests.tenants.conftest import MemberCaller, make_member
from tests.tenants.test_members import slug

GROUPS, MEMBERS = "/api/v1/groups", "/api/v1/members"
pytestmark = [pytest.mark.urls("tests.tenants.doors"), pytest.mark.django_db]


def test_who_is_put_in_a_group_may_what_its_role_may_until_he_is_taken_out(
    as_member: Callable[..., MemberCaller],
) -> None:
    owner = as_member(Role.OWNER)
    viewer = as_member(Role.VIEWER, organization=owner.organization)
    group = owner.post(GROUPS, {"name": "Operators", "role": "admin"})
    place = group["Location"]
    assert (group.status_code, group.json()["member_count"]) == (201, 0)
    assert slug(viewer.get(MEMBERS)) == "permission-denied"

    put_in = owner.post(f"{place}/members", {"member_id": viewer.membership.public_id})

    assert (put_in.status_code, put_in.json()["member_count"]) == (200, 1)
    assert viewer.get(MEMBERS).status_code == 200
    inside = owner.get(f"{place}/members").json()["items"]
    assert [one["id"] for one in inside] == [viewer.membership.public_id]
    taken_out = owner.send("DELETE", f"{place}/members/{viewer.membership.public_id}")
    assert taken_out.status_code == 204
    assert slug(viewer.get(MEMBERS)) == "permission-denied"
    done = Entry.objects.filter(action__startswith="group.").order_by("position").values_list("action", flat=True)
    assert [*done] == ["group.made", "group.member_added", "group.member_removed"]
    assert log.verify() == []


def test_a_person_in_a_session_has_the_roles_of_his_groups(as_member: Callable[..., MemberCaller]) -> None:
    owner = as_member(Role.OWNER)
    viewer = make_member(owner.organization, Role.VIEWER)
    group = Group.objects.create(organization=owner.organization, name="g", role=Role.ADMIN)
    client = Client()
    client.force_login(viewer.user)
    named = {"Gpuyard-Organization": owner.organization.public_id}

    before = client.get(MEMBERS, headers=named).status_code
    GroupMember.objects.create(group=group, membership=viewer)

    assert (before, client.get(MEMBERS, headers=named).status_code) == (403, 200)


def test_a_group_never_widens_a_key_beyond_its_scopes_nor_another_organization(
    as_member: Callable[..., MemberCaller],
) -> None:
    owner = as_member(Role.OWNER)
    narrow = as_member(Role.VIEWER, organization=owner.organization, scopes=("leases:read",))
    stranger = as_member(Role.VIEWER)
    group = owner.post(GROUPS, {"name": "g", "role": "admin"})["Location"]
    owner.post(f"{group}/members", {"member_id": narrow.membership.public_id})

    foreign = owner.post(f"{group}/members", {"member_id": stranger.membership.public_id})

    assert slug(narrow.get(MEMBERS)) == "permission-denied"
    assert (foreign.status_code, slug(stranger.get(MEMBERS))) == (404, "permission-denied")


@pytest.mark.parametrize("role", ["billing", "owner"])
def test_nobody_gives_by_a_group_what_he_lacks(as_member: Callable[..., MemberCaller], role: str) -> None:
    owner = as_member(Role.OWNER)
    admin = as_member(Role.ADMIN, organization=owner.organization)
    me = admin.membership.public_id
    mine = admin.post(GROUPS, {"name": "mine", "role": "admin"})["Location"]

    made = admin.post(GROUPS, {"name": "more", "role": role})
    changed = admin.send("PATCH", mine, {"role": role}, If_Match="*")
    theirs = owner.post(GROUPS, {"name": "money", "role": "billing"}, Idempotency_Key="theirs")["Location"]
    joined = admin.post(f"{theirs}/members", {"member_id": me})

    expected = "validation-error" if role == "owner" else "permission-denied"
    assert [slug(answer) for answer in (made, changed, joined)] == [expected, expected, "permission-denied"]
    assert not GroupMember.objects.exists()


def test_a_group_is_renamed_with_the_version_that_was_seen_and_its_name_is_its_own(
    as_member: Callable[..., MemberCaller],
) -> None:
    owner = as_member(Role.OWNER)
    place = owner.post(GROUPS, {"name": "a", "role": "viewer"})["Location"]
    owner.post(GROUPS, {"name": "b", "role": "viewer"})

    answers = [
        owner.send("PATCH", place, {"name": "c"}),
        owner.send("PATCH", place, {"name": "b"}, If_Match='"1"'),
        owner.send("PATCH", place, {"name": "c"}, If_Match='"1"'),
        owner.send("PATCH", place, {"name": "d"}, If_Match='"1"'),
        owner.send("PATCH", place, {}, If_Match="*"),
    ]

    assert [answer.status_code for answer in answers] == [428, 422, 200, 412, 422]
    assert sorted(group["name"] for group in owner.get(GROUPS).json()["items"]) == ["b", "c"]


def test_a_group_and_a_member_go_without_each_other(as_member: Callable[..., MemberCaller]) -> None:
    owner = as_member(Role.OWNER)
    viewer = as_member(Role.VIEWER, organization=owner.organization)
    place = owner.post(GROUPS, {"name": "a", "role": "developer"})["Location"]
    owner.post(f"{place}/members", {"member_id": viewer.membership.public_id})

    assert owner.send("DELETE", f"{MEMBERS}/{viewer.membership.public_id}").status_code == 204
    assert owner.get(place).json()["member_count"] == 0
    assert owner.send("DELETE", place).status_code == 204
    assert owner.get(place).status_code == 404


def test_what_a_dry_run_would_do_is_not_there_after(as_member: Callable[..., MemberCaller]) -> None:
    owner = as_member(Role.OWNER)
    place = owner.post(GROUPS, {"name": "a", "role": "viewer"})["Location"]

    dry = [
        owner.post(f"{GROUPS}?dry_run=1", {"name": "b", "role": "viewer"}),
        owner.post(f"{place}/members?dry_run=1", {"member_id": owner.membership.public_id}),
        owner.send("DELETE", f"{place}?dry_run=1"),
    ]

    assert [answer.status_code for answer in dry] == [200, 200, 204]
    assert (Group.objects.count(), GroupMember.objects.count()) == (1, 0)


def test_a_caller_with_groups_costs_no_further_question(
    as_member: Callable[..., MemberCaller], django_assert_max_num_queries: Callable[..., object]
) -> None:
    owner = as_member(Role.OWNER)
    for n in range(5):
        group = Group.objects.create(organization=owner.organization, name=str(n), role=Role.VIEWER)
        GroupMember.objects.create(group=group, membership=owner.membership)
    owner.get(GROUPS)

    with django_assert_max_num_queries(3):  # who calls, how often, the page
        assert len(owner.get(GROUPS).json()["items"]) == 5
