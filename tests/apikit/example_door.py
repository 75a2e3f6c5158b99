"""A door as the apps write them, for tests of what every door does. It keeps notes, as rows of webhooks."""

from typing import Any

from django.urls import path
from rest_framework.request import Request
from rest_framework.response import Response

from apikit import pagination, strict_query
from apikit.errors import DomainError
from apikit.strict_fields import (
    Boolean,
    Choice,
    Either,
    Instant,
    Integer,
    ListOf,
    MapOf,
    MoneyField,
    Name,
    StrictSerializer,
    Text,
)
from outbox.models import Endpoint
from tenants.access import OrganizationView


class Full(DomainError):
    slug = "no-capacity"
    title = "Full"


class Term(StrictSerializer):
    kind = Choice(choices=["on_demand", "spot"])
    duration_s = Integer(min_value=60, max_value=366 * 86400, required=False)
    start_at = Instant(required=False)


class Structure(StrictSerializer):
    options = ListOf(child=Text(max_length=10), max_length=8)


class NoteBody(StrictSerializer):
    request = Either(text=Text(max_length=256), structure=Structure())
    image = Text(required=False, pattern="[a-z./:0-9_-]+")
    term = Term(required=False)
    name = Name(required=False)
    env = MapOf(
        name=Text(pattern="[A-Za-z_][A-Za-z0-9_]*", code="bad_name"),
        child=Text(max_length=4096),
        max_length=64,
        required=False,
    )
    max_price = MoneyField(required=False)
    notice_s = Integer(min_value=0, required=False)
    bare = Boolean(required=False)


def render(note: Endpoint) -> dict[str, Any]:
    return {"id": note.public_id, "request": note.url}


class Notes(OrganizationView):
    policy = {"get": "leases:read", "post": "leases:write"}
    query = {"get": {**pagination.PARAMETERS, "state": strict_query.choices("open", "closed")}}
    limits = {"post": "lease_create"}

    def get(self, request: Request) -> Response:
        return self.page(self.mine(Endpoint), render)

    def post(self, request: Request) -> Response:
        asked = self.read(NoteBody)
        note = Endpoint.objects.create(
            organization=self.organization, url=str(asked["request"]), events=[], secret=b"", created_at=self.at
        )
        if asked["request"] == "refuse":
            raise Full("Nothing is free.", nearest="x1", eta=None)
        if asked["request"] == "bug":
            raise ZeroDivisionError("a secret that must not be shown")
        return self.created(render(note), version=1, location=f"/notes/{note.public_id}")


class Note(OrganizationView):
    policy = {"get": "leases:read", "patch": "leases:write"}

    def get(self, request: Request, id: str) -> Response:
        note = self.found(self.mine(Endpoint), "webhook", id)
        return self.one(render(note), version=note.version)

    def patch(self, request: Request, id: str) -> Response:
        note = self.found(self.mine(Endpoint).select_for_update(no_key=True), "webhook", id)
        self.check_version(note.version, required=True)
        note.version += 1
        note.save(update_fields=["version"])
        return self.one(render(note), version=note.version)

    def delete(self, request: Request, id: str) -> Response:
        raise AssertionError("its policy does not name it, so nobody gets here")


urlpatterns = [path("api/v1/notes", Notes.as_view()), path("api/v1/notes/<str:id>", Note.as_view())]
