"""What the request grammar is read against: the catalogue's models and regions as one plain value."""

import time
from dataclasses import dataclass
from typing import Any

from apikit import statements
from apikit.statements import Statement
from catalogue.models import GpuModel, Region
from leasing.grammar import Catalogue, Gpu

# An operator's edit of a model shows in every process after this long; a name, or a region's currency, at once.
KEEP_S = 10


@dataclass(frozen=True)
class View:
    catalogue: Catalogue
    currency_of_region: dict[str, str]
    memory_gib: dict[str, int]


_kept: tuple[tuple[str | None, str | None], float, View] | None = None


def current() -> View:
    """Return the catalogue; kept in the process for KEEP_S, or until a model or region comes, goes or is renamed."""
    (rows,) = statements.run(NAMES)
    return named(rows)


def named(rows: list[tuple[Any, ...]]) -> View:
    """Return the catalogue whose names are these, the answer to NAMES."""
    global _kept
    ((models, regions),) = rows
    key = (models, regions)
    if _kept and _kept[0] == key and time.monotonic() - _kept[1] < KEEP_S:
        return _kept[2]
    gpus = tuple(
        Gpu(
            slug=model.slug,
            aliases=tuple(model.aliases),
            memory_gib=model.memory_gib,
            mig_profiles=tuple(model.mig_profiles),
            fractions=tuple(model.fractions),
        )
        for model in GpuModel.objects.order_by("slug")
    )
    regions = {region.slug: region.currency for region in Region.objects.order_by("slug")}
    view = View(
        catalogue=Catalogue(gpus=gpus, regions=tuple(regions)),
        currency_of_region=regions,
        memory_gib={gpu.slug: gpu.memory_gib for gpu in gpus if gpu.memory_gib is not None},
    )
    _kept = (key, time.monotonic(), view)
    return view


# One question for both: it is asked with every request for a lease.
NAMES = Statement("""
SELECT (SELECT md5(string_agg(slug, ',' ORDER BY slug)) FROM catalogue_gpumodel),
    (SELECT md5(string_agg(slug || ':' || currency, ',' ORDER BY slug)) FROM catalogue_region)
""")
