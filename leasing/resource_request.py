"""What a tenant asks for, as a value: alternatives in the order in which they are tried (DOMAIN.md section 2). Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from leasing.gpu_names import Catalogue

MAX_CHARACTERS = 256
MAX_OPTIONS = 8
MAX_NODES = 256
MAX_COUNT = 16
MAX_MEMORY_GIB = 1024


class GrammarError(Exception):
    """The one fault of a request, with what was probably meant.

    kind: one of the kinds of `grammar.json`; for structured input also wrong_type, required, unknown_field.
    position: in code points of the text as sent; 0 where there is no text.
    nearest: canonical spellings of one alternative each.
    field: for structured input, where the fault is: "node_count", "options/0/count".
    """

    def __init__(
        self, kind: str, position: int, detail: str, nearest: tuple[str, ...] = (), field: str | None = None
    ) -> None:
        super().__init__(kind, position, detail, nearest, field)
        self.kind = kind
        self.position = position
        self.detail = detail
        self.nearest = nearest
        self.field = field

    def __str__(self) -> str:
        return f"{self.kind} at {self.field or self.position}: {self.detail}"


@dataclass(frozen=True)
class Option:
    """One alternative: `count` GPUs (or slices) of one kind in each of `nodes` machines.

    Either `model` (with a `slice` of it, perhaps) or `memory_gib`, (at least, at most); at most None has no upper end.
    """

    nodes: int = 1
    count: int = 1
    model: str | None = None
    slice: str | None = None
    memory_gib: tuple[int, int | None] | None = None
    region: str | None = None

    def __str__(self) -> str:
        """Return the canonical spelling, which reads back as the same value."""
        nodes = f"{self.nodes}*" if self.nodes != 1 else ""
        count = f" x{self.count}" if self.count != 1 else ""
        region = f" @{self.region}" if self.region else ""
        return f"{nodes}{self._kind()}{count}{region}"

    def _kind(self) -> str:
        if self.memory_gib is None:
            return f"{self.model}/{self.slice}" if self.slice else str(self.model)
        least, most = self.memory_gib
        if most is None:
            return f"any:{least}G+"
        return f"any:{least}G" if most == least else f"any:{least}G..{most}G"

    def to_json(self) -> dict[str, Any]:
        """Return the structured form: nodes and count always, the others if they are set."""
        value: dict[str, Any] = {"nodes": self.nodes, "count": self.count}
        if self.memory_gib is not None:
            value["memory_gib"] = {"min": self.memory_gib[0], "max": self.memory_gib[1]}
        named = {"model": self.model, "slice": self.slice, "region": self.region}
        return value | {name: text for name, text in named.items() if text is not None}


@dataclass(frozen=True)
class Request:
    """One to eight alternatives, no two alike."""

    options: tuple[Option, ...]

    def __str__(self) -> str:
        return " | ".join(map(str, self.options))

    def to_json(self) -> dict[str, Any]:
        return {"options": [option.to_json() for option in self.options]}

    @classmethod
    def from_json(cls, value: object, catalogue: Catalogue) -> Self:
        """Read what `to_json` writes, from whoever sent it. Raises GrammarError with the field of the fault."""
        members = _members(value, "", known={"options"}, required={"options"})
        entries = members["options"]
        if not isinstance(entries, list):
            raise GrammarError("wrong_type", 0, "A list of alternatives would be right.", field="options")
        if not entries:
            raise GrammarError("empty", 0, "Nothing is asked for.", field="options")
        options: list[Option] = []
        for index, entry in enumerate(entries):
            field = f"options/{index}"
            if index == MAX_OPTIONS:
                raise GrammarError("out_of_range", 0, f"At most {MAX_OPTIONS} alternatives can be given.", field=field)
            option = _option(entry, field, catalogue)
            if option in options:
                raise GrammarError("duplicate_option", 0, f"{option} is asked for twice.", field=field)
            options.append(option)
        return cls(tuple(options))


def whole_number(value: object, field: str, *, most: int) -> int:
    """Return a JSON integer from 1 to `most`; nothing is coerced. Raises GrammarError naming the field."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise GrammarError("wrong_type", 0, f"A whole number from 1 to {most} would be right.", field=field)
    if not 1 <= value <= most:
        raise GrammarError("out_of_range", 0, f"A whole number from 1 to {most} would be right.", field=field)
    return value


def text_member(value: object, field: str) -> str:
    if not isinstance(value, str):
        raise GrammarError("wrong_type", 0, "A text would be right.", field=field)
    return value


def _members(value: object, field: str, *, known: set[str], required: set[str]) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise GrammarError("wrong_type", 0, f"An object with {', '.join(sorted(known))} would be right.", field=field)
    for name in value:
        if name not in known:
            detail = f"There is no such member; there are {', '.join(sorted(known))}."
            raise GrammarError("unknown_field", 0, detail, field=f"{field}/{str(name)[:64]}".strip("/"))
    for name in sorted(required - value.keys()):
        raise GrammarError("required", 0, "This member is missing.", field=f"{field}/{name}".strip("/"))
    return value


def _option(value: object, field: str, catalogue: Catalogue) -> Option:
    known = {"nodes", "count", "model", "slice", "memory_gib", "region"}
    members = _members(value, field, known=known, required=set())
    nodes = whole_number(members.get("nodes", 1), f"{field}/nodes", most=MAX_NODES)
    count = whole_number(members.get("count", 1), f"{field}/count", most=MAX_COUNT)
    region = members.get("region")
    if region is not None:
        known_region = catalogue.region_named(text_member(region, f"{field}/region"))
        if known_region is None:
            raise GrammarError("unknown_region", 0, "There is no such region.", catalogue.regions, f"{field}/region")
        region = known_region
    if members.get("memory_gib") is not None:
        for other in ("model", "slice"):
            if members.get(other) is not None:
                raise GrammarError("syntax", 0, "Either a model or a memory is asked for.", field=f"{field}/{other}")
        memory = _memory(members["memory_gib"], f"{field}/memory_gib")
        return Option(nodes=nodes, count=count, memory_gib=memory, region=region)
    model, part = _model(members, field, catalogue)
    return Option(nodes=nodes, count=count, model=model, slice=part, region=region)


def _model(members: Mapping[str, Any], field: str, catalogue: Catalogue) -> tuple[str, str | None]:
    if members.get("model") is None:
        raise GrammarError("required", 0, "A model or a memory_gib is missing.", field=f"{field}/model")
    name = text_member(members["model"], f"{field}/model")
    gpu = catalogue.named(name)
    if gpu is None:
        family = catalogue.family(name)
        nearest = tuple(gpu.slug for gpu in family or [gpu for _, gpu in catalogue.like(name)])
        kind = "ambiguous" if len(family) > 1 else "unknown_model"
        raise GrammarError(kind, 0, "The catalogue has no one model of this name.", nearest, f"{field}/model")
    part = members.get("slice")
    if part is None:
        return gpu.slug, None
    part = canonical_slice(text_member(part, f"{field}/slice"))
    if part not in gpu.slices:
        nearest = tuple(f"{gpu.slug}/{sold}" for sold in gpu.slices) or (gpu.slug,)
        raise GrammarError("unknown_slice", 0, f"{gpu.slug} is not sold in this slice.", nearest, f"{field}/slice")
    return gpu.slug, part


def _memory(value: object, field: str) -> tuple[int, int | None]:
    members = _members(value, field, known={"min", "max"}, required={"min"})
    least = whole_number(members["min"], f"{field}/min", most=MAX_MEMORY_GIB)
    if members.get("max") is None:
        return least, None
    most = whole_number(members["max"], f"{field}/max", most=MAX_MEMORY_GIB)
    if least > most:
        raise GrammarError("bad_range", 0, "min is above max.", (f"any:{most}G..{least}G",), field)
    return least, most


def canonical_slice(text: str) -> str:
    """Return a slice as it is printed: in lower case, a fraction without zeros at its end."""
    text = text.lower()
    head, point, digits = text.partition(".")
    return f"0.{digits.rstrip('0')}" if head == "0" and point and digits.isascii() and digits.isdigit() else text
