"""The SDK against the server's own list of doors: every door has a method, and every method a door."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from django.urls import URLPattern, URLResolver, get_resolver

import gpuyard

# Doors that are not for this package: descriptions of the API, and what payment providers call.
NOT_FOR_CLIENTS = re.compile(r"(openapi|docs|schema)\b.*|payments/.*")

# Operations of the design that the SDK has and the server is still to open. One that is opened may leave this list.
STILL_TO_OPEN = re.compile(r"(?!)")  # none: all are open


def _doors(patterns: list[Any], before: str = "") -> Iterator[tuple[str, set[str]]]:
    """Yield each route below /api/v1/ and the methods it answers."""
    for pattern in patterns:
        route = before + str(pattern.pattern)
        if isinstance(pattern, URLResolver):
            yield from _doors(pattern.url_patterns, route)
        elif isinstance(pattern, URLPattern) and route.startswith("api/v1/"):
            view = getattr(pattern.callback, "cls", None) or getattr(pattern.callback, "view_class", None)
            methods = {name.upper() for name in ("get", "post", "put", "patch", "delete") if hasattr(view, name)}
            yield route.removeprefix("api/v1/"), methods


def _answers(route: str, path: str) -> bool:
    """Say whether the route takes this path of an operation, whatever the ids in it are called."""
    parts = re.split(r"<[^>]+>", route)
    return re.fullmatch("[^/]+".join(map(re.escape, parts)), path.removeprefix("/")) is not None


DOORS = [door for door in _doors(get_resolver().url_patterns) if not NOT_FOR_CLIENTS.fullmatch(door[0])]
OPERATIONS = [listed.operation for listed in gpuyard.OPERATIONS.values()]


def test_the_server_has_doors_to_compare_with() -> None:
    assert len(DOORS) > 20


@pytest.mark.parametrize(("route", "methods"), DOORS, ids=[route for route, _ in DOORS])
def test_every_door_has_a_method_in_the_sdk(route: str, methods: set[str]) -> None:
    found = {operation.method for operation in OPERATIONS if _answers(route, operation.path)}

    assert methods, f"{route} answers no method that this test knows how to find"
    assert methods - found == set()


@pytest.mark.parametrize("operation", OPERATIONS, ids=[operation.id for operation in OPERATIONS])
def test_every_method_of_the_sdk_has_a_door(operation: gpuyard.Operation) -> None:
    open_to = {method for route, methods in DOORS if _answers(route, operation.path) for method in methods}

    assert operation.method in open_to or STILL_TO_OPEN.fullmatch(operation.id)
