"""A POST that is sent twice acts once: its answer is written in the transaction of its effect, and given again.

So a crash between commit and answer is safe: both are there or neither. A double that comes while the first is running
waits on its row for a moment, then is told to come back. A refusal or a bug rolls back and keeps nothing.
"""

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import OperationalError, connection, transaction
from django.http import HttpResponse
from django.http.response import HttpResponseBase
from psycopg.errors import LockNotAvailable
from rest_framework.renderers import JSONRenderer
from rest_framework.response import Response

from apikit import sealing, statements
from apikit.errors import DomainError
from apikit.models import IdempotentAnswer
from apikit.statements import Statement

KEPT_FOR = timedelta(hours=24)
DOUBLE_WAITS_MS = 700  # for the first to commit: most doubles are retries of an answer that was a little late
_KEY = re.compile(r"[!-~](?:[ -~]{0,253}[!-~])?", re.ASCII)  # HTTP takes blanks off its ends
_KEPT_HEADERS = ("Location", "ETag")


class KeyMissing(DomainError):
    slug = "idempotency-key-missing"
    title = "Send an Idempotency-Key"
    status = 400


class KeyInvalid(DomainError):
    slug = "idempotency-key-invalid"
    title = "The Idempotency-Key cannot be read"
    status = 400


class KeyReused(DomainError):
    slug = "idempotency-key-reused"
    title = "This Idempotency-Key was used for another request"
    status = 422


class InProgress(DomainError):
    slug = "idempotency-in-progress"
    title = "The first request with this Idempotency-Key is still running"
    status = 409
    retry_after_s = 1


class _Refused(Exception):
    """Rolls back what an answer that is no success may have written."""

    def __init__(self, response: HttpResponseBase) -> None:
        super().__init__()
        self.response = response


def read_key(header: str | None) -> str:
    if header is None:
        raise KeyMissing("Every POST needs an Idempotency-Key: any text of 1 to 255 printable ASCII characters.")
    if not _KEY.fullmatch(header):
        raise KeyInvalid("An Idempotency-Key has 1 to 255 printable ASCII characters.")
    return header


def fingerprint(*, method: str, address: str, body: Any) -> bytes:
    """Return 32 bytes that tell one request from another. `body`: the parsed JSON, so that spacing does not matter."""
    text = json.dumps([method, address, body], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).digest()


def kept(*, organization_id: UUID, key: str, at: datetime) -> Statement:
    """Return what asks for the answer that was given under this key; `replayed` reads its rows."""
    return Statement(
        "SELECT fingerprint, status, headers, body, sealed FROM apikit_idempotentanswer"
        " WHERE organization_id = %s AND key = %s AND expires_at > %s",
        [organization_id, key, at],
    )


def replayed(
    rows: Sequence[tuple[Any, ...]], *, organization_id: UUID, key: str, fingerprint: bytes
) -> HttpResponse | None:
    """Return the answer that was given to this request before, or None. Raises KeyReused."""
    if not rows:
        return None
    found, status, headers, body, sealed = rows[0]
    kept_row = IdempotentAnswer(
        organization_id=organization_id, key=key, fingerprint=found, status=status, headers=json.loads(headers),
        body=body, sealed=sealed,
    )  # fmt: skip
    return _replay(kept_row, fingerprint)


def once(
    *,
    organization_id: UUID,
    key: str,
    fingerprint: bytes,
    at: datetime,
    act: Callable[[], HttpResponseBase],
    seals: bool = False,
) -> HttpResponseBase:
    """Run `act` and keep its answer, in one transaction; or return the answer that a double has kept meanwhile.

    seals: the answer shows a secret and is stored under AES-GCM. Raises KeyReused, InProgress and what `act` raises.
    """
    try:
        with transaction.atomic():
            if not _claim(organization_id=organization_id, key=key, fingerprint=fingerprint, at=at):
                return _replay(IdempotentAnswer.objects.get(organization_id=organization_id, key=key), fingerprint)
            response = act()
            if not 200 <= response.status_code < 300:
                raise _Refused(response)
            return _keep(organization_id=organization_id, key=key, response=response, seals=seals)
    except _Refused as refused:
        return refused.response


def forget_expired(*, at: datetime, limit: int = 5000) -> int:
    """Delete answers that are older than a day, at most `limit` at once; return how many."""
    with connection.cursor() as cursor:
        cursor.execute(
            "DELETE FROM apikit_idempotentanswer WHERE (organization_id, key) IN (SELECT organization_id, key"
            " FROM apikit_idempotentanswer WHERE expires_at <= %s LIMIT %s FOR UPDATE SKIP LOCKED)",
            [at, limit],
        )
        return int(cursor.rowcount)


def _claim(*, organization_id: UUID, key: str, fingerprint: bytes, at: datetime) -> bool:
    """Insert the row; wait for a double that holds it. False: the double has committed its answer."""
    with connection.cursor() as cursor:
        try:
            # One round trip: the lock time-out is ours for this one statement, then again what it was.
            cursor.execute(
                "SELECT set_config('gpuyard.lock_timeout', current_setting('lock_timeout'), true),"
                " set_config('lock_timeout', %s, true);"
                "INSERT INTO apikit_idempotentanswer AS kept"
                " (organization_id, key, fingerprint, expires_at, headers, body, sealed)"
                " VALUES (%s, %s, %s, %s, '{}', '', false)"
                " ON CONFLICT (organization_id, key) DO UPDATE"
                " SET fingerprint = excluded.fingerprint, expires_at = excluded.expires_at WHERE kept.expires_at <= %s"
                " RETURNING true;"
                "SELECT set_config('lock_timeout', current_setting('gpuyard.lock_timeout'), true)",
                [f"{DOUBLE_WAITS_MS}ms", organization_id, key, fingerprint, at + KEPT_FOR, at],
            )
        except OperationalError as exc:
            if isinstance(exc.__cause__, LockNotAvailable):
                raise InProgress("Ask again in a moment with the same key and body.") from None
            raise
        cursor.nextset()  # of the INSERT
        return cursor.fetchone() is not None


def _keep(*, organization_id: UUID, key: str, response: HttpResponseBase, seals: bool) -> HttpResponseBase:
    """Write the answer down and return it, rendered once for both."""
    if isinstance(response, Response):
        body = b"" if response.data is None else JSONRenderer().render(response.data)
        said = {name: value for name, value in response.items() if name != "Content-Type"}
        response = HttpResponse(body, status=response.status_code, content_type="application/json", headers=said)
    else:
        body = response.content if isinstance(response, HttpResponse) else b""
    headers = {name: response[name] for name in _KEPT_HEADERS if name in response}
    stored = sealing.seal(body, context=_context(organization_id, key)) if seals else body
    statements.run(
        Statement(
            "UPDATE apikit_idempotentanswer SET status = %s, headers = %s::jsonb, body = %s, sealed = %s"
            " WHERE organization_id = %s AND key = %s",
            [response.status_code, json.dumps(headers), stored, seals, organization_id, key],
        )
    )
    return response


def _replay(row: IdempotentAnswer, fingerprint: bytes) -> HttpResponse:
    if bytes(row.fingerprint) != fingerprint:
        raise KeyReused("The same key came with another path or body before. Use a new key for a new request.")
    body = bytes(row.body)
    if row.sealed:
        body = sealing.unseal(body, context=_context(row.organization_id, row.key))
    response = HttpResponse(body, status=row.status, content_type="application/json")
    for name, value in row.headers.items():
        response[name] = value
    response["Idempotency-Replayed"] = "true"
    return response


def _context(organization_id: UUID, key: str) -> str:
    return f"{organization_id}||idempotency:{key}"
