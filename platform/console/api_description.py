"""The API in OpenAPI 3.1: made of the doors themselves, their strict bodies and query readers, and the table of names.

Not by drf-spectacular's inspection, which knows the framework's fields and not ours: a pattern, a limit of names or a
refused unknown field would be missing, and what a client generates from it would be refused.
"""

import inspect
import re
from functools import cache
from typing import Any

from django.conf import settings
from django.urls import resolve

from apikit import json_schema, strict_query
from apikit.strict_fields import StrictSerializer
from console import api_answers
from console.api_operations import OPERATIONS, Operation

PREFIX = "/api/v1"
VERSION = "1"
type Json = dict[str, Any]

# Refusals that any door may give, and those of doors that read a body, change a version, or spend.
_ALWAYS = (400, 401, 403, 404, 405, 409, 414, 422, 429, 500, 503)
_OF_WRITES = (402, 410, 412, 413, 415, 428)
_ABOUT = (
    "Compute as a service: GPU machines as one pool, leased by the second. Every POST takes an Idempotency-Key; every "
    "refusal is a problem document (RFC 9457); unknown fields and parameters are refused. Rules of meaning (the "
    "grammar of a request, a registry that is allowed) are not in this document: they answer 422 with a pointer."
)


@cache
def document() -> Json:
    """Return the whole description; it does not change while the process runs."""
    schemas: dict[str, Json] = {"Problem": _PROBLEM, "Page": _PAGE, **api_answers.schemas()}
    paths: dict[str, Json] = {}
    for operation in OPERATIONS:
        paths.setdefault(PREFIX + operation.path, {})[operation.method] = _operation(operation, schemas)
    return {
        "openapi": "3.1.1",
        "info": {"title": "gpuyard", "version": VERSION, "description": _ABOUT},
        "servers": [{"url": "/"}],
        "security": [{"apiKey": []}],
        "paths": paths,
        "components": {
            "schemas": dict(sorted(schemas.items())),
            "responses": {"Problem": _PROBLEM_RESPONSE},
            "securitySchemes": {"apiKey": {"type": "http", "scheme": "bearer", "description": "gy_live_…"}},
        },
    }


def view_of(operation: Operation) -> Any:
    """Return the door's class. Raises Resolver404 if the operation has none."""
    return resolve(PREFIX + re.sub(r"[{}]", "", operation.path)).func.view_class  # type: ignore[attr-defined]


def _operation(operation: Operation, schemas: dict[str, Json]) -> Json:
    view = view_of(operation)
    handler = getattr(view, operation.method)
    words = inspect.getdoc(handler) or view.__doc__ or ""
    described: Json = {
        "operationId": operation.name,
        "tags": [operation.path.split("/")[1]],
        "parameters": [*_path(operation), *_query(operation, view), *_headers(operation)],
        "responses": _responses(operation),
    }
    if words:
        described["summary"] = " ".join(words.split())
    if operation.public:
        described["security"] = []
    elif permission := view.policy.get(operation.method):
        described["description"] = f"Needs the permission `{permission}`."
    if operation.body is not None:
        content = {"application/json": {"schema": _refer(operation.body, schemas)}}
        described["requestBody"] = {"required": not operation.optional, "content": content}
    return described


def _refer(kind: type[StrictSerializer], schemas: dict[str, Json]) -> Json:
    """Return the reference to the schema of an object, which is added when it is new."""
    name = kind.__name__
    if name not in schemas:
        schemas[name] = {}  # its place, so that a name within itself ends
        schemas[name] = json_schema.of_object(kind, lambda inner: _refer(inner, schemas))
    return {"$ref": f"#/components/schemas/{name}"}


def _path(operation: Operation) -> list[Json]:
    names = re.findall(r"\{(\w+)\}", operation.path)
    return [_parameter(name, "path", {"type": "string", "minLength": 1}, required=True) for name in names]


def _query(operation: Operation, view: Any) -> list[Json]:
    readers = dict(view.query.get(operation.method, {}))
    if operation.method != "get":
        readers["dry_run"] = strict_query.flag
    return [
        _parameter(name, "query", dict(strict_query.schema_of(reader)), required=name in operation.needs)
        for name, reader in readers.items()
    ]


def _headers(operation: Operation) -> list[Json]:
    found = []
    if operation.method == "post":
        key = {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]([ -~]*[!-~])?$"}
        found.append(_parameter("Idempotency-Key", "header", key, required=True))
    if operation.streams:
        # Read by streams alone, and refused there if it is no number.
        last = {"type": "string", "examples": ["42"], "description": "the id of the last message of a stream"}
        found.append(_parameter("Last-Event-ID", "header", last, required=False))
    if operation.method == "patch" or (operation.path.endswith("}") and operation.method == "delete"):
        # Any other text is a version that the object does not have: 412.
        tag = {"type": "string", "examples": ['"7"', "*"]}
        found.append(_parameter("If-Match", "header", tag, required=operation.method == "patch"))
    return found


def _parameter(name: str, place: str, schema: Json, *, required: bool) -> Json:
    return {"name": name, "in": place, "required": required, "schema": schema}


def _responses(operation: Operation) -> Json:
    answers: Json = {str(status): _success(operation) for status in operation.answers}
    if operation.method == "get":
        answers["304"] = {"description": "What `If-None-Match` names is still so."}
    refusals = _ALWAYS if operation.method == "get" else sorted({*_ALWAYS, *_OF_WRITES})
    return answers | {str(status): {"$ref": "#/components/responses/Problem"} for status in refusals}


def _success(operation: Operation) -> Json:
    if operation.form == "none":
        return {"description": "Done."}
    if operation.form.startswith("text/"):
        return {"description": "The document.", "content": {operation.form: {"schema": {"type": "string"}}}}
    if operation.form.startswith("application/"):
        return {"description": "The document.", "content": {operation.form: {}}}
    content: Json = {"application/json": {"schema": api_answers.of(operation)}}
    if operation.streams:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    return {"description": "Done.", "content": content}


_PAGE: Json = {
    "type": "object",
    "properties": {
        "items": {"type": "array", "items": {"type": "object"}},
        "next_cursor": {"type": ["string", "null"], "description": "of the next page; null at the end"},
    },
    "required": ["items"],
}
_FAULT: Json = {
    "type": "object",
    "properties": {
        "pointer": {"type": "string", "description": "of the place in the body (RFC 6901)"},
        "parameter": {"type": "string"},
        "code": {"type": "string"},
        "detail": {"type": "string"},
        "position": {"type": "integer", "minimum": 0},
        "nearest": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["code", "detail"],
}
_PROBLEM: Json = {
    "type": "object",
    "properties": {
        "type": {"type": "string", "format": "uri", "pattern": f"^{re.escape(settings.PROBLEM_TYPE_PREFIX)}[a-z-]+$"},
        "title": {"type": "string"},
        "status": {"type": "integer", "minimum": 400, "maximum": 599},
        "detail": {"type": "string"},
        "instance": {"type": "string"},
        "request_id": {"type": "string"},
        "errors": {"type": "array", "items": _FAULT},
    },
    "required": ["type", "title", "status", "request_id"],
}
_PROBLEM_RESPONSE: Json = {
    "description": "A refusal: its kind is the end of `type`.",
    "headers": {"X-Request-Id": {"schema": {"type": "string"}}},
    "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
}
