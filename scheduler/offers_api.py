"""Doors: /offers and /quotes, what could be had and what is kept for a while."""

from typing import ClassVar

from rest_framework.request import Request
from rest_framework.response import Response

from apikit import pagination, strict_query
from leasing import quotes, requesting
from leasing.models import Quote
from scheduler import offer_rendering, planning
from scheduler.lease_requests import EndRequest, QuoteRequest
from tenants.access import OrganizationView

DEFAULT_TTL_S = 120
TERMS = ("on_demand", "spot", "spot:0", "spot:120", "spot:600", "reserved:P1W", "reserved:P1M", "reserved:P1Y")


class OfferCollection(OrganizationView):
    policy: ClassVar = {"get": "leases:read"}
    query: ClassVar = {
        "get": {
            "request": strict_query.text(256),
            "region": strict_query.text(40),
            "term": strict_query.choice(*TERMS),
            "currency": strict_query.text(3, pattern="[A-Z]{3}"),
            "sort": strict_query.choice("price", "-price", "available", "-available"),
            "group_by": strict_query.choices("model", "region"),
        }
    }

    def get(self, request: Request) -> Response:
        lines = planning.offers(
            organization=self.organization,
            currency=self.parameters.get("currency", self.organization.currency),
            term=self.parameters.get("term", "on_demand"),
            region=self.parameters.get("region"),
            request=self.parameters.get("request"),
            at=self.at,
        )
        shown = offer_rendering.offers(
            lines, sort=self.parameters.get("sort", "price"), group_by=self.parameters.get("group_by", ())
        )
        return Response({"items": shown, "next_cursor": None})


class QuoteCollection(OrganizationView):
    policy: ClassVar = {"get": "leases:read", "post": "leases:write"}
    query: ClassVar = {"get": pagination.PARAMETERS}

    def get(self, request: Request) -> Response:
        return self.page(self.mine(Quote).select_related("lease"), offer_rendering.quote)

    def post(self, request: Request) -> Response:
        values = self.read(QuoteRequest)
        ttl_s = values.pop("ttl_s", DEFAULT_TTL_S)
        wanted = requesting.understand(organization=self.organization, asked=values, at=self.at)
        quote = planning.quote(organization=self.organization, wanted=wanted, ttl_s=ttl_s, at=self.at)
        return self.created(offer_rendering.quote(quote), version=quote.version, location=f"/quotes/{quote.public_id}")


class QuoteItem(OrganizationView):
    policy: ClassVar = {"get": "leases:read", "delete": "leases:write"}

    def get(self, request: Request, id: str) -> Response:
        quote = self.found(self.mine(Quote).select_related("lease"), "quote", id)
        return self.one(offer_rendering.quote(quote), version=quote.version)

    def delete(self, request: Request, id: str) -> Response:
        quote = quotes.cancel(quote_id=self.found(self.mine(Quote), "quote", id).pk, at=self.at)
        return self.one(offer_rendering.quote(quote), version=quote.version)


class QuoteCancel(OrganizationView):
    policy: ClassVar = {"post": "leases:write"}

    def post(self, request: Request, id: str) -> Response:
        self.read(EndRequest, optional=True)
        quote = quotes.cancel(quote_id=self.found(self.mine(Quote), "quote", id).pk, at=self.at)
        return self.one(offer_rendering.quote(quote), version=quote.version)
