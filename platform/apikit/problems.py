"""Every answer that is not 2xx or 3xx is a problem document (RFC 9457) of a listed type (API.md section 4)."""

import json
import re
from collections.abc import Iterable
from typing import Any

import structlog
from django.conf import settings
from django.db import InterfaceError, OperationalError
from django.http import Http404, HttpRequest, HttpResponse
from rest_framework import exceptions
from rest_framework.request import Request
from rest_framework.response import Response

from apikit.errors import DomainError, InvalidInput, NotFound, Unavailable, echoed
from apikit.language import translated
from apikit.strict_fields import Faults

CONTENT_TYPE = "application/problem+json"
DOCUMENT_LIMIT = 4000  # bytes of an error body
_PLAIN_PATH = re.compile(r"[A-Za-z0-9_./-]{1,160}", re.ASCII)

# What the frameworks refuse by themselves: status -> (slug, title). A status that is not here becomes a 400.
BY_STATUS: dict[int, tuple[str, str]] = {
    400: ("malformed-request", "The request cannot be read"),
    401: ("unauthenticated", "Who is calling is not known"),
    403: ("permission-denied", "The caller may not do this"),
    404: (NotFound.slug, NotFound.title),
    405: ("method-not-allowed", "This method is not offered here"),
    413: ("payload-too-large", "The body is too large"),
    414: ("uri-too-long", "The address is too long"),
    415: ("unsupported-media-type", "The body must be application/json"),
    422: (InvalidInput.slug, InvalidInput.title),
    429: ("rate-limited", "Too many requests"),
    500: ("internal-error", "Something went wrong on our side"),
    503: (Unavailable.slug, Unavailable.title),
}

log = structlog.get_logger("gpuyard.api")


def problem_response(exc: Exception, context: dict[str, Any]) -> Response | None:
    """Answer every refusal as a problem document; return None to let a bug be a 500 (Django logs it, and
    `apikit.requests` answers with the request id and nothing else)."""
    request = context["request"]
    refusal = _as_domain_error(exc)
    if refusal is not None:
        members = {"detail": refusal.detail, **refusal.facts}
        document = _document(request, refusal.status, refusal.slug, refusal.title, members)
        return _response(document, headers=_retry_headers(refusal.status, refusal.retry_after_s))
    if isinstance(exc, exceptions.APIException):
        return _of_framework(exc, request)
    return None


def plain_problem(request: HttpRequest, status: int, detail: str = "") -> HttpResponse:
    """Return a problem document for what was refused outside of any door (no route, host, size of the address)."""
    known = status if status in BY_STATUS else 400
    slug, title = BY_STATUS[known]
    document = _document(request, known, slug, title, {"detail": detail} if detail else {})
    response = HttpResponse(json.dumps(document), status=known, content_type=CONTENT_TYPE)
    for name, value in _retry_headers(known, None).items():
        response[name] = value
    return response


def _as_domain_error(exc: Exception) -> DomainError | None:
    if isinstance(exc, DomainError):
        return exc
    if isinstance(exc, Faults):
        return InvalidInput.of(exc.faults)
    if isinstance(exc, exceptions.ValidationError):
        return InvalidInput.of(list(_flattened(exc.detail, "")))
    if isinstance(exc, (Http404, exceptions.NotFound)):
        return NotFound("It does not exist, or it is not yours.")
    if isinstance(exc, (OperationalError, InterfaceError)):
        log.warning("database_unavailable", error=type(exc).__name__)
        return Unavailable("The database did not answer in time. Nothing was changed; try again.")
    return None


def _of_framework(exc: exceptions.APIException, request: Request) -> Response:
    status = exc.status_code if exc.status_code in BY_STATUS else 400
    slug, title = BY_STATUS[status]
    headers = _retry_headers(status, int(getattr(exc, "wait", None) or 1))
    if status == 401:
        headers["WWW-Authenticate"] = getattr(exc, "auth_header", None) or "Bearer"
    detail = exc.detail if isinstance(exc.detail, str) else title
    return _response(_document(request, status, slug, title, {"detail": echo_safe(str(detail))}), headers=headers)


def _retry_headers(status: int, retry_after_s: int | None) -> dict[str, str]:
    if status in {429, 503}:
        return {"Retry-After": str(max(1, retry_after_s or 1))}
    return {} if retry_after_s is None or status < 500 else {"Retry-After": str(retry_after_s)}


def _response(document: dict[str, Any], *, headers: dict[str, str]) -> Response:
    return Response(document, status=document["status"], content_type=CONTENT_TYPE, headers=headers)


def _document(
    request: HttpRequest | Request, status: int, slug: str, title: str, members: dict[str, Any]
) -> dict[str, Any]:
    document: dict[str, Any] = {"type": settings.PROBLEM_TYPE_PREFIX + slug, "title": translated(title)}
    document["status"] = status
    if status != 500:
        document |= {"instance": _instance(request.path), **_without_surrogates(_in_their_language(members))}
    document["request_id"] = getattr(request, "request_id", "")
    errors = document.get("errors")
    while errors and len(errors) > 1 and len(json.dumps(document)) > DOCUMENT_LIMIT:
        # Half of them at a time: a body of 50,000 unknown fields must not cost as many renderings.
        errors = document["errors"] = errors[: len(errors) // 2]
    return document


def _in_their_language(members: dict[str, Any]) -> dict[str, Any]:
    """Return the members with the sentences for people in the request's language; what programs read stays."""
    said = {**members}
    if isinstance(said.get("detail"), str):
        said["detail"] = translated(said["detail"])
    if isinstance(said.get("errors"), list):
        said["errors"] = [
            {**error, "detail": translated(error["detail"])} if isinstance(error.get("detail"), str) else error
            for error in said["errors"]
        ]
    return said


def _instance(path: str) -> str:
    return path if _PLAIN_PATH.fullmatch(path) else echoed(path)


def echo_safe(text: str) -> str:
    """Return framework wording that may quote input, cut and without raw control characters."""
    return text if len(text) <= 200 and text.isprintable() else echoed(text)


def _without_surrogates(value: Any) -> Any:
    """Return `value` with strings that UTF-8 can carry: a lone surrogate in an echo would be a 500."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8") if not value.isascii() else value
    if isinstance(value, dict):
        return {_without_surrogates(name): _without_surrogates(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_without_surrogates(item) for item in value]
    return value


def _flattened(detail: Any, pointer: str) -> Iterable[dict[str, Any]]:
    """Yield {pointer, code, detail} for each leaf of the framework's nested error detail."""
    if isinstance(detail, dict):
        for name, inner in detail.items():
            yield from _flattened(inner, pointer if name == "non_field_errors" else f"{pointer}/{name}")
    elif isinstance(detail, list):
        for index, inner in enumerate(detail):
            # A list of texts is several faults of one place; a list of dicts is one per item.
            yield from _flattened(inner, f"{pointer}/{index}" if isinstance(inner, dict) else pointer)
    else:
        code = {"null": "wrong_type", "invalid": "bad_value"}.get(detail.code, detail.code)
        yield {"pointer": pointer, "code": code, "detail": echo_safe(str(detail))}
