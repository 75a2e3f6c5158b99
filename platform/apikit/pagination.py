"""Lists page by page in constant time: a page begins after a key, never after a count of rows.

Ids are UUIDv7 and grow with time, so newest first is one index on (owner, id), read backwards.
"""

import base64
import binascii
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django.core import signing
from django.db.models import Model, QuerySet
from rest_framework.request import Request
from rest_framework.response import Response

from apikit.errors import DomainError
from apikit.strict_query import Reader, integer, text

DEFAULT_LIMIT = 20
PARAMETERS: dict[str, Reader] = {"limit": integer(1, 100), "cursor": text(400)}


class InvalidCursor(DomainError):
    slug = "invalid-cursor"
    title = "This cursor was not given for this list"
    status = 400


@dataclass(frozen=True)
class Page[Row: Model]:
    items: Sequence[Row]
    next_cursor: str | None

    def response(self, request: Request, render: Callable[[Row], Any]) -> Response:
        """Answer {"items": [...], "next_cursor": ... or null} with `Link: rel="next"`."""
        answer = Response({"items": [render(row) for row in self.items], "next_cursor": self.next_cursor})
        if self.next_cursor is not None:
            query = {**{name: request.query_params[name] for name in request.query_params}, "cursor": self.next_cursor}
            answer["Link"] = f'<{request.build_absolute_uri(request.path)}?{urlencode(query)}>; rel="next"'
        return answer


def page[Row: Model](
    rows: QuerySet[Row],
    *,
    request: Request,
    asked: dict[str, Any],
    owner: str,
    key: str = "id",
    newest_first: bool = True,
) -> Page[Row]:
    """Return one page of `rows` (already filtered), ordered by `key`, a unique column that grows.

    asked: the parsed parameters (`limit`, `cursor`). owner: whose list it is; a cursor works for nobody else, nor for
    another path or other filters. Raises InvalidCursor.
    """
    limit: int = asked.get("limit", DEFAULT_LIMIT)
    salt = _salt(request, owner)
    if "cursor" in asked:
        comparison = f"{key}__{'lt' if newest_first else 'gt'}"
        rows = rows.filter(**{comparison: _read(asked["cursor"], salt)})
    found = list(rows.order_by(f"-{key}" if newest_first else key)[: limit + 1])
    items, more = found[:limit], len(found) > limit
    return Page(items, _write(getattr(items[-1], key), salt) if more else None)


def _salt(request: Request, owner: str) -> str:
    filters = sorted((name, request.query_params[name]) for name in request.query_params if name not in PARAMETERS)
    return json.dumps(["cursor", owner, request.path, filters])


def _write(value: Any, salt: str) -> str:
    signed = signing.Signer(salt=salt).sign(json.dumps(value if isinstance(value, int) else str(value)))
    return base64.urlsafe_b64encode(signed.encode()).decode().rstrip("=")


def _read(cursor: str, salt: str) -> Any:
    try:
        signed = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode()
        return json.loads(signing.Signer(salt=salt).unsign(signed))
    except (signing.BadSignature, binascii.Error, ValueError):
        raise InvalidCursor("Start from the first page; a cursor belongs to one list with its filters.") from None
