"""What can be leased, where, and at what price: offers, quotes, images, GPU models, regions, the market."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

from gpuyard.calls import Call
from gpuyard.json_object import Object
from gpuyard.leases import LeaseFields
from gpuyard.methods import Resource, listing, operation
from gpuyard.objects import GpuModel, Image, MarketPrice, Offer, Quote, Region


class Offers[M](Resource[M]):
    @listing("offer_list", "/offers")
    def list(
        self,
        *,
        request: str | None = None,
        term: str | None = None,
        region: str | None = None,
        currency: str | None = None,
        group_by: Sequence[str] | None = None,
        sort: str | None = None,
        limit: int | None = None,
    ) -> Call[Offer]:
        """Iterate over what could be leased now. group_by: any of "model", "region"."""
        place = {"request": request, "term": term, "region": region, "currency": currency}
        return Call(Offer, query={**place, "group_by": group_by, "sort": sort, "limit": limit})


class Quotes[M](Resource[M]):
    @operation("quote_create", "POST", "/quotes")
    def create(self, /, *, ttl_s: int | None = None, **fields: Unpack[LeaseFields]) -> Call[Quote]:
        """Hold named devices and freeze their price for ttl_s seconds (at most 900; the server's default is 120).

        The fields are those of a lease (see LeaseFields); the lease that redeems the quote may still say its image,
        command, env, ports, ssh_keys, name and labels.
        """
        return Call(Quote, body={**fields, "ttl_s": ttl_s})

    @listing("quote_list", "/quotes")
    def list(self, *, limit: int | None = None) -> Call[Quote]:
        return Call(Quote, query={"limit": limit})

    @operation("quote_get", "GET", "/quotes/{id}")
    def get(self, quote_id: str, /) -> Call[Quote]:
        return Call(Quote, (quote_id,))

    @operation("quote_delete", "DELETE", "/quotes/{id}")
    def delete(self, quote_id: str, /) -> Call[Quote]:
        return Call(Quote, (quote_id,))

    @operation("quote_cancel", "POST", "/quotes/{id}/actions/cancel")
    def cancel(self, quote_id: str, /) -> Call[Quote]:
        """Give the devices back before the quote expires."""
        return Call(Quote, (quote_id,), body={})


class Images[M](Resource[M]):
    @listing("image_list", "/images")
    def list(self, *, limit: int | None = None) -> Call[Image]:
        return Call(Image, query={"limit": limit})

    @operation("image_create", "POST", "/images")
    def create(self, /, **fields: Any) -> Call[Image]:
        return Call(Image, body=fields)

    @operation("image_get", "GET", "/images/{id}")
    def get(self, image_id: str, /) -> Call[Image]:
        return Call(Image, (image_id,))

    @operation("image_delete", "DELETE", "/images/{id}")
    def delete(self, image_id: str, /) -> Call[Object]:
        return Call(Object, (image_id,))


class GpuModels[M](Resource[M]):
    @listing("gpu_model_list", "/gpu-models")
    def list(self, /, *, limit: int | None = None, **filters: Any) -> Call[GpuModel]:
        return Call(GpuModel, query={"limit": limit, **filters})

    @operation("gpu_model_get", "GET", "/gpu-models/{slug}")
    def get(self, slug: str, /) -> Call[GpuModel]:
        return Call(GpuModel, (slug,))


class Regions[M](Resource[M]):
    @listing("region_list", "/regions")
    def list(self, *, limit: int | None = None) -> Call[Region]:
        return Call(Region, query={"limit": limit})


class Market[M](Resource[M]):
    @listing("market_price_list", "/market/prices")
    def prices(self, *, sku: str | None = None, region: str | None = None) -> Call[MarketPrice]:
        """Iterate over the prices in force; no key is needed. sku: a GPU model, or "MODEL/slice"."""
        return Call(MarketPrice, query={"sku": sku, "region": region})

    @listing("receipt_key_list", "/market/receipt-keys")
    def receipt_keys(self) -> Call[Object]:
        """Iterate over the keys that verify usage receipts (`gpuyard receipt verify`); no key is needed to ask."""
        return Call(Object)

    @listing("market_history_list", "/market/history")
    def history(self, *, sku: str, region: str) -> Call[MarketPrice]:
        """Iterate over the versions of a price, those to come included; no key is needed."""
        return Call(MarketPrice, query={"sku": sku, "region": region})
