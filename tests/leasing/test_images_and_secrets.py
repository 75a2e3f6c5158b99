"""/images and /secrets: one's own beside the platform's, and values that nobody is ever shown."""

import json
from typing import Any

import pytest
from django.db import connection

from apikit import sealing
from audit.models import Entry
from leasing import images
from leasing.models import Image
from tenants import vault
from tenants.models import Secret
from tests.apikit.conftest import Caller
from tests.factories import NOON, make_image, make_tenant

pytestmark = pytest.mark.django_db
IMAGE = {"slug": "trainer", "reference": "ghcr.io/acme/trainer:1", "min_cuda": "12.4", "ports": [8080]}
VALUE = "canary-6f1d2a"


@pytest.fixture
def caller() -> Caller:
    return Caller(make_tenant())


def codes(answer: Any) -> list[tuple[str, str]]:
    return [(fault["pointer"], fault["code"]) for fault in answer.json()["errors"]]


def test_an_image_of_ones_own_is_listed_beside_the_platforms(caller: Caller) -> None:
    make_image("pytorch_latest")
    made = caller.post("/api/v1/images", IMAGE)

    listed = caller.get("/api/v1/images").json()["items"]

    assert made.status_code == 201
    assert made["Location"] == f"/api/v1/images/{made.json()['id']}"
    assert {(row["slug"], row["own"]) for row in listed} == {("trainer", True), ("pytorch_latest", False)}


def test_nobody_else_sees_it_or_starts_it(caller: Caller) -> None:
    made = caller.post("/api/v1/images", IMAGE).json()
    other = Caller(make_tenant(name="Others"))

    assert other.get("/api/v1/images").json()["items"] == []
    assert other.get(f"/api/v1/images/{made['id']}").status_code == 404
    assert other.send("DELETE", f"/api/v1/images/{made['id']}").status_code == 404
    with pytest.raises(images.InvalidInput):
        images.resolve(text="trainer", organization_id=other.organization.pk)


@pytest.mark.parametrize("by", ["slug", "id"])
def test_a_lease_may_name_it_by_its_name_or_its_id(caller: Caller, by: str) -> None:
    made = caller.post("/api/v1/images", IMAGE).json()

    resolved = images.resolve(text=made[by], organization_id=caller.organization.pk)

    assert resolved.reference == "ghcr.io/acme/trainer:1"
    assert resolved.needs["min_cuda"] == "12.4"


def test_the_platforms_images_cannot_be_deleted(caller: Caller) -> None:
    image = make_image()

    assert caller.send("DELETE", f"/api/v1/images/{image.public_id}").status_code == 404
    assert Image.objects.filter(pk=image.pk).exists()


def test_deleting_frees_the_name(caller: Caller) -> None:
    made = caller.post("/api/v1/images", IMAGE).json()

    assert codes(caller.post("/api/v1/images", IMAGE)) == [("/slug", "bad_value")]
    assert caller.send("DELETE", f"/api/v1/images/{made['id']}").status_code == 204
    assert caller.post("/api/v1/images", IMAGE).status_code == 201


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"reference": "evil.example/x:1"}, ("/reference", "registry_not_allowed")),
        ({"reference": "pytorch"}, ("/reference", "bad_value")),
        ({"reference": "ghcr.io/UPPER/x"}, ("/reference", "bad_value")),
        ({"slug": "a/b"}, ("/slug", "bad_value")),
        ({"min_cuda": "twelve"}, ("/min_cuda", "bad_value")),
        ({"ports": [0]}, ("/ports/0", "out_of_range")),
        ({"privileged": True}, ("/privileged", "unknown_field")),
    ],
)
def test_what_an_image_may_not_be(caller: Caller, change: dict[str, Any], fault: tuple[str, str]) -> None:
    answer = caller.post("/api/v1/images", {**IMAGE, **change})

    assert answer.status_code == 422
    assert codes(answer) == [fault]


def test_a_value_is_sealed_and_no_door_shows_it(caller: Caller) -> None:
    made = caller.post("/api/v1/secrets", {"name": "HF_TOKEN", "value": VALUE})
    path = made["Location"]

    answers = [made, caller.get(path), caller.get("/api/v1/secrets")]

    assert made.status_code == 201
    assert not any(VALUE in answer.content.decode() for answer in answers)
    assert vault.reveal(Secret.objects.get()) == VALUE
    assert VALUE not in everything_stored()


def everything_stored() -> str:
    """Return all rows of all tables as text."""
    with connection.cursor() as cursor:
        tables = connection.introspection.table_names(cursor)
        found = []
        for table in tables:
            cursor.execute(f'SELECT t::text, to_jsonb(t)::text FROM "{table}" AS t')
            found += [str(row) for row in cursor.fetchall()]
    return "\n".join(found)


def test_a_known_name_gets_the_new_value(caller: Caller) -> None:
    first = caller.post("/api/v1/secrets", {"name": "T", "value": "one"})
    second = caller.post("/api/v1/secrets", {"name": "T", "value": "two"})

    assert (first.status_code, second.status_code) == (201, 200)
    assert second.json()["id"] == first.json()["id"]
    assert (second.json()["version"], second["ETag"]) == (2, '"2"')
    assert vault.reveal(Secret.objects.get()) == "two"


def test_a_sealed_value_that_was_moved_cannot_be_read() -> None:
    mine, theirs = make_tenant(), make_tenant(name="Others")
    vault.store(organization=mine, name="T", value="mine", at=NOON, actor="test")
    vault.store(organization=theirs, name="T", value="theirs", at=NOON, actor="test")
    stolen = Secret.objects.get(organization=mine).sealed
    Secret.objects.filter(organization=theirs).update(sealed=stolen)

    with pytest.raises(sealing.CannotUnseal):
        vault.reveal(Secret.objects.get(organization=theirs))


def test_a_dry_run_keeps_nothing(caller: Caller) -> None:
    answer = caller.post("/api/v1/secrets?dry_run=1", {"name": "T", "value": "one"})

    assert answer.status_code == 200
    assert not Secret.objects.exists()


def test_the_log_says_who_did_what_but_not_the_value(caller: Caller) -> None:
    made = caller.post("/api/v1/secrets", {"name": "T", "value": VALUE})
    caller.send("DELETE", made["Location"])

    entries = Entry.objects.filter(organization_id=caller.organization.pk, action__startswith="secret.")
    assert [entry.action for entry in entries.order_by("position")] == ["secret.created", "secret.deleted"]
    assert VALUE not in json.dumps([entry.after for entry in entries])


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ({"name": "1T", "value": "v"}, ("/name", "bad_name")),
        ({"name": "T", "value": ""}, ("/value", "bad_value")),
        ({"name": "T", "value": "v" * 16_385}, ("/value", "too_long")),
        ({"name": "T"}, ("/value", "required")),
    ],
)
def test_what_a_secret_may_not_be(caller: Caller, body: dict[str, Any], fault: tuple[str, str]) -> None:
    assert codes(caller.post("/api/v1/secrets", body)) == [fault]
