"""The characters of a request, its numbers and its units, and the fault of a place in it. Pure."""

import re
from collections.abc import Sequence

from leasing.resource_request import MAX_COUNT, Option

# What somebody who writes a number may write; which of it is a number is decided afterwards.
NUMBER = re.compile(r"[+-]?\.?[0-9](?:[0-9_]|\.(?!\.)|[eE][+-]?(?=[0-9]))*|[+-]")
_PLAIN_NUMBER = re.compile(r"0|[1-9][0-9]*")
_UNIT = re.compile(r"[Gg](?:[Bb]|[Ii](?P<half>[Bb])?)?")


class Fault(Exception):
    """A reading ends here. `meant`: what may have been wanted, as a value or as a text to be read."""

    def __init__(self, kind: str, position: int, detail: str, *meant: Option | str) -> None:
        super().__init__(kind, position, detail)
        self.kind = kind
        self.position = position
        self.detail = detail
        self.meant: Sequence[Option | str] = meant


class Scanner:
    """`text` from `start` to its end; what stands before only counts for positions."""

    def __init__(self, text: str, start: int) -> None:
        self.text = text
        self.start = self.skip(start)
        self.nodes = 1

    def skip(self, at: int) -> int:
        """Return where the next thing that is no space stands; the end if there is none."""
        while at < len(self.text) and self.text[at] == " ":
            at += 1
        return at

    def at(self, at: int) -> str:
        """Return the character there, or nothing at the end."""
        return self.text[at : at + 1]

    def unit(self, at: int) -> int | None:
        """Return the end of the G, GB or GiB that stands here, None if none does."""
        unit = _UNIT.match(self.text, at)
        if unit is None:
            return None
        if self.text[unit.end() - 1] in "iI":
            raise Fault("syntax", unit.end(), "The unit of memory is G.", self.text[self.start : at] + "G")
        return unit.end()

    def whole(self, number: re.Match[str], *, most: int, what: str) -> int:
        """Return the number if it is whole and from 1 to `most`; raise bad_number or out_of_range if not."""
        text = number.group()
        plain = _PLAIN_NUMBER.fullmatch(text)
        if plain and 1 <= int(text) <= most:
            return int(text)
        head, behind = self.text[self.start : number.start()], self.text[number.end() :]
        digits = re.sub(r"[^0-9]", "", re.split(r"(?<=[0-9])[.eE]", text)[0]).lstrip("0")
        meant = [f"{head}{min(max(int(digits or 0), 1), most)}{behind}"]
        if most == MAX_COUNT and plain and int(text) % 8 == 0 and self.nodes == 1 and head:
            meant.insert(0, f"{int(text) // 8}*{head}8{behind}")
        kind = "out_of_range" if plain else "bad_number"
        shown = text if len(text) <= 20 else f"{text[:20]}..."
        detail = f"{what}: {shown} was asked for, and a whole number from 1 to {most} would be right."
        raise Fault(kind, number.start(), detail, *meant)
