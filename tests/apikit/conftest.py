"""A client of the example door, with a key of its organization."""

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from apikit import clock
from tenants import keys, roles
from tenants.models import Organization
from tests.factories import make_organization


class Caller:
    """Sends JSON as one API key; each POST has a fresh Idempotency-Key unless one is given."""

    def __init__(self, organization: Organization, scopes: tuple[str, ...] = roles.SCOPES) -> None:
        self.organization = organization
        _, self.secret = keys.create(
            organization=organization, name="test", scopes=scopes, expires_at=None, created_by=None, at=clock.now()
        )
        self.client = Client(raise_request_exception=False)
        self.posts = 0

    def send(self, method: str, path: str, body: Any = None, **headers: str | None) -> Any:
        """`body`: a JSON value, or bytes to send as they are. `headers`: Idempotency_Key=..., None leaves one out."""
        wanted: dict[str, str | None] = {"Authorization": f"Bearer {self.secret}"}
        if method == "POST":
            self.posts += 1
            wanted["Idempotency_Key"] = f"{self.organization.pk}-{self.posts}"
        wanted |= headers
        kept = {name.replace("_", "-"): value for name, value in wanted.items() if value is not None}
        content_type = kept.pop("Content-Type", "application/json")
        sent: dict[str, Any] = {} if body is None else {"data": body, "content_type": content_type}
        return (
            self.client.generic(method, path, headers=kept, **sent)
            if isinstance(body, bytes) or body is None
            else (getattr(self.client, method.lower())(path, headers=kept, **sent))
        )

    def get(self, path: str, **headers: str | None) -> Any:
        return self.send("GET", path, **headers)

    def post(self, path: str, body: Any = None, **headers: str | None) -> Any:
        return self.send("POST", path, body, **headers)


@pytest.fixture
def make_caller(db: None) -> Callable[..., Caller]:
    def make(**options: Any) -> Caller:
        return Caller(make_organization(), **options)

    return make


@pytest.fixture
def caller(make_caller: Callable[..., Caller]) -> Caller:
    return make_caller()
