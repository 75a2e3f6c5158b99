"""API keys: their spelling, their life, and that none exceeds its maker."""

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from apikit import clock
from apikit.models import IdempotentAnswer
from audit.models import Entry
from tenants import key_text, keys, roles
from tenants.models import ApiKey, Role
from tests.factories import make_organization
from tests.tenants.conftest import MemberCaller

KEYS = "/api/v1/api-keys"
pytestmark = [pytest.mark.urls("tests.tenants.doors"), pytest.mark.django_db]


def slug(answer: Any) -> str:
    return str(answer.json()["type"]).rpartition("/")[2]


def body(*scopes: str, **more: Any) -> dict[str, Any]:
    return {"name": "ci", "scopes": list(scopes), **more}


def test_a_key_has_the_documented_form_and_right_check_digits() -> None:
    for live, start in ((True, "gy_live_"), (False, "gy_test_")):
        public, text = key_text.make(live=live)

        assert re.fullmatch(start + r"[0-9A-Za-z]{8}_[0-9A-Za-z]{38}", text)
        assert key_text.public_part(text) == public


def test_the_check_digits_are_the_crc_32_in_base_62() -> None:
    # CRC-32 of the text is 0x... computed with another implementation: binascii
    import binascii

    _, text = key_text.make(live=True)
    number = 0
    for digit in text[-6:]:
        number = number * 62 + "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz".index(digit)

    assert number == binascii.crc32(text[:-6].encode())


def test_any_single_change_is_noticed() -> None:
    _, text = key_text.make(live=True)

    for position in range(len(text)):
        for other in "aB3_":
            changed = text[:position] + other + text[position + 1 :]
            assert changed == text or key_text.public_part(changed) is None
    for shape in (text + "\n", text.upper(), text[:-1], "", "٣" * 55):
        assert key_text.public_part(shape) is None


def test_the_secret_is_shown_once_and_stored_as_a_hash(as_member: Callable[..., MemberCaller]) -> None:
    owner = as_member(Role.OWNER)

    answer = owner.post(KEYS, body("leases:read"), Idempotency_Key="k")
    secret = answer.json()["secret"]
    place = answer["Location"]

    assert answer.status_code == 201
    assert "secret" not in owner.get(place).json()
    assert "secret" not in owner.get(KEYS).json()["items"][0]
    assert owner.post(KEYS, body("leases:read"), Idempotency_Key="k").json()["secret"] == secret
    kept = IdempotentAnswer.objects.get(key="k")
    assert kept.sealed
    assert secret.encode() not in bytes(kept.body)
    assert secret not in str(list(ApiKey.objects.values())) + str(list(Entry.objects.values()))


def test_a_revoked_and_an_expired_key_are_refused(as_member: Callable[..., MemberCaller]) -> None:
    owner = as_member(Role.OWNER)
    made = owner.post(KEYS, body("keys:read")).json()
    assert owner.get(KEYS, Authorization=f"Bearer {made['secret']}").status_code == 200

    assert owner.send("DELETE", f"{KEYS}/{made['id']}").status_code == 204

    answer = owner.get(KEYS, Authorization=f"Bearer {made['secret']}")
    assert (answer.status_code, slug(answer)) == (401, "unauthenticated")
    ApiKey.objects.filter(pk=owner.key.pk).update(expires_at=clock.now())
    assert owner.get(KEYS).status_code == 401


def test_rotation_lets_the_old_key_live_on_for_the_overlap_and_no_longer(
    as_member: Callable[..., MemberCaller],
) -> None:
    owner = as_member(Role.OWNER)
    at = clock.now()

    answer = owner.post(f"{KEYS}/{owner.key.public_id}/actions/rotate", {"overlap_s": 600})
    new = answer.json()["secret"]

    assert answer.status_code == 201
    assert answer.json()["scopes"] == sorted(roles.SCOPES)
    with clock.frozen(at + timedelta(seconds=590)):
        assert owner.get(KEYS).status_code == 200
    with clock.frozen(at + timedelta(seconds=610)):
        assert owner.get(KEYS).status_code == 401
        assert owner.get(KEYS, Authorization=f"Bearer {new}").status_code == 200
    again = owner.post(f"{KEYS}/{owner.key.public_id}/actions/rotate", Authorization=f"Bearer {new}")
    assert (again.status_code, slug(again), again.json()["actions"]) == (409, "invalid-transition", [])


def test_rotation_at_once_ends_the_old_key(as_member: Callable[..., MemberCaller]) -> None:
    owner = as_member(Role.OWNER)

    assert owner.post(f"{KEYS}/{owner.key.public_id}/actions/rotate").status_code == 201
    assert owner.get(KEYS).status_code == 401


def test_nobody_gives_a_key_what_he_lacks(as_member: Callable[..., MemberCaller]) -> None:
    viewer = as_member(Role.VIEWER)
    narrow = as_member(Role.OWNER, scopes=("keys:write", "leases:read"))

    assert viewer.post(KEYS, body("leases:read")).status_code == 201
    for caller, scope in ((viewer, "leases:write"), (viewer, "billing:read"), (narrow, "billing:read")):
        answer = caller.post(KEYS, body(scope))
        assert (answer.status_code, slug(answer), answer.json()["lacking"]) == (403, "permission-denied", [scope])


def test_nobody_rotates_a_wider_key_into_his_hands(as_member: Callable[..., MemberCaller]) -> None:
    owner = as_member(Role.OWNER)
    narrow = as_member(Role.ADMIN, organization=owner.organization, scopes=("keys:write",))

    answer = narrow.post(f"{KEYS}/{owner.key.public_id}/actions/rotate")

    assert (answer.status_code, slug(answer)) == (403, "permission-denied")


def test_a_key_shrinks_with_its_maker(as_member: Callable[..., MemberCaller]) -> None:
    developer = as_member(Role.DEVELOPER)
    assert developer.get("/api/v1/members").status_code == 403
    developer.membership.role = Role.ADMIN
    developer.membership.save()
    assert developer.get("/api/v1/members").status_code == 200

    developer.membership.delete()

    assert developer.get(KEYS).status_code == 401


def test_a_locked_out_person_has_no_keys(as_member: Callable[..., MemberCaller]) -> None:
    owner = as_member(Role.OWNER)
    owner.membership.user.is_active = False
    owner.membership.user.save()

    assert owner.get(KEYS).status_code == 401


def test_members_see_their_own_keys_and_managers_see_all(as_member: Callable[..., MemberCaller]) -> None:
    owner = as_member(Role.OWNER)
    developer = as_member(Role.DEVELOPER, organization=owner.organization)

    assert {key["id"] for key in developer.get(KEYS).json()["items"]} == {developer.key.public_id}
    assert {owner.key.public_id, developer.key.public_id} <= {key["id"] for key in owner.get(KEYS).json()["items"]}
    assert slug(developer.get(f"{KEYS}/{owner.key.public_id}")) == "not-found"
    assert slug(developer.send("DELETE", f"{KEYS}/{owner.key.public_id}")) == "not-found"


def test_the_last_use_is_noted_once_a_minute(as_member: Callable[..., MemberCaller]) -> None:
    owner = as_member(Role.OWNER)
    start = clock.now()
    for second in (0, 30, 61):
        with clock.frozen(start + timedelta(seconds=second)):
            owner.get(KEYS)
        noted = ApiKey.objects.get(pk=owner.key.pk).last_used_at
        assert noted is not None
        assert (noted - start).total_seconds() == (61 if second == 61 else 0)


def test_a_rename_needs_the_version(as_member: Callable[..., MemberCaller]) -> None:
    owner = as_member(Role.OWNER)
    place = f"{KEYS}/{owner.key.public_id}"

    assert slug(owner.send("PATCH", place, {"name": "new"})) == "precondition-required"
    answer = owner.send("PATCH", place, {"name": "new"}, If_Match='"1"')
    assert (answer.status_code, answer.json()["name"], answer["ETag"]) == (200, "new", '"2"')


@pytest.mark.parametrize(
    ("sent", "pointer", "code"),
    [
        (body("leases:all"), "/scopes/0", "bad_value"),
        (body(), "/scopes", "bad_value"),
        (body("leases:read", expires_at="2020-01-01T00:00:00Z"), "/expires_at", "out_of_range"),
        (body("leases:read", id="x"), "/id", "unknown_field"),
    ],
)
def test_a_bad_key_is_refused_with_its_place(
    as_member: Callable[..., MemberCaller], sent: Any, pointer: str, code: str
) -> None:
    answer = as_member(Role.OWNER).post(KEYS, sent)

    assert answer.status_code == 422
    assert (answer.json()["errors"][0]["pointer"], answer.json()["errors"][0]["code"]) == (pointer, code)


def test_an_idempotent_creation_makes_one_key(as_member: Callable[..., MemberCaller]) -> None:
    owner = as_member(Role.OWNER)
    before = ApiKey.objects.count()

    for _ in range(2):
        owner.post(KEYS, body("leases:read"), Idempotency_Key="once")

    assert ApiKey.objects.count() == before + 1


def test_a_platform_key_is_bounded_by_its_scopes_alone() -> None:
    at = clock.now()
    key, _ = keys.create(
        organization=make_organization(), name="p", scopes=["leases:read"], expires_at=None, created_by=None, at=at
    )

    assert roles.permissions(role=None, scopes=frozenset(key.scopes)) == {"leases:read"}
