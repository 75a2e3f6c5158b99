"""The language in which the command talks to a person: English, or simplified Chinese where the locale says so.

What it says is translated where it is printed; what programs read (--json, names, codes, states) never is.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from apikit import translations

_CATALOGUE = Path(__file__).parent / "locale" / "zh_Hans.po"


def language(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the language to ask the server for; None for its own."""
    locale = environ.get("LC_ALL") or environ.get("LC_MESSAGES") or environ.get("LANG") or ""
    return "zh-Hans" if locale.startswith("zh") else None


def said(text: str) -> str:
    """Return a sentence or a word of the command in the person's language."""
    return text if language() is None else translations.read(_CATALOGUE).translate(text)
