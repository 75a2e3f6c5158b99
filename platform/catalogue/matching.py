"""Which model of the catalogue is a device that a driver reports? The rules stand in `data/gpu_catalog.json`.

By PCI id, then memory, then driver name; if nothing is left, again from the driver name and the memory. One candidate
is the model. None or several: the device is unlisted, which an operator sees, and it is not offered.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from catalogue import figures
from catalogue.models import GpuModel

MIB_PER_GIB = 1024
# ECC on boards with GDDR takes a sixteenth, and firmware some more; beyond, it is a modified board or a false claim.
LEAST_PERCENT, MOST_PERCENT = 92, 102


@dataclass(frozen=True)
class Candidate:
    """What a model is recognised by. memory_gib: of one device, None if unknown.

    unified: it shares the host's memory, so that its driver reports none of its own.
    """

    slug: str
    driver_names: frozenset[str]
    pci_ids: frozenset[str]
    memory_gib: float | None
    unified: bool = False

    @classmethod
    def of(cls, model: GpuModel) -> "Candidate":
        return cls(
            slug=model.slug,
            driver_names=frozenset(map(_plain_name, model.driver_names)),
            pci_ids=frozenset(figures.known(model, "pci_ids") or ()),
            memory_gib=figures.known(model, "memory_gib"),
            unified=model.segment == "integrated",
        )


def match(*, driver_name: str, pci_id: str, memory_mib: int | None) -> GpuModel | None:
    """Return the model of a reported device, or None: unlisted.

    pci_id: "vendor:device" in hexadecimal, "" if unknown; driver_name: "" if unknown; memory_mib: the total, None if
    the driver reports none.
    """
    models = {model.slug: model for model in GpuModel.objects.defer("raw")}
    slug = recognise(map(Candidate.of, models.values()), driver_name=driver_name, pci_id=pci_id, memory_mib=memory_mib)
    return models[slug] if slug is not None else None


def recognise(candidates: Iterable[Candidate], *, driver_name: str, pci_id: str, memory_mib: int | None) -> str | None:
    """Return the slug of the one candidate that fits what is reported, or None. Pure."""
    fitting = [candidate for candidate in candidates if _memory_fits(candidate, memory_mib)]
    on_the_bus = [candidate for candidate in fitting if pci_id.lower() in candidate.pci_ids]
    if driver_name.strip():
        name = _plain_name(driver_name)
        named = [candidate for candidate in fitting if name in candidate.driver_names]
        left = [candidate for candidate in on_the_bus if candidate in named] or named
    else:
        left = on_the_bus  # a driver that tells no name, as some of AMD
    return left[0].slug if len(left) == 1 else None


def _memory_fits(candidate: Candidate, memory_mib: int | None) -> bool:
    if memory_mib is None:
        return candidate.unified
    if candidate.memory_gib is None:
        return True
    nominal_mib = candidate.memory_gib * MIB_PER_GIB
    return LEAST_PERCENT * nominal_mib <= 100 * memory_mib <= MOST_PERCENT * nominal_mib


def _plain_name(name: str) -> str:
    """Return a driver's name for comparing; old drivers leave out who made it."""
    return " ".join(name.split()).casefold().removeprefix("nvidia ")
