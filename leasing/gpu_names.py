"""Names of GPU models as people write them: any case, `-`, `_` or space between the parts, or nothing. Pure."""

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

_LONGEST_NAME = 48  # of what is worth comparing with the catalogue for likeness
_LIKENESS = 0.6
_UNIT = re.compile(r"(?<=[0-9])GI?B\Z")


@dataclass(frozen=True)
class Gpu:
    """A model as the grammar knows it. `memory_gib` None is unknown; fractions are spelled "0.5"."""

    slug: str
    aliases: tuple[str, ...] = ()
    memory_gib: int | None = None
    mig_profiles: tuple[str, ...] = ()
    fractions: tuple[str, ...] = ()

    @cached_property
    def slices(self) -> tuple[str, ...]:
        """Everything less than the whole card that is sold of it."""
        return (*self.fractions, *(profile.lower() for profile in self.mig_profiles))


@dataclass(frozen=True)
class Spelling:
    """A name without its separators, in upper case, and where between two digits one of them stood."""

    letters: str
    cuts: frozenset[int]


def spelling(name: str) -> Spelling | None:
    """Return how `name` is compared; None if it starts or ends in `-` or `_`, which only join parts of a name."""
    name = name.strip(" ").upper()
    if not name or name[0] in "-_" or name[-1] in "-_":
        return None
    letters: list[str] = []
    cuts = set()
    separated = False
    for character in name:
        if character in " -_":
            separated = True
            continue
        if separated and character.isdigit() and letters[-1].isdigit():
            cuts.add(len(letters))
        letters.append(character)
        separated = False
    return Spelling(_UNIT.sub("G", "".join(letters)), frozenset(cuts))


@dataclass(frozen=True)
class Catalogue:
    """What the grammar is read against: models in the order in which they are suggested, and region slugs."""

    gpus: tuple[Gpu, ...]
    regions: tuple[str, ...] = ()

    def named(self, name: str) -> Gpu | None:
        """Return the model that has this name: a slug or an alias, whole."""
        wanted = spelling(name)
        known = self._names.get(wanted.letters) if wanted else None
        # `A10 080G` is not `A100_80G`: separators may be left out or exchanged, but not put between digits.
        return known.gpu if known and wanted and wanted.cuts <= known.cuts else None

    def family(self, name: str) -> tuple[Gpu, ...]:
        """Return the models of which this is a name but for its last parts: `A100` for A100_40G and A100_80G."""
        wanted = spelling(name)
        beginnings = self._beginnings.get(wanted.letters, {}) if wanted else {}
        return tuple(gpu for gpu, cuts in beginnings.items() if wanted and wanted.cuts <= cuts)

    def like(self, name: str, *, limit: int = 4) -> list[tuple[float, Gpu]]:
        """Return the models whose names are nearest, best first, each with its likeness (0 to 1)."""
        wanted = spelling(name.strip(" -_"))
        if wanted is None or len(wanted.letters) > _LONGEST_NAME:
            return []
        found: dict[str, tuple[float, Gpu]] = {}
        for gpu in self._with_parts_of(name):
            found[gpu.slug] = (0.95, gpu)
        # Several names of one model may be near, so more are looked at than are wanted.
        for letters in difflib.get_close_matches(wanted.letters, self._names, n=4 * limit, cutoff=_LIKENESS):
            gpu = self._names[letters].gpu
            likeness = difflib.SequenceMatcher(None, wanted.letters, letters).ratio()
            if likeness > found.get(gpu.slug, (0.0, gpu))[0]:
                found[gpu.slug] = (likeness, gpu)
        return sorted(found.values(), key=lambda pair: -pair[0])[:limit]

    def region_named(self, name: str) -> str | None:
        """Return the region's slug; case and separators are forgiven, but none at either end."""
        return self._regions.get(_bare(name)) if name and not {name[0], name[-1]} & {"-", "_"} else None

    def _with_parts_of(self, name: str) -> Iterable[Gpu]:
        """Yield the models that have all parts of the name, in any order: `80GB A100`, `4090`."""
        parts = _parts(name)
        return (gpu for gpu, known in self._parts.items() if parts and parts <= known)

    @cached_property
    def _names(self) -> Mapping[str, "_Known"]:
        names: dict[str, _Known] = {}
        for gpu in self.gpus:
            for name in (gpu.slug, *gpu.aliases):
                known = spelling(name)
                if known is not None:
                    before = names.get(known.letters)
                    cuts = known.cuts | (before.cuts if before and before.gpu == gpu else frozenset())
                    names[known.letters] = _Known(gpu, cuts)
        return names

    @cached_property
    def _beginnings(self) -> Mapping[str, Mapping[Gpu, frozenset[int]]]:
        beginnings: dict[str, dict[Gpu, frozenset[int]]] = {}
        for gpu in self.gpus:
            for name in (gpu.slug, *gpu.aliases):
                parts = re.split("[-_ ]", name)
                for count in range(1, len(parts)):
                    known = spelling("_".join(parts[:count]))
                    if known is not None:
                        models = beginnings.setdefault(known.letters, {})
                        models[gpu] = models.get(gpu, frozenset()) | known.cuts
        return beginnings

    @cached_property
    def _parts(self) -> Mapping[Gpu, frozenset[str]]:
        return {gpu: frozenset().union(*(_parts(name) for name in (gpu.slug, *gpu.aliases))) for gpu in self.gpus}

    @cached_property
    def _regions(self) -> Mapping[str, str]:
        return {_bare(region): region for region in self.regions}


@dataclass(frozen=True)
class _Known:
    gpu: Gpu
    cuts: frozenset[int]


def _parts(name: str) -> frozenset[str]:
    return frozenset(_UNIT.sub("G", part) for part in re.split("[-_ ]+", name.upper()) if part)


def _bare(region: str) -> str:
    return re.sub("[-_ ]+", "", region).lower()
