"""What every door does, shown on the example door: who may, one answer per key, pages, versions, limits, problems."""

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.db import OperationalError, connection, transaction
from django.test import Client

from apikit import clock, idempotency, rate_limits
from apikit.models import IdempotentAnswer
from outbox.models import Endpoint
from tests.apikit import example_door
from tests.apikit.conftest import Caller
from tests.factories import make_organization

pytestmark = [pytest.mark.urls("tests.apikit.example_door"), pytest.mark.django_db]

NOTES = "/api/v1/notes"
BODY = {"request": "A100_80G x1"}


def problem(answer: Any) -> dict[str, Any]:
    assert answer["Content-Type"] == "application/problem+json", answer.content[:300]
    document: dict[str, Any] = answer.json()
    assert document["status"] == answer.status_code
    assert document["request_id"] == answer["X-Request-Id"]
    return document


def slug(answer: Any) -> str:
    return problem(answer)["type"].rpartition("/")[2]


def test_a_creation_answers_201_with_its_place_and_version(caller: Caller) -> None:
    answer = caller.post(NOTES, BODY)

    assert answer.status_code == 201
    assert answer["Location"] == f"{NOTES}/{answer.json()['id']}"
    assert answer["ETag"] == '"1"'
    assert caller.get(answer["Location"]).json() == answer.json()


def test_without_a_key_nobody_is_known(caller: Caller) -> None:
    answer = caller.get(NOTES, Authorization=None)

    assert (answer.status_code, slug(answer)) == (401, "unauthenticated")
    assert answer["WWW-Authenticate"] == "Bearer"
    assert slug(caller.get(f"{NOTES}?api_key={caller.secret}", Authorization=None)) == "unauthenticated"


def test_a_wrong_checksum_is_refused_without_a_database_read(
    caller: Caller, django_assert_num_queries: Callable[[int], Any]
) -> None:
    wrong = caller.secret[:-1] + ("a" if caller.secret[-1] != "a" else "b")

    with django_assert_num_queries(0):
        answer = caller.get(NOTES, Authorization=f"Bearer {wrong}")

    assert (answer.status_code, slug(answer)) == (401, "unauthenticated")


def test_a_missing_scope_is_403_and_names_the_permission(make_caller: Callable[..., Caller]) -> None:
    reader = make_caller(scopes=("leases:read",))

    answer = reader.post(NOTES, BODY)

    assert (answer.status_code, slug(answer)) == (403, "permission-denied")
    assert "leases:write" in answer.json()["detail"]
    assert not Endpoint.objects.exists()


def test_a_method_that_the_policy_does_not_name_is_refused_to_everybody(caller: Caller) -> None:
    note = caller.post(NOTES, BODY).json()["id"]

    assert slug(caller.send("DELETE", f"{NOTES}/{note}")) == "permission-denied"


@pytest.mark.parametrize("method", ["TRACE", "OPTIONS", "PUT"])
def test_a_method_that_is_not_there_is_405(caller: Caller, method: str) -> None:
    answer = caller.send(method, NOTES)

    assert (answer.status_code, slug(answer)) == (405, "method-not-allowed")
    assert "GET" in answer["Allow"]


def test_foreign_missing_and_misspelt_ids_are_the_same_404(caller: Caller, make_caller: Callable[..., Caller]) -> None:
    foreign = make_caller().post(NOTES, BODY).json()["id"]
    missing = foreign[:-1] + ("0" if foreign[-1] != "0" else "1")

    answers = [caller.get(f"{NOTES}/{text}") for text in (foreign, missing, foreign.upper(), "1", "%00")]

    bodies = [{k: v for k, v in problem(a).items() if k not in {"instance", "request_id"}} for a in answers]
    assert {answer.status_code for answer in answers} == {404}
    assert all(body == bodies[0] for body in bodies)


def test_the_same_key_and_body_give_the_same_answer_and_act_once(caller: Caller) -> None:
    first = caller.post(NOTES, BODY, Idempotency_Key="k")
    second = caller.post(NOTES, json.dumps(BODY, indent=3).encode(), Idempotency_Key="k")

    assert (second.status_code, second.content) == (first.status_code, first.content)
    assert second["Idempotency-Replayed"] == "true"
    assert "Idempotency-Replayed" not in first
    assert (second["Location"], second["ETag"]) == (first["Location"], first["ETag"])
    assert Endpoint.objects.count() == 1


def test_the_same_key_with_another_body_is_422(caller: Caller) -> None:
    caller.post(NOTES, BODY, Idempotency_Key="k")

    assert slug(caller.post(NOTES, {"request": "other"}, Idempotency_Key="k")) == "idempotency-key-reused"
    assert slug(caller.post(NOTES + "?dry_run=0", BODY, Idempotency_Key="k")) == "idempotency-key-reused"


def test_a_key_belongs_to_one_organization(caller: Caller, make_caller: Callable[..., Caller]) -> None:
    caller.post(NOTES, BODY, Idempotency_Key="k")

    answer = make_caller().post(NOTES, BODY, Idempotency_Key="k")

    assert answer.status_code == 201
    assert "Idempotency-Replayed" not in answer


def test_a_post_without_a_usable_key_is_400(caller: Caller) -> None:
    assert slug(caller.post(NOTES, BODY, Idempotency_Key=None)) == "idempotency-key-missing"
    assert slug(caller.post(NOTES, BODY, Idempotency_Key="k" * 256)) == "idempotency-key-invalid"
    assert slug(caller.post(NOTES, BODY, Idempotency_Key="")) == "idempotency-key-invalid"
    assert not Endpoint.objects.exists()


def test_a_refusal_writes_nothing_and_frees_the_key(caller: Caller) -> None:
    refused = caller.post(NOTES, {"request": "refuse"}, Idempotency_Key="k")

    assert (refused.status_code, slug(refused), refused.json()["nearest"]) == (409, "no-capacity", "x1")
    assert not Endpoint.objects.exists()
    assert not IdempotentAnswer.objects.exists()
    assert caller.post(NOTES, BODY, Idempotency_Key="k").status_code == 201


def test_a_bug_shows_the_request_id_and_nothing_else_and_frees_the_key(caller: Caller) -> None:
    answer = caller.post(NOTES, {"request": "bug"}, Idempotency_Key="k")

    assert (answer.status_code, slug(answer)) == (500, "internal-error")
    assert set(answer.json()) == {"type", "title", "status", "request_id"}
    assert not Endpoint.objects.exists()
    assert caller.post(NOTES, BODY, Idempotency_Key="k").status_code == 201


def test_an_answer_is_forgotten_after_a_day(caller: Caller) -> None:
    caller.post(NOTES, BODY, Idempotency_Key="k")
    with connection.cursor() as cursor:
        cursor.execute("UPDATE apikit_idempotentanswer SET expires_at = now() - interval '1 second'")

    again = caller.post(NOTES, {"request": "other"}, Idempotency_Key="k")

    assert again.status_code == 201
    assert Endpoint.objects.count() == 2


@pytest.mark.django_db(transaction=True)
def test_a_double_is_told_to_come_back_while_the_first_has_not_committed(caller: Caller) -> None:
    key = "running"
    address, owner = NOTES, caller.organization.pk
    running, finish = threading.Event(), threading.Event()

    def first() -> None:
        with transaction.atomic():
            fingerprint = idempotency.fingerprint(method="post", address=address, body=BODY)
            idempotency._claim(organization_id=owner, key=key, fingerprint=fingerprint, at=clock.now())
            running.set()
            finish.wait(20)
        connection.close()

    thread = threading.Thread(target=first)
    thread.start()
    assert running.wait(10)
    answer = caller.post(NOTES, BODY, Idempotency_Key=key)
    finish.set()
    thread.join()

    assert (answer.status_code, slug(answer)) == (409, "idempotency-in-progress")


@pytest.mark.django_db(transaction=True)
def test_many_at_once_with_one_key_act_once(caller: Caller) -> None:
    answers: list[Any] = []

    def send() -> None:
        headers = {"Authorization": f"Bearer {caller.secret}", "Idempotency-Key": "one"}
        client = Client(raise_request_exception=False)
        answers.append(client.post(NOTES, BODY, content_type="application/json", headers=headers))
        connection.close()

    threads = [threading.Thread(target=send) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    created = [answer for answer in answers if answer.status_code == 201]
    assert {answer.status_code for answer in answers} <= {201, 409}
    assert len({answer.content for answer in created}) == 1
    assert sum("Idempotency-Replayed" not in answer for answer in created) == 1
    assert Endpoint.objects.count() == 1


def test_a_dry_run_checks_and_writes_nothing(caller: Caller) -> None:
    answer = caller.post(f"{NOTES}?dry_run=1", BODY)

    assert answer.status_code == 200
    assert answer.json()["request"] == BODY["request"]
    assert not Endpoint.objects.exists()
    assert slug(caller.post(f"{NOTES}?dry_run=1", {"request": "refuse"})) == "no-capacity"
    wrong = problem(caller.post(f"{NOTES}?dry_run=maybe", BODY))
    assert wrong["errors"][0] | {"detail": ""} == {"parameter": "dry_run", "code": "bad_value", "detail": ""}


def test_pages_follow_each_other_without_gap_or_double(caller: Caller) -> None:
    made = [caller.post(NOTES, {"request": str(n)}).json()["id"] for n in range(5)]

    seen: list[str] = []
    path = f"{NOTES}?limit=2"
    while path:
        answer = caller.get(path)
        seen += [item["id"] for item in answer.json()["items"]]
        link = answer.get("Link", "")
        path = link.partition("<")[2].partition(">")[0].removeprefix("http://testserver")
        assert ('rel="next"' in link) == (answer.json()["next_cursor"] is not None)

    assert seen == made[::-1]


def test_a_cursor_works_for_its_own_list_only(caller: Caller, make_caller: Callable[..., Caller]) -> None:
    for n in range(3):
        caller.post(NOTES, {"request": str(n)})
    cursor = caller.get(f"{NOTES}?limit=1").json()["next_cursor"]

    assert slug(make_caller().get(f"{NOTES}?cursor={cursor}")) == "invalid-cursor"
    assert slug(caller.get(f"{NOTES}?state=open&cursor={cursor}")) == "invalid-cursor"
    assert slug(caller.get(f"{NOTES}?cursor=AAAA")) == "invalid-cursor"
    assert slug(caller.get(f"{NOTES}?cursor=%FF%FE")) == "invalid-cursor"


@pytest.mark.parametrize(
    ("query", "parameter", "code"),
    [
        ("limit=1000000000", "limit", "out_of_range"),
        ("limit=0", "limit", "out_of_range"),
        ("limit=%D9%A3", "limit", "wrong_type"),
        ("limit=1&limit=2", "limit", "bad_value"),
        ("organization__name__startswith=A", "organization__name__startswith", "unknown_parameter"),
        ("state=opne", "state", "bad_value"),
        ("cursor=a%00b", "cursor", "null_character"),
    ],
)
def test_query_parameters_are_read_strictly(caller: Caller, query: str, parameter: str, code: str) -> None:
    answer = caller.get(f"{NOTES}?{query}")

    assert (answer.status_code, slug(answer)) == (422, "validation-error")
    assert (answer.json()["errors"][0]["parameter"], answer.json()["errors"][0]["code"]) == (parameter, code)


def test_a_change_names_the_version_it_saw(caller: Caller) -> None:
    path = f"{NOTES}/{caller.post(NOTES, BODY).json()['id']}"
    etag = caller.get(path)["ETag"]

    assert slug(caller.send("PATCH", path, {})) == "precondition-required"
    assert slug(caller.send("PATCH", path, {}, If_Match='"77"')) == "precondition-failed"
    assert caller.send("PATCH", path, {}, If_Match=etag)["ETag"] == '"2"'
    assert slug(caller.send("PATCH", path, {}, If_Match=etag)) == "precondition-failed"


def test_who_has_the_version_gets_304(caller: Caller) -> None:
    path = f"{NOTES}/{caller.post(NOTES, BODY).json()['id']}"
    etag = caller.get(path)["ETag"]

    assert caller.get(path, If_None_Match=etag).status_code == 304
    assert caller.get(path, If_None_Match='"9"').status_code == 200


def test_creations_are_counted_and_the_one_too_many_is_told_when_to_come_back(caller: Caller, settings: Any) -> None:
    settings.RATE_LIMITS = {"lease_create": (2, 3600)}
    first = caller.post(NOTES, BODY, Idempotency_Key="first")
    caller.post(NOTES, {"request": "refuse"})

    answer = caller.post(NOTES, BODY)

    assert first["RateLimit-Policy"] == '"lease_create";q=2;w=3600'
    assert first["RateLimit"].startswith('"lease_create";r=1;t=')
    assert (answer.status_code, slug(answer)) == (429, "rate-limited")
    assert 1 <= int(answer["Retry-After"]) <= 3600
    assert caller.post(NOTES, BODY, Idempotency_Key="first").content == first.content
    assert caller.get(NOTES)["RateLimit-Policy"].startswith('"requests"')


def test_what_no_door_sees_is_a_problem_too(caller: Caller) -> None:
    assert slug(caller.get("/api/v1/nothing-here")) == "not-found"
    assert slug(caller.get("/agent/v1/nothing-here")) == "not-found"
    evil = caller.get(NOTES, Host="evil.example")
    assert (evil.status_code, slug(evil)) == (400, "malformed-request")
    long = caller.get(f"{NOTES}?name={'x' * 9000}")
    assert (long.status_code, slug(long)) == (414, "uri-too-long")


def test_a_safe_request_id_is_echoed_and_another_is_replaced(caller: Caller) -> None:
    assert caller.get(NOTES, X_Request_Id="abc-1.2_3")["X-Request-Id"] == "abc-1.2_3"
    for unsafe in ("x" * 65, "a b", "a\u0000b", "<script>"):
        assert caller.get(NOTES, X_Request_Id=unsafe)["X-Request-Id"].startswith("req_")


def test_a_database_that_does_not_answer_is_503_with_a_time_to_come_back(caller: Caller, monkeypatch: Any) -> None:
    def gone(*_: object, **__: object) -> None:
        raise OperationalError("server closed the connection")

    monkeypatch.setattr(example_door.Notes, "page", gone)
    answer = caller.get(NOTES)

    assert (answer.status_code, slug(answer)) == (503, "unavailable")
    assert int(answer["Retry-After"]) >= 1
    assert "server closed" not in answer.content.decode()


def test_the_number_of_queries_of_a_request_is_known(
    caller: Caller, django_assert_num_queries: Callable[[int], Any]
) -> None:
    caller.post(NOTES, BODY)
    caller.get(NOTES)

    with django_assert_num_queries(3):  # key with the clock, count, page
        caller.get(NOTES)


def test_organizations_do_not_see_each_others_lists(caller: Caller, make_caller: Callable[..., Caller]) -> None:
    caller.post(NOTES, BODY)
    make_organization()

    assert make_caller().get(NOTES).json()["items"] == []


def test_a_database_that_goes_away_before_the_request_is_counted_is_503_too(caller: Caller, monkeypatch: Any) -> None:
    def gone(*_: object, **__: object) -> None:
        raise OperationalError("the connection is closed")

    monkeypatch.setattr(rate_limits, "statement", gone)
    answer = caller.post(NOTES, BODY)

    assert (answer.status_code, slug(answer)) == (503, "unavailable")
