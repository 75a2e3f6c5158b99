"""Doors without a key: what is sold at which price, what it was, and what payment providers tell us."""

from datetime import timedelta
from typing import Any, ClassVar

from django.conf import settings
from rest_framework.parsers import BaseParser
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from apikit import clock, strict_query
from apikit.errors import InvalidInput, NotFound
from billing import entries, price_list, receipts, rendering, spot_rule, stripe

HISTORY_DAYS = 90
PRICE_OF = {"sku": strict_query.text(80), "region": strict_query.text(60)}


class PublicView(APIView):
    authentication_classes = ()
    permission_classes = ()


class MarketPrices(PublicView):
    """The price list in force, one line per model, region, tier, term and use."""

    query = {"get": PRICE_OF}

    def get(self, request: Request) -> Response:
        asked = strict_query.read(request.query_params, PRICE_OF)
        versions = price_list.in_force(at=clock.now(), sku=asked.get("sku"), region=asked.get("region"))
        shown = [rendering.price(version) for version in versions]
        return Response({"items": shown, "spot_rule": spot_rule.published()})


class MarketHistory(PublicView):
    """Every version of the prices of one model in one region, with its cause, for the last 90 days and ahead.

    The cause of a spot price names the rule, and how much of the GPUs was in use.
    """

    query = {"get": PRICE_OF}

    def get(self, request: Request) -> Response:
        asked = strict_query.read(request.query_params, PRICE_OF)
        missing = [name for name in PRICE_OF if name not in asked]
        if missing:
            raise InvalidInput(
                "Name the model and the region.",
                errors=[{"parameter": name, "code": "required", "detail": "This is needed."} for name in missing],
            )
        since = clock.now() - timedelta(days=HISTORY_DAYS)
        versions = entries.published_prices(sku=asked["sku"], region=asked["region"], since=since)
        return Response({"items": [rendering.price(version) for version in versions]})


class ReceiptKeys(PublicView):
    """The keys by which usage receipts are verified, the present one first."""

    query: ClassVar[dict[str, dict[str, Any]]] = {"get": {}}

    def get(self, request: Request) -> Response:
        strict_query.read(request.query_params, self.query["get"])
        key = {"algorithm": "ed25519", "public_key_hex": receipts.public_key_hex(), "state": "active"}
        return Response({"items": [key]})


class RawBody(BaseParser):
    """Leaves the bytes alone: the signature is over them."""

    media_type = "*/*"


class ProviderEvents(PublicView):
    """A provider's notification; its signature is the key."""

    parser_classes = (RawBody,)

    def post(self, request: Request, provider: str) -> Response:
        secrets = getattr(settings, "STRIPE_WEBHOOK_SECRETS", ())
        if provider != "stripe" or not secrets:
            raise NotFound("There is no such provider here.")
        header = request.headers.get("Stripe-Signature", "")
        try:
            acted = stripe.receive(body=request.body, header=header, secrets=secrets, at=clock.now())
        except ValueError as error:
            detail = {"pointer": "", "code": "bad_value", "detail": str(error)}
            raise InvalidInput("The event cannot be used.", errors=[detail]) from error
        return Response({"acted": acted})
