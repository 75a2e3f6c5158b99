"""Reads one alternative of a request: its ways to be understood, and where each of them fails. Pure."""

import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from leasing.gpu_names import Catalogue, Gpu
from leasing.resource_request import MAX_COUNT, MAX_MEMORY_GIB, MAX_NODES, Option, canonical_slice

# What somebody who writes a number may write; which of it is a number is decided afterwards.
_NUMBER = re.compile(r"[+-]?\.?[0-9](?:[0-9_]|\.(?!\.)|[eE][+-]?(?=[0-9]))*|[+-]")
_PLAIN_NUMBER = re.compile(r"0|[1-9][0-9]*")
_UNIT = re.compile(r"[Gg](?:[Bb]|[Ii](?P<half>[Bb])?)?")
_ANY = re.compile(r"[Aa][Nn][Yy](?:(?![A-Za-z0-9])|(?=[Xx] *[0-9]))")
_NAME = re.compile(r"[A-Za-z0-9 _-]*")
_SLICE = re.compile(r"[A-Za-z0-9.+_-]*")
_REGION = re.compile(r"[A-Za-z0-9_-]+(?: +[A-Za-z0-9_-]+)*")
_TIMES = frozenset("xX*×")
_READINGS_TO_MEND = 3


class Fault(Exception):
    """A reading ends here. `meant`: what may have been wanted, as a value or as a text to be read."""

    def __init__(self, kind: str, position: int, detail: str, *meant: Option | str) -> None:
        super().__init__(kind, position, detail)
        self.kind = kind
        self.position = position
        self.detail = detail
        self.meant: Sequence[Option | str] = meant


class UnknownName(Fault):
    """Nothing in the catalogue is called text[position:end]."""

    def __init__(self, position: int, end: int, name: str) -> None:
        super().__init__("unknown_model", position, f"The catalogue has no model {name[:64]!r}.")
        self.end = end


@dataclass(frozen=True)
class _Reading:
    """All that the text can mean in one way of dividing it; `clear` if the name is that of one model."""

    options: tuple[Option, ...]
    clear: bool = True


class Alternative:
    """One alternative of a request: `text` from `start` to its end; what stands before only counts for positions.

    gpu_only: the text is the GPU part alone, as in the field `gpu_model`.
    """

    def __init__(self, text: str, start: int, catalogue: Catalogue, *, gpu_only: bool = False) -> None:
        self.text = text
        self.catalogue = catalogue
        self.gpu_only = gpu_only
        self.start = self._skip(start)
        self.nodes = 1

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
        raise self._furthest(faults)

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
        number = _NUMBER.match(self.text, self.start)
        if number is None or self.gpu_only:
            return self.start
        star = self._skip(number.end())
        if self._at(star) != "*":
            return self.start
        self.nodes = self._whole(number, most=MAX_NODES, what="machines")
        gpu_at = self._skip(star + 1)
        if gpu_at == len(self.text):
            raise Fault("syntax", gpu_at, "A GPU model is missing behind the number of machines.")
        return gpu_at

    def _read_any(self, gpu_at: int) -> _Reading:
        colon = self._skip(gpu_at + len("any"))
        if self._at(colon) != ":":
            bare = self.text[self.start : gpu_at + len("any")]
            rest = self.text[colon:].lstrip("_-")
            detail = "Behind 'any' a memory is needed, such as any:24G+."
            raise Fault("syntax", colon, detail, f"{bare}:{rest}", f"{bare}:24G+ {self.text[colon:]}")
        least_at = self._skip(colon + 1)
        least, end = self._read_memory(least_at)
        most: int | None = least
        follows = self._skip(end)
        if self._at(follows) == "+":
            most, end = None, follows + 1
        elif self._at(follows) == ".":
            most, end = self._read_upper_end(follows)
        if most is not None and most < least:
            turned = f"{self.text[self.start : least_at]}{most}G..{least}G{self.text[end:]}"
            raise Fault("bad_range", least_at, f"From {least} to {most} is no range.", turned)
        return self._read_tail(end, [Option(nodes=self.nodes, memory_gib=(least, most))])

    def _read_upper_end(self, dots: int) -> tuple[int | None, int]:
        if self._at(dots + 1) != ".":
            mended = f"{self.text[self.start : dots]}..{self.text[dots + 1 :]}"
            raise Fault("syntax", dots + 1, "A range of memory is written 24G..48G.", mended)
        most_at = self._skip(dots + 2)
        if _NUMBER.match(self.text, most_at):
            return self._read_memory(most_at)
        return None, dots + 2

    def _read_memory(self, at: int) -> tuple[int, int]:
        number = _NUMBER.match(self.text, at)
        if number is None:
            mended = f"{self.text[self.start : at]}1G{self.text[at:]}" if self._at(at) == "." else ""
            raise Fault("syntax", at, "A memory is missing, such as 24G.", mended)
        size = self._whole(number, most=MAX_MEMORY_GIB, what="GiB of memory")
        unit_at = self._skip(number.end())
        unit_end = self._unit(unit_at)
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
        colon = self._skip(tail)
        if self._at(colon) != ":":
            return None, tail
        number = _NUMBER.match(self.text, self._skip(colon + 1))
        if number is None:
            return None, tail
        behind = self._skip(number.end())
        unit_end = self._unit(behind)
        if unit_end is not None:
            return self._whole(number, most=MAX_MEMORY_GIB, what="GiB of memory"), unit_end
        if self._at(behind) == ":":
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
        at = self._skip(at)
        sliced = bool(gpus) and self._at(at) == "/"
        if sliced:
            options, at = self._read_slice(at, options, gpus)
        count, at = self._read_count(self._skip(at), colon=bool(gpus) and not sliced)
        options = [replace(option, count=count) for option in options]
        region_at = self._skip(at)
        if self._at(region_at) == "@" and not self.gpu_only:
            region, at = self._read_region(region_at)
            options = [replace(option, region=region) for option in options]
        rest = self._skip(at)
        if rest != len(self.text):
            raise self._left_over(rest, region_at)
        return _Reading(tuple(options))

    def _read_slice(self, slash: int, options: list[Option], gpus: Sequence[Gpu]) -> tuple[list[Option], int]:
        at = self._skip(slash + 1)
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
        slices = [part for gpu in gpus for part in _by_likeness(run, gpu.slices)]
        meant = [f"{head}/{part}{behind}" for part in slices] + [f"{head}/{part}" for part in slices]
        names = ", ".join(dict.fromkeys(slices))
        detail = f"This model is sold in {names}." if names else "This model is sold whole only."
        raise Fault("unknown_slice", at, detail, *(meant or [f"{head}{behind}", head]))

    def _read_count(self, at: int, *, colon: bool) -> tuple[int, int]:
        if self.gpu_only or not (self._at(at) in _TIMES or (colon and self._at(at) == ":")):
            return 1, at
        number_at = self._skip(at + 1)
        number = _NUMBER.match(self.text, number_at)
        if number is None:
            bare = f"{self.text[self.start : at]}{self.text[number_at:]}"
            raise Fault("syntax", number_at, "A number of GPUs is missing.", bare, self.text[self.start : at])
        return self._whole(number, most=MAX_COUNT, what="GPUs in one machine"), number.end()

    def _read_region(self, sign: int) -> tuple[str, int]:
        at = self._skip(sign + 1)
        run = _REGION.match(self.text, at)
        if run is None:
            raise Fault("syntax", at, "A region is missing behind '@'.", self.text[self.start : sign])
        ends = [run.end(), *(at + space.start() for space in reversed([*re.finditer(r"(?<! ) ", run.group())]))]
        for end in ends:
            region = self.catalogue.region_named(self.text[at:end])
            if region is not None:
                return region, end
        near = _by_likeness(self.text[at : ends[-1]], self.catalogue.regions)
        meant = (f"{self.text[self.start : at]}{region}" for region in near)
        raise Fault("unknown_region", at, f"The regions are {', '.join(self.catalogue.regions)}.", *meant)

    # Faults, and what was meant.

    def _whole(self, number: re.Match[str], *, most: int, what: str) -> int:
        """Return the number if it is whole and from 1 to `most`."""
        text = number.group()
        right = f"{what}: a whole number from 1 to {most} would be right."
        plain = _PLAIN_NUMBER.fullmatch(text)
        if plain and 1 <= int(text) <= most:
            return int(text)
        head, behind = self.text[self.start : number.start()], self.text[number.end() :]
        digits = re.sub(r"[^0-9]", "", re.split(r"(?<=[0-9])[.eE]", text)[0]).lstrip("0")
        meant = [f"{head}{min(max(int(digits or 0), 1), most)}{behind}"]
        if most == MAX_COUNT and plain and int(text) % 8 == 0 and self.nodes == 1 and head.strip(" "):
            meant.insert(0, f"{int(text) // 8}*{head}8{behind}")
        kind = "out_of_range" if plain else "bad_number"
        shown = text if len(text) <= 20 else f"{text[:20]}..."
        raise Fault(kind, number.start(), f"{shown} {right}", *meant)

    def _left_over(self, at: int, region_at: int) -> Fault:
        """Return the fault of something that cannot stand where it stands."""
        read, rest = self.text[self.start : at].rstrip(" "), self.text[at:]
        meant = [read]
        if region_at < at:
            meant.insert(0, f"{self.text[self.start : region_at]}{rest} {self.text[region_at:at]}")
        if self.gpu_only:
            detail = "Only the model belongs in this field; counts have fields of their own."
        else:
            detail = "This cannot stand here: the order is machines*model/slice xcount @region."
        return Fault("syntax", at, detail, *meant)

    def _refuse_number_in_front(self, gpu_at: int) -> None:
        """Raise if it is `4xA100_80G`: four GPUs or four machines? Return if it is something else."""
        number = _NUMBER.match(self.text, gpu_at)
        if number is None:
            return
        times = self._skip(number.end())
        if self._at(times) not in _TIMES:
            return
        rest = self._skip(times + 1)
        options, faults, _ = self._understand(rest)
        if not options and all(fault.position == rest and fault.kind != "ambiguous" for fault in faults):
            return
        wanted = self._whole(number, most=MAX_NODES, what="in front of a model are machines")
        meant = []
        for option in options:
            if option.count == 1 and wanted <= MAX_COUNT:
                meant.append(replace(option, count=wanted))
            if self.nodes == 1:
                meant.append(replace(option, nodes=wanted))
        detail = f"{wanted} GPUs in one machine, or {wanted} machines? In front of a model stands only {wanted}*."
        raise Fault("ambiguous", gpu_at, detail, *meant)

    def _furthest(self, faults: list[Fault]) -> Fault:
        """Return the fault of the reading that got furthest; several that end at one name are mended together."""
        furthest = max(fault.position for fault in faults)
        there = [fault for fault in faults if fault.position == furthest]
        unknown = [fault for fault in there if isinstance(fault, UnknownName)]
        if len(unknown) < len(there):
            return next(fault for fault in there if not isinstance(fault, UnknownName))
        # The last divisions leave the longest names, and the first of all is the whole.
        for fault in unknown[:1] + unknown[1:][-_READINGS_TO_MEND + 1 :]:
            unknown[0].meant = [*unknown[0].meant, *self._mended(fault)]
        return unknown[0]

    def _mended(self, fault: UnknownName) -> Iterator[str]:
        """Yield the alternative with its unknown name replaced by what it resembles."""
        head, name = self.text[self.start : fault.position], self.text[fault.position : fault.end].strip(" ")
        behind = self.text[fault.end :]
        number_last = re.fullmatch(r"(.*[^ _-])[ _-]+[xX]?[ _-]*([1-9][0-9]*)", name)
        if number_last and self.catalogue.named(number_last[1]):
            yield f"{head}{number_last[1]} x{number_last[2]}{behind}"
        number_first = re.fullmatch(r"([1-9][0-9]*)[ _-]*(.*[^ _-])", name)
        if number_first and self.catalogue.named(number_first[2]):
            yield f"{head}{number_first[2]} x{number_first[1]}{behind}"
            yield f"{number_first[1]}*{number_first[2]}{behind}"
        for _, gpu in self.catalogue.like(name.replace(":", "_")):
            yield f"{head}{gpu.slug}{behind}"

    # The text.

    def _skip(self, at: int) -> int:
        """Return where the next thing that is no space stands; the end if there is none."""
        while at < len(self.text) and self.text[at] == " ":
            at += 1
        return at

    def _at(self, at: int) -> str:
        return self.text[at : at + 1]

    def _unit(self, at: int) -> int | None:
        """Return the end of the G, GB or GiB that stands here, None if none does."""
        unit = _UNIT.match(self.text, at)
        if unit is None:
            return None
        if self.text[unit.end() - 1] in "iI":
            raise Fault("syntax", unit.end(), "The unit of memory is G.", self.text[self.start : at] + "G")
        return unit.end()


def _match(pattern: re.Pattern[str], text: str, at: int) -> re.Match[str]:
    """Return the match of a pattern that matches everywhere, if only nothing."""
    found = pattern.match(text, at)
    assert found is not None
    return found


def _either(options: Sequence[Option]) -> str:
    return f"This can mean {' or '.join(str(option) for option in options[:4])}."


def _by_likeness(text: str, known: Sequence[str]) -> list[str]:
    near = difflib.get_close_matches(text.lower(), known, n=len(known) or 1, cutoff=0)
    return [*near, *(name for name in known if name not in near)][:8]
