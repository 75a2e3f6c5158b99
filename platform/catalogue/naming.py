"""Names of models must tell them apart however they are written: any case, any separators or none. Pure."""

import re
from collections.abc import Iterable


def bare(name: str) -> str:
    """Return a name as the request grammar compares it: upper case, no separators."""
    return re.sub(r"[-_ ]+", "", name).upper()


def clashes(models: Iterable[tuple[str, Iterable[str]]]) -> list[str]:
    """Return a sentence for each name that two of the models, given as (slug, aliases), would share."""
    owner: dict[str, str] = {}
    found = []
    for slug, aliases in models:
        for name in (slug, *aliases):
            other = owner.setdefault(bare(name), slug)
            if other != slug:
                found.append(f"{name} would mean {other} and {slug}.")
    return found
