"""What the doors of the catalogue ask for."""

from collections.abc import Iterable
from uuid import UUID

from django.db.models import QuerySet

from apikit.errors import NotFound
from catalogue import naming
from catalogue.models import GpuModel, Region


def models(*, vendor: str | None = None, sold: bool | None = None) -> QuerySet[GpuModel]:
    """Return the models, or those of one vendor, or those that are (not) sold."""
    wanted = {"vendor": vendor, "sold": sold}
    return GpuModel.objects.filter(**{name: value for name, value in wanted.items() if value is not None}).defer("raw")


def model(slug: str) -> GpuModel:
    """Return the model of this slug, spelled as the catalogue does. Raises NotFound."""
    found = models().filter(slug=slug).first()
    if found is None:
        raise NotFound("The catalogue has no model of this slug.")
    return found


def regions() -> QuerySet[Region]:
    return Region.objects.prefetch_related("zones")


def clashes(*, model_id: UUID, slug: str, aliases: Iterable[str]) -> list[str]:
    """Return a sentence for each name that would mean this model and another one."""
    others = GpuModel.objects.exclude(pk=model_id).values_list("slug", "aliases")
    return naming.clashes([*others, (slug, aliases)])
