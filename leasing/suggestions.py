"""What was probably meant by a text that is no request: the nearest names, slices and ways to write it. Pure."""

import difflib
import re
from collections.abc import Iterator, Sequence
from fractions import Fraction

from leasing.gpu_names import Catalogue, Gpu
from leasing.scanner import Fault, Scanner

_READINGS_TO_MEND = 3
_LIKENESS_BELOW_THE_BEST = 0.2


class UnknownName(Fault):
    """Nothing in the catalogue is called text[position:end]."""

    def __init__(self, position: int, end: int, name: str) -> None:
        super().__init__("unknown_model", position, f"The catalogue has no model {name[:64]!r}.")
        self.end = end


def furthest(faults: Sequence[Fault], written: Scanner, catalogue: Catalogue) -> Fault:
    """Return the fault of the reading that got furthest; several that end at one name are mended together."""
    position = max(fault.position for fault in faults)
    there = [fault for fault in faults if fault.position == position]
    unknown = [fault for fault in there if isinstance(fault, UnknownName)]
    if len(unknown) < len(there):
        return next(fault for fault in there if not isinstance(fault, UnknownName))
    # The last divisions leave the longest names, and the first of all is the whole.
    some = unknown[:1] + unknown[1:][-_READINGS_TO_MEND + 1 :]
    mended = sorted((pair for fault in some for pair in _mended(fault, written, catalogue)), key=lambda pair: -pair[0])
    unknown[0].meant = [text for likeness, text in mended if likeness > mended[0][0] - _LIKENESS_BELOW_THE_BEST]
    return unknown[0]


def _mended(fault: UnknownName, written: Scanner, catalogue: Catalogue) -> Iterator[tuple[float, str]]:
    """Yield the alternative with its unknown name replaced by what it resembles, and how much."""
    head, behind = written.text[written.start : fault.position], written.text[fault.end :]
    name = written.text[fault.position : fault.end].strip(" ")
    number_last = re.fullmatch(r"(.*[^ _-])[ _-]+[xX]?[ _-]*([1-9][0-9]*)", name)
    if number_last and catalogue.named(number_last[1]):
        yield 1.0, f"{head}{number_last[1]} x{number_last[2]}{behind}"
    number_first = re.fullmatch(r"([1-9][0-9]*)[ _-]*(.*[^ _-])", name)
    if number_first and catalogue.named(number_first[2]):
        yield 1.0, f"{head}{number_first[2]} x{number_first[1]}{behind}"
        yield 1.0, f"{number_first[1]}*{number_first[2]}{behind}"
    any_memory = re.fullmatch(r"[aA][nN][yY]([0-9]+[gG].*)", name)
    if any_memory:
        yield 1.0, f"{head}any:{any_memory[1]}{behind}"
    for likeness, gpu in catalogue.like(name.replace(":", "_")):
        yield likeness, f"{head}{gpu.slug}{behind}"


def by_likeness(text: str, known: Sequence[str]) -> list[str]:
    near = difflib.get_close_matches(text.lower(), known, n=len(known) or 1, cutoff=0)
    return [*near, *(name for name in known if name not in near)][:8]


def nearest_slices(text: str, run: str, gpu: Gpu) -> list[str]:
    """Return the slices sold of this model: fractions by their size if one was asked for, else by their spelling."""
    quotient = re.match(r"([0-9]+)/([1-9][0-9]*)", text)
    number = re.fullmatch(r"[0-9]*\.?[0-9]+", run)
    if not gpu.fractions or not (quotient or number):
        return by_likeness(run, gpu.slices)
    wanted = Fraction(quotient.group() if quotient else run)
    return sorted(gpu.fractions, key=lambda fraction: abs(Fraction(fraction) - wanted))
