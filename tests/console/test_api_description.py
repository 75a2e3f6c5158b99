"""/api/v1/openapi.json against the resolver, the doors' code and the SDK; and the page that shows it."""

import inspect
import json
import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest
from django.contrib.staticfiles import finders
from django.test import Client
from django.urls import get_resolver, resolve

import gpuyard
from console import api_answers, api_description
from console.api_operations import OPERATIONS, Operation
from scheduler import acts_api
from tenants.door_checks import doors, methods_of
from tests.gpuyard.test_operations import STILL_TO_OPEN

DESCRIBES_ITSELF = {"api/v1/openapi.json", "api/v1/docs"}
# Bodies of doors that share one class: what each of its acts reads stands in a function of its own.
ELSEWHERE = {
    acts_api.LeaseAction: [getattr(act, "func", act) for act in acts_api.ACTS.values()],
}


def view_methods(callback: Any) -> list[str]:
    view = getattr(callback, "view_class", None) or getattr(callback, "cls", None)
    return methods_of(view) if view is not None else []


def test_it_has_every_door_and_no_other() -> None:
    real = {
        (route, method)
        for route, callback in doors(get_resolver().url_patterns)
        if route.startswith("api/v1/") and route not in DESCRIBES_ITSELF
        for method in view_methods(callback)
    }

    described = {
        (resolve(api_description.PREFIX + re.sub(r"[{}]", "", operation.path)).route, operation.method)
        for operation in OPERATIONS
    }

    assert described == real


@pytest.mark.parametrize("operation", [o for o in OPERATIONS if o.form in {"object", "list"}], ids=lambda o: o.name)
def test_every_answer_is_described(operation: Operation) -> None:
    kind = api_answers.kind_of(operation)

    assert kind in api_answers.schemas()
    assert f"/schemas/{kind}" in json.dumps(api_description.document()["paths"][f"/api/v1{operation.path}"])


def test_every_act_of_a_lease_is_an_operation() -> None:
    described = {path.rpartition("/")[2] for path in api_description.document()["paths"] if "/leases/{id}/act" in path}

    assert described == {*acts_api.ACTS, "end", "cancel"}


def test_the_sdk_uses_the_same_names() -> None:
    ours = {(operation.name, operation.method.upper(), operation.path) for operation in OPERATIONS}
    listed = [found.operation for found in gpuyard.OPERATIONS.values()]
    theirs = {(found.id, found.method, found.path) for found in listed}

    assert ours - theirs == set()
    assert {name for name, _, _ in theirs - ours if not STILL_TO_OPEN.fullmatch(name)} <= NOT_YET_AN_ACT


# Acts of the design that the server refuses as unknown today.
NOT_YET_AN_ACT = {"lease_defer", "lease_renew", "lease_resize", "lease_move"}


def read_by(view: type[Any]) -> set[tuple[str, bool]]:
    """Return (body, may be left out) for each `read(...)` in the code of a door."""
    sources = [inspect.getsource(view), *map(inspect.getsource, ELSEWHERE.get(view, []))]
    named = re.findall(r"\.read\((\w+)(?:\s+if [^,)]+ else (\w+))?(, optional=True)?\)", "\n".join(sources))
    changes_end = re.findall(r"_end\((view|self)", sources[0])
    assert named or changes_end or ".read(" not in sources[0], view
    return {(name, bool(optional)) for first, second, optional in named for name in (first, second) if name}


def test_the_bodies_are_those_that_the_doors_read() -> None:
    described: dict[type[Any], set[tuple[str, bool]]] = defaultdict(set)
    for operation in OPERATIONS:
        if not operation.public:
            described[api_description.view_of(operation)] |= (
                {(operation.body.__name__, operation.optional)} if operation.body else set()
            )

    assert {view.__name__: bodies for view, bodies in described.items()} == {
        view.__name__: read_by(view) for view in described
    }


def schemas() -> Iterator[tuple[str, dict[str, Any]]]:
    document = api_description.document()
    yield from document["components"]["schemas"].items()
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            for parameter in operation["parameters"]:
                yield f"{method} {path} {parameter['name']}", parameter["schema"]


def test_every_schema_is_json_schema() -> None:
    for name, schema in schemas():
        assert jsonschema_rs.meta.is_valid(schema), name


def validator(name: str) -> Any:
    document = api_description.document()
    return jsonschema_rs.validator_for(
        {"$ref": f"#/components/schemas/{name}", "components": document["components"]}, validate_formats=True
    )


@pytest.mark.parametrize(
    ("body", "right"),
    [
        ({"request": "A100_80G x4", "image": "pytorch_latest"}, True),
        ({"request": {"options": [{"count": 2}]}, "term": {"kind": "spot"}, "env": {"A": "b"}}, True),
        ({"request": "A100_80G", "constraints": {"max_price": {"amount": "1.2", "currency": "CNY"}}}, True),
        ({"request": "A100_80G", "imgae": "x"}, False),
        ({"request": {"options": []}}, False),
        ({"request": 4}, False),
        ({"gpu_model": "A100_80G", "gpu_count": 17}, False),
        ({"gpu_model": "A100_80G", "gpu_count": True}, False),
        ({"request": "x", "notice_s": 100}, False),
        ({"request": "x", "labels": {"UPPER": "x"}}, False),
    ],
)
def test_the_schema_of_a_lease_says_what_the_door_accepts(body: dict[str, Any], right: bool) -> None:
    assert validator("LeaseRequest").is_valid(body) is right


def test_a_refusal_is_what_the_description_says(client: Client) -> None:
    answer = client.get("/api/v1/leases")

    assert answer["Content-Type"] == "application/problem+json"
    assert validator("Problem").is_valid(answer.json())


def test_it_is_served_and_is_openapi_3_1(client: Client) -> None:
    served = client.get("/api/v1/openapi.json").json()

    assert served == json.loads(json.dumps(api_description.document()))
    assert served["openapi"].startswith("3.1.")
    names = [operation["operationId"] for methods in served["paths"].values() for operation in methods.values()]
    assert len(names) == len(set(names))


def test_the_page_needs_nothing_from_elsewhere(client: Client) -> None:
    answer = client.get("/api/v1/docs")
    page = answer.content.decode()

    policy = answer["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    sources = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert len(sources) == 4
    assert all(source.startswith("/static/") for source in sources)
    assert all(finders.find(source.removeprefix("/static/")) for source in sources)
    assert "<style" not in page
    assert not re.search(r"<script(?![^>]*\bsrc=)", page)
