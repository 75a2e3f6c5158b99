"""The language in which people are answered (`Accept-Language`): English or simplified Chinese. Codes are neither.

The language of the running request stands in a context variable, so that a door far down the stack can speak it.
"""

from __future__ import annotations

import re
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final

from apikit import translations

ENGLISH: Final = "en"
CHINESE: Final = "zh-Hans"
_WEIGHT = re.compile(r"q=(0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?)", re.ASCII)  # RFC 9110, section 12.4.2
_HEADER_LIMIT = 500
_CATALOGUES = {CHINESE: Path(__file__).parent / "locale" / "zh_Hans.po"}

_current: ContextVar[str] = ContextVar("language", default=ENGLISH)


class Said(str):
    """A sentence in English that was also made in Chinese, from the same facts."""

    zh: str

    def __new__(cls, text: str, *, zh: str) -> Said:
        said = super().__new__(cls, text)
        said.zh = zh
        return said


def choose(header: str) -> str:
    """Return which of our languages an Accept-Language header asks for; English if it cannot be read or wants another.

    Any Chinese is answered in simplified Chinese: it is nearer than English.
    """
    best, weight = ENGLISH, 0.0
    for part in header[:_HEADER_LIMIT].split(","):
        name, _, parameter = part.partition(";")
        found = _WEIGHT.fullmatch(parameter.strip()) if parameter else None
        asked = float(found[1]) if found else (0.0 if parameter else 1.0)
        language = {"zh": CHINESE, "en": ENGLISH, "*": ENGLISH}.get(name.strip().lower().partition("-")[0])
        if language is not None and asked > weight:
            best, weight = language, asked
    return best


def current() -> str:
    """Return the language of the running request."""
    return _current.get()


def speak(language: str) -> None:
    """Let everything from here on in this request be said in `language`."""
    _current.set(language)


def translated(text: str) -> str:
    """Return a sentence in the language of the running request, as it is if there is no translation."""
    language = _current.get()
    if language == ENGLISH:
        return str(text)
    if isinstance(text, Said):
        return text.zh
    return translations.read(_CATALOGUES[language]).translate(text)


def chosen(stored: dict[str, Any]) -> dict[str, Any]:
    """Return an object that was kept with `text` and `text_zh`, with the `text` of the running request's language."""
    rest = {name: value for name, value in stored.items() if name != "text_zh"}
    if _current.get() == CHINESE and stored.get("text_zh"):
        rest["text"] = stored["text_zh"]
    elif "text" in rest:
        rest["text"] = translated(rest["text"])
    return rest
