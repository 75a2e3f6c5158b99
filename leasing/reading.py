"""Reads one alternative of a request: its ways to be understood, and where each of them fails. Pure."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from leasing.gpu_names import Catalogue, Gpu
from leasing.resource_request import MAX_COUNT, MAX_MEMORY_GIB, MAX_NODES, Option, canonical_slice
from leasing.scanner import NUMBER, Fault, Scanner
from leasing.suggestions import UnknownName, by_likeness, furthest, nearest_slices

_ANY = re.compile(r"[Aa][Nn][Yy](?:(?![A-Za-z0-9])|(?=[Xx] *[0-9]))")
_NAME = re.compile(r"[A-Za-z0-9 _-]*")
_SLICE = re.compile(r"[A-Za-z0-9.+_-]*")
_REGION = re.compile(r"[A-Za-z0-9_-]+(?: +[A-Za-z0-9_-]+)*")
_TIMES = frozenset("xX*×")
_ONLY_THE_MODEL = "Only the model belongs in this field; counts have fields of their own."


@dataclass(frozen=True)
class _Reading:
    """All that the text can mean in one way of dividing it; `clear` if the name is that of one model."""

    options: tuple[Option, ...]
    clear: bool = True


class Alternative(Scanner):
    """One alternative of a request.

    gpu_only: the text is the GPU part alone, as in the field `gpu_model`.
    """

    def __init__(self, text: str, start: int, catalogue: Catalogue, *, gpu_only: bool = False) -> None:
        super().__init__(text, start)
        self.catalogue = catalogue
        self.gpu_only = gpu_only

    @property
    def empty(self) -> bool:
        return self.start == len(self.text)

    def option(self) -> Option:
        """Return what is asked for, or raise Fault."""
        if self.empty:
            raise Fault("syntax", self.start, "A GPU model is missing here, such as A100_80G.")
        gpu_at = self._read_nodes()
        options, faults, clear = self._understand(gpu_at)
        if len(options) == 1 and clear:
            return options[0]
        if options:
            raise Fault("ambiguous", gpu_at, _either(options), *options)
        self._refuse_number_in_front(gpu_at)
        raise furthest(faults, self, self.catalogue)

    def _understand(self, gpu_at: int) -> tuple[tuple[Option, ...], list[Fault], bool]:
        """Return all that can be meant by what starts at `gpu_at`, the faults of other readings, and if it is clear."""
        readings, faults = [], []
        for name_end, tail in self._divisions(gpu_at):
            try:
                readings.append(
                    self._read_any(gpu_at) if name_end is None else self._read_named(gpu_at, name_end, tail)
                )
            except Fault as fault:
                faults.append(fault)
        options = tuple(dict.fromkeys(option for reading in readings for option in reading.options))
        return options, faults, all(reading.clear for reading in readings)

    def _divisions(self, gpu_at: int) -> Iterator[tuple[int | None, int]]:
        """Yield each place where the name may end, and where what follows starts; None for `any`, which is no name."""
        if _ANY.match(self.text, gpu_at):
            yield None, gpu_at
            return
        run = _match(_NAME, self.text, gpu_at)
        name = run.group().rstrip(" ")
        if not name.strip(" _-"):
            yield gpu_at, gpu_at
            return
        yield gpu_at + len(name), gpu_at + len(name)
        for index, character in enumerate(name):
            before = name[:index].rstrip(" ")
            # Only spaces may stand between a name and its count: `MLU370_X8` is a model.
            if character in "xX" and before and before[-1] not in "_-":
                yield gpu_at + len(before), gpu_at + index

    # The parts, from the left. Each returns what it read and where it ended.

    def _read_nodes(self) -> int:
        """Read `2*`; return where the GPU part starts."""
        number = NUMBER.match(self.text, self.start)
        star = self.skip(number.end()) if number else self.start
        if number is None or self.at(star) != "*":
            return self.start
        if self.gpu_only:
            raise Fault("syntax", star, _ONLY_THE_MODEL, self.text[star + 1 :])
        self.nodes = self.whole(number, most=MAX_NODES, what="Machines")
        gpu_at = self.skip(star + 1)
        if gpu_at == len(self.text):
            raise Fault("syntax", gpu_at, "A GPU model is missing behind the number of machines.")
        return gpu_at

    def _read_any(self, gpu_at: int) -> _Reading:
        colon = self.skip(gpu_at + len("any"))
        if self.at(colon) != ":":
            bare = self.text[self.start : gpu_at + len("any")]
            rest = self.text[colon:].lstrip("_-")
            detail = "Behind 'any' a memory is needed, such as any:24G+."
            raise Fault("syntax", colon, detail, f"{bare}:{rest}", f"{bare}:24G+ {self.text[colon:]}")
        least_at = self.skip(colon + 1)
        least, end = self._read_memory(least_at)
        most: int | None = least
        follows = self.skip(end)
        if self.at(follows) == "+":
            most, end = None, follows + 1
        elif self.at(follows) == ".":
            most, end = self._read_upper_end(follows)
        if most is not None and most < least:
            turned = f"{self.text[self.start : least_at]}{most}G..{least}G{self.text[end:]}"
            raise Fault("bad_range", least_at, f"From {least} to {most} is no range.", turned)
        return self._read_tail(end, [Option(nodes=self.nodes, memory_gib=(least, most))])

    def _read_upper_end(self, dots: int) -> tuple[int | None, int]:
        if self.at(dots + 1) != ".":
            mended = f"{self.text[self.start : dots]}..{self.text[dots + 1 :]}"
            raise Fault("syntax", dots + 1, "A range of memory is written 24G..48G.", mended)
        most_at = self.skip(dots + 2)
        if self.at(most_at) != "." and NUMBER.match(self.text, most_at):
            return self._read_memory(most_at)
        return None, dots + 2

    def _read_memory(self, at: int) -> tuple[int, int]:
        number = NUMBER.match(self.text, at)
        if number is None:
            mended = f"{self.text[self.start : at]}1G{self.text[at:]}" if self.at(at) == "." else ""
            raise Fault("syntax", at, "A memory is missing, such as 24G.", mended)
        size = self.whole(number, most=MAX_MEMORY_GIB, what="GiB of memory")
        unit_at = self.skip(number.end())
        unit_end = self.unit(unit_at)
        if unit_end is None:
            mended = f"{self.text[self.start : number.end()]}G{self.text[number.end() :]}"
            raise Fault("syntax", unit_at, "A memory needs its unit, G.", mended)
        return size, unit_end

    def _read_named(self, name_at: int, name_end: int, tail: int) -> _Reading:
        """Read a GPU by its name, as `A100_80G` or `A100:80GB`, and what follows it."""
        if name_at == name_end:
            raise Fault("syntax", name_at, "A GPU model belongs here, such as A100_80G.")
        memory_gib, kind_end = self._read_memory_of_name(name_end, tail)
        gpus = self._models(self.text[name_at:name_end], memory_gib)
        if not gpus:
            name = self.text[name_at : max(name_end, kind_end)]
            raise UnknownName(name_at, max(name_end, kind_end), name)
        options = [Option(nodes=self.nodes, model=gpu.slug) for gpu in gpus]
        if len(gpus) == 1:
            return self._read_tail(kind_end, options, gpus=gpus)
        try:
            return replace(self._read_tail(kind_end, options, gpus=gpus), clear=False)
        except Fault:
            raise Fault("ambiguous", name_at, _either(options), *options) from None

    def _read_memory_of_name(self, name_end: int, tail: int) -> tuple[int | None, int]:
        """Read the `:80GB` of `A100:80GB`. A number without a unit is a count, and left where it is."""
        colon = self.skip(tail)
        if self.at(colon) != ":":
            return None, tail
        number = NUMBER.match(self.text, self.skip(colon + 1))
        if number is None:
            return None, tail
        behind = self.skip(number.end())
        unit_end = self.unit(behind)
        if unit_end is not None:
            return self.whole(number, most=MAX_MEMORY_GIB, what="GiB of memory"), unit_end
        if self.at(behind) == ":":
            mended = f"{self.text[self.start : number.end()]}G{self.text[number.end() :]}"
            raise Fault("syntax", behind, "A memory needs its unit, G.", mended)
        return None, tail

    def _models(self, name: str, memory_gib: int | None) -> tuple[Gpu, ...]:
        """Return the model of this name, or the several of which it is the common beginning, or nothing."""
        gpu = self.catalogue.named(name if memory_gib is None else f"{name}_{memory_gib}G")
        if gpu is None and memory_gib is not None:
            whole = self.catalogue.named(name)
            gpu = whole if whole and whole.memory_gib == memory_gib else None
        if gpu is not None:
            return (gpu,)
        family = self.catalogue.family(name if memory_gib is None else f"{name}_{memory_gib}G")
        return family if len(family) > 1 else ()

    def _read_tail(self, at: int, options: list[Option], *, gpus: Sequence[Gpu] = ()) -> _Reading:
        """Read `/slice`, the count and `@region`, up to the end."""
        at = self.skip(at)
        sliced = bool(gpus) and self.at(at) == "/"
        if sliced:
            options, at = self._read_slice(at, options, gpus)
        count, at = self._read_count(self.skip(at), colon=bool(gpus) and not sliced)
        options = [replace(option, count=count) for option in options]
        region_at = self.skip(at)
        if self.at(region_at) == "@" and not self.gpu_only:
            region, at = self._read_region(region_at)
            options = [replace(option, region=region) for option in options]
        rest = self.skip(at)
        if rest != len(self.text):
            raise self._left_over(rest, region_at)
        return _Reading(tuple(options))

    def _read_slice(self, slash: int, options: list[Option], gpus: Sequence[Gpu]) -> tuple[list[Option], int]:
        at = self.skip(slash + 1)
        run = _match(_SLICE, self.text, at).group()
        if not run or run[0] in _TIMES:
            bare = f"{self.text[self.start : slash]}{self.text[at:]}"
            raise Fault("syntax", at, "A slice is missing, such as 2g.20gb or 0.5.", bare)
        ends = [len(run), *(index for index in range(len(run) - 1, 0, -1) if run[index] in "xX")]
        for end in ends:
            part = canonical_slice(run[:end])
            sold = [replace(o, slice=part) for o, gpu in zip(options, gpus, strict=True) if part in gpu.slices]
            if sold:
                return sold, at + end
        head, behind = self.text[self.start : slash], self.text[at + ends[1 if len(ends) > 1 else 0] :]
        slices = [part for gpu in gpus for part in nearest_slices(self.text[at:], run, gpu)]
        meant = [f"{head}/{part}{behind}" for part in slices] + [f"{head}/{part}" for part in slices]
        names = ", ".join(dict.fromkeys(slices))
        detail = f"This model is sold in {names}." if names else "This model is sold whole only."
        raise Fault("unknown_slice", at, detail, *meant, f"{head}{behind}", head)

    def _read_count(self, at: int, *, colon: bool) -> tuple[int, int]:
        if self.gpu_only or not (self.at(at) in _TIMES or (colon and self.at(at) == ":")):
            return 1, at
        number_at = self.skip(at + 1)
        number = NUMBER.match(self.text, number_at)
        if number is None:
            bare = f"{self.text[self.start : at]}{self.text[number_at:]}"
            raise Fault("syntax", number_at, "A number of GPUs is missing.", bare, self.text[self.start : at])
        return self.whole(number, most=MAX_COUNT, what="GPUs in one machine"), number.end()

    def _read_region(self, sign: int) -> tuple[str, int]:
        at = self.skip(sign + 1)
        run = _REGION.match(self.text, at)
        if run is None:
            raise Fault("syntax", at, "A region is missing behind '@'.", self.text[self.start : sign])
        ends = [run.end(), *(at + space.start() for space in reversed([*re.finditer(r"(?<! ) ", run.group())]))]
        for end in ends:
            region = self.catalogue.region_named(self.text[at:end])
            if region is not None:
                return region, end
        near = by_likeness(self.text[at : ends[-1]], self.catalogue.regions)
        meant = (f"{self.text[self.start : at]}{region}" for region in near)
        raise Fault("unknown_region", at, f"The regions are {', '.join(self.catalogue.regions)}.", *meant)

    # Faults, and what was meant.

    def _left_over(self, at: int, region_at: int) -> Fault:
        """Return the fault of something that cannot stand where it stands."""
        read, rest = self.text[self.start : at].rstrip(" "), self.text[at:]
        meant = [f"{read}..{rest.lstrip('- ')}", read]  # the first for `any:24G-48G`
        if region_at < at:
            meant.insert(0, f"{self.text[self.start : region_at]}{rest} {self.text[region_at:at]}")
        if self.gpu_only:
            detail = _ONLY_THE_MODEL
        else:
            detail = "This cannot stand here: the order is machines*model/slice xcount @region."
        return Fault("syntax", at, detail, *meant)

    def _refuse_number_in_front(self, gpu_at: int) -> None:
        """Raise if it is `4xA100_80G`: four GPUs or four machines? Return if it is something else."""
        number = NUMBER.match(self.text, gpu_at)
        if number is None:
            return
        times = self.skip(number.end())
        if self.at(times) not in _TIMES - {"*"}:
            return
        rest = self.skip(times + 1)
        options, faults, _ = self._understand(rest)
        if not options and all(fault.position == rest and fault.kind != "ambiguous" for fault in faults):
            return
        wanted = self.whole(number, most=MAX_NODES, what="Machines")
        meant = []
        for option in options:
            if option.count == 1 and wanted <= MAX_COUNT:
                meant.append(replace(option, count=wanted))
            if self.nodes == 1:
                meant.append(replace(option, nodes=wanted))
        detail = f"{wanted} GPUs in one machine, or {wanted} machines? In front of a model stands only {wanted}*."
        raise Fault("ambiguous", gpu_at, detail, *meant)


def _match(pattern: re.Pattern[str], text: str, at: int) -> re.Match[str]:
    """Return the match of a pattern that matches everywhere, if only nothing."""
    found = pattern.match(text, at)
    assert found is not None
    return found


def _either(options: Sequence[Option]) -> str:
    return f"This can mean {' or '.join(str(option) for option in options[:4])}."
