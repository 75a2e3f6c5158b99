"""Which characters a text may have that people will see: nothing that hides, reorders or moves a cursor."""

import unicodedata
from typing import NamedTuple

_ZERO_WIDTH_JOINER = "\u200d"
_EMOJI_PARTS = {"So", "Sk", "Mn"}  # symbol, skin tone, variation selector


class DisplayFault(NamedTuple):
    code: str
    detail: str
    position: int


def first_fault(text: str) -> DisplayFault | None:
    """Return the first control or format character; the joiner inside of an emoji is none."""
    for position, character in enumerate(text):
        category = unicodedata.category(character)
        if category in {"Cc", "Zl", "Zp"}:
            return DisplayFault("control_character", "Control characters are not allowed here.", position)
        if category == "Cf" and not _joins_an_emoji(text, position):
            return DisplayFault("format_character", "Invisible format characters are not allowed here.", position)
    return None


def _joins_an_emoji(text: str, position: int) -> bool:
    inside = text[position] == _ZERO_WIDTH_JOINER and 0 < position < len(text) - 1
    return inside and unicodedata.category(text[position - 1]) in _EMOJI_PARTS
