"""Sentences in another language: looked up whole, or by the template that they were made from.

Domain code says its refusals in one language, as plain sentences. The doors translate them by a catalogue in gettext's
PO form, whose msgids are those sentences with {0}, {1}, ... where something stands in. What the catalogue does not have
stays as it is. Pure.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

_PLACE = re.compile(r"\{([0-9])\}")
_LONGEST = 1_000  # characters; longer texts are nobody's template


@dataclass(frozen=True)
class Catalogue:
    """Translations of one language: whole sentences, and templates with the most literal text first."""

    sentences: Mapping[str, str] = field(default_factory=dict)
    templates: tuple[tuple[re.Pattern[str], str], ...] = ()

    def translate(self, text: str) -> str:
        """Return the translation of a text, or the text itself."""
        if text in self.sentences:
            return self.sentences[text]
        if len(text) > _LONGEST:
            return text
        for pattern, translation in self.templates:
            found = pattern.fullmatch(text)
            if found is not None:
                stands_in = found.groupdict()
                return "".join(
                    stands_in.get(f"p{part}", part) if index % 2 else part
                    for index, part in enumerate(_PLACE.split(translation))
                )
        return text


@lru_cache
def read(path: Path) -> Catalogue:
    """Return the catalogue of a PO file. Raises ValueError where it is no such file."""
    pairs = {source: target for source, target in _entries(path.read_text("utf-8")) if source and target}
    placed = sorted((source for source in pairs if _PLACE.search(source)), key=_literal, reverse=True)
    return Catalogue(
        {source: target for source, target in pairs.items() if not _PLACE.search(source)},
        tuple((_pattern(source), pairs[source]) for source in placed),
    )


def _literal(source: str) -> int:
    return len(_PLACE.sub("", source))


def _pattern(source: str) -> re.Pattern[str]:
    """Return what matches the sentences made from a template; a place that stands twice holds the same text twice."""
    seen: set[str] = set()
    parts = []
    for index, part in enumerate(_PLACE.split(source)):
        if index % 2 == 0:
            parts.append(re.escape(part))
        else:
            parts.append(f"(?P=p{part})" if part in seen else f"(?P<p{part}>.*?)")
            seen.add(part)
    return re.compile("".join(parts), re.DOTALL)


def _entries(text: str) -> Iterator[tuple[str, str]]:
    """Yield (msgid, msgstr) of a PO file; comments, contexts and plurals are not used here."""
    found = {"msgid": "", "msgstr": ""}
    at = ""
    for number, line in enumerate(text.splitlines(), 1):
        keyword, _, rest = line.partition(" ")
        if not line.strip() or line.startswith("#"):
            continue
        if keyword == "msgid":
            yield found["msgid"], found["msgstr"]
            found, at = {"msgid": "", "msgstr": ""}, "msgid"
        elif keyword == "msgstr":
            at = "msgstr"
        elif not line.startswith('"') or not at:
            raise ValueError(f"Line {number} is none of a PO file: {line!r}")
        found[at] += ast.literal_eval(line if line.startswith('"') else rest)
    yield found["msgid"], found["msgstr"]
