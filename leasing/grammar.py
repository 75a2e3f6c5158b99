"""The request grammar: `parse("2*a100-80g x8", catalogue)` gives a Request, or one GrammarError. Pure.

A text is read from its left, an alternative at a time. Where a name may end in two places (`MLU370 x8`), every reading
is tried: one that works is the answer, two are refused and shown, and of none the fault of the one that got furthest
is reported. What could have been meant is found by writing the alternative anew and reading that.
"""

import re
from collections.abc import Mapping
from dataclasses import replace

from leasing.gpu_names import Catalogue, Gpu
from leasing.reading import Alternative
from leasing.resource_request import (
    MAX_CHARACTERS,
    MAX_COUNT,
    MAX_NODES,
    MAX_OPTIONS,
    GrammarError,
    Option,
    Request,
    text_member,
    whole_number,
)
from leasing.scanner import Fault

__all__ = ["Catalogue", "Gpu", "GrammarError", "Option", "Request", "from_fields", "parse"]

MAX_NEAREST = 8
_NOT_OF_THE_GRAMMAR = re.compile(r"[^A-Za-z0-9 _\-*×/.:+@|]")


def parse(text: str, catalogue: Catalogue) -> Request:
    """Read the one-line form. Raises GrammarError: one fault, with its position and the nearest valid forms."""
    _check_characters(text)
    options: list[Option] = []
    start = 0
    for index, alternative in enumerate(text.split("|")):
        end = start + len(alternative)
        try:
            reading = Alternative(text[:end], start, catalogue)
            if index == MAX_OPTIONS and not reading.empty:
                raise Fault("out_of_range", reading.start, f"At most {MAX_OPTIONS} alternatives can be given.")
            option = reading.option()
            if option in options:
                raise Fault("duplicate_option", reading.start, f"{option} is asked for twice.")
        except Fault as fault:
            raise _refusal(fault, catalogue) from None
        options.append(option)
        start = end + 1
    return Request(tuple(options))


def from_fields(fields: Mapping[str, object], catalogue: Catalogue) -> Request:
    """Read the four-field form: gpu_model, node_count (machines) and gpu_count (in each); both counts default to 1.

    Other members are not the grammar's and are passed over. Raises GrammarError with `field`.
    """
    if fields.get("gpu_model") is None:
        raise GrammarError("required", 0, "A GPU model is missing, such as A100_80G.", field="gpu_model")
    text = text_member(fields["gpu_model"], "gpu_model")
    try:
        _check_characters(text)
        option = Alternative(text, 0, catalogue, gpu_only=True).option()
    except Fault as fault:
        raise _refusal(fault, catalogue, field="gpu_model") from None
    except GrammarError as error:
        raise GrammarError(error.kind, error.position, error.detail, error.nearest, "gpu_model") from None
    nodes = whole_number(fields.get("node_count", 1), "node_count", most=MAX_NODES)
    count = whole_number(fields.get("gpu_count", 1), "gpu_count", most=MAX_COUNT)
    return Request((replace(option, nodes=nodes, count=count),))


def _check_characters(text: str) -> None:
    """Refuse what need not be read: too long, a character that no form uses, nothing at all."""
    if len(text) > MAX_CHARACTERS:
        raise GrammarError("too_long", MAX_CHARACTERS, f"A request has at most {MAX_CHARACTERS} characters.")
    strange = _NOT_OF_THE_GRAMMAR.search(text)
    if strange:
        detail = f"The character U+{ord(strange.group()):04X} has no meaning here."
        raise GrammarError("bad_character", strange.start(), detail)
    if not text.strip(" "):
        raise GrammarError("empty", 0, "Nothing is asked for; A100_80G x4 would be a request.")


def _refusal(fault: Fault, catalogue: Catalogue, field: str | None = None) -> GrammarError:
    nearest: dict[str, None] = {}
    for meant in fault.meant:
        try:
            option = meant if isinstance(meant, Option) else Alternative(meant, 0, catalogue).option()
        except Fault:
            continue  # it has a second fault, so it is no valid form
        nearest[str(option)] = None
    return GrammarError(fault.kind, fault.position, fault.detail, tuple(nearest)[:MAX_NEAREST], field)
