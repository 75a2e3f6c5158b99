"""Doors: what there is to lease, and where. Read only; operators change it in the admin."""

from typing import Any, ClassVar

from rest_framework.request import Request
from rest_framework.response import Response

from apikit import pagination, strict_query
from catalogue import browsing, figures
from catalogue.models import GpuModel, Region
from tenants.access import OrganizationView

FIGURES = (
    "memory_gib", "memory_bandwidth_gb_s", "fp16_tensor_dense_tflops", "interconnect", "interconnect_gb_s", "tdp_w",
    "pcie_gen", "compute_capability", "architecture",
)  # fmt: skip


def render_gpu_model(model: GpuModel) -> dict[str, Any]:
    """Return a model as the API shows it: the figures are those of one device, null where not known well enough."""
    return {
        "id": model.public_id,
        "slug": model.slug,
        "aliases": model.aliases,
        "vendor": model.vendor,
        "name": model.name,
        "segment": model.segment or None,
        **{field: figures.known(model, field) for field in FIGURES},
        "devices_per_board": model.devices_per_board,
        "mig_profiles": model.mig_profiles,
        "fractions": model.fractions,
        "confidence": model.confidence,
        "sold": model.sold,
        "actions": [],
    }


def render_region(region: Region) -> dict[str, Any]:
    return {
        "id": region.public_id,
        "slug": region.slug,
        "name": region.name,
        "currency": region.currency,
        "simulated": region.simulated,
        "zones": [zone.slug for zone in region.zones.all()],
        "actions": [],
    }


class GpuModelCollection(OrganizationView):
    """The catalogue of GPU models, by slug."""

    policy: ClassVar = {"get": "leases:read"}
    query: ClassVar = {"get": {**pagination.PARAMETERS, "vendor": strict_query.text(20), "sold": strict_query.flag}}

    def get(self, request: Request) -> Response:
        models = browsing.models(vendor=self.parameters.get("vendor"), sold=self.parameters.get("sold"))
        return self.page(models, render_gpu_model, key="slug", newest_first=False)


class GpuModelItem(OrganizationView):
    """One model by its slug, as the catalogue spells it."""

    policy: ClassVar = {"get": "leases:read"}

    def get(self, request: Request, slug: str) -> Response:
        return Response(render_gpu_model(browsing.model(slug)))


class RegionCollection(OrganizationView):
    """The regions with their zones; simulated ones say so."""

    policy: ClassVar = {"get": "leases:read"}
    query: ClassVar = {"get": pagination.PARAMETERS}

    def get(self, request: Request) -> Response:
        return self.page(browsing.regions(), render_region, key="slug", newest_first=False)
