"""Fills the catalogue from its files, and brings it up to date with them; what an operator changed stays.

A model is written only when its entry in the file is new or has changed since it was read last (`GpuModel.raw`).
Whether it is sold, and in which fractions, is the operator's from the first reading on, and so are regions and zones.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.db import transaction

from apikit.errors import DomainError
from catalogue import naming
from catalogue.models import GpuModel, Region, Zone

DATA = Path(__file__).parent / "data"
_RENAMED = {"memory_gb": "memory_gib", "interconnect_gb_s_total_bidir": "interconnect_gb_s"}
_FIGURES = (
    "memory_gb", "memory_bandwidth_gb_s", "fp16_tensor_dense_tflops", "interconnect_gb_s_total_bidir", "tdp_w",
    "pcie_gen", "devices_per_board",
)  # fmt: skip
_TEXTS = ("segment", "architecture", "compute_capability", "interconnect")
_WHOLE = ("vendor", "name", "aliases", "driver_names", "pci_ids", "confidence", "figures_are_per")


class NamesClash(DomainError):
    slug = "names-clash"
    title = "Two models of the catalogue would share a name"


@dataclass(frozen=True)
class Loaded:
    """How many rows were written; what was there and up to date is not counted."""

    models: int
    regions: int
    zones: int


@transaction.atomic
def load(*, catalogue: Path = DATA / "gpu_catalog.json", market: Path = DATA / "market.json") -> Loaded:
    """Write what is new or changed in the two files. Raises NamesClash, with nothing written."""
    entries = json.loads(catalogue.read_text(encoding="utf-8"))["gpus"]
    opening = json.loads(market.read_text(encoding="utf-8"))
    known = {model.slug: model for model in GpuModel.objects.all()}
    models = sum(_write_model(entry, known.get(entry["slug"]), opening["fractions"]) for entry in entries)
    clashes = naming.clashes(GpuModel.objects.values_list("slug", "aliases"))
    if clashes:
        raise NamesClash(" ".join(clashes), clashes=clashes)
    regions, zones = _write_regions(opening["regions"])
    return Loaded(models, regions, zones)


def _write_model(entry: Mapping[str, Any], known: GpuModel | None, fractions: Mapping[str, list[str]]) -> bool:
    if known is not None and known.raw == entry:
        return False
    model = known or GpuModel(slug=entry["slug"], fractions=fractions.get(entry["slug"], []))
    for name, value in published(entry).items():
        setattr(model, name, value)
    model.full_clean(validate_unique=False, validate_constraints=False)  # the database checks those
    model.save()
    return True


def published(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a model that the file decides. What the file does not know stays unknown."""
    return {
        **{name: entry[name] for name in _WHOLE},
        **{name: entry[name] or "" for name in _TEXTS},
        **{_RENAMED.get(name, name): entry[name] for name in _FIGURES},
        "mig_profiles": entry["mig"]["profiles"],
        "field_confidence": {_RENAMED.get(name, name): trust for name, trust in entry["field_confidence"].items()},
        "raw": entry,
    }


def _write_regions(entries: list[Mapping[str, Any]]) -> tuple[int, int]:
    written_regions = written_zones = 0
    for entry in entries:
        facts = {name: entry[name] for name in ("name", "currency", "simulated")}
        region, made = Region.objects.get_or_create(slug=entry["slug"], defaults=facts)
        written_regions += made
        for zone in entry["zones"]:
            _, made = Zone.objects.get_or_create(slug=zone["slug"], defaults={"region": region, "name": zone["name"]})
            written_zones += made
    return written_regions, written_zones
