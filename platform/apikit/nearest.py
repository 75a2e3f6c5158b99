"""What somebody may have meant."""

import difflib
from collections.abc import Iterable
from typing import Any


def nearest(word: Any, known: Iterable[Any]) -> list[str]:
    """Return up to three known words that are close to `word`."""
    text = str(word)
    return difflib.get_close_matches(text, [str(k) for k in known], n=3) if len(text) <= 64 else []
