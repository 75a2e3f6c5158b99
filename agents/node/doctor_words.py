"""One thing that the doctor looked at, and how versions in it are read."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. mend: what to do, "" when it is good."""

    check: str
    level: str  # good | warn | bad
    text: str
    mend: str = ""


def numbers(text: str) -> tuple[int, ...]:
    """Return the leading numbers of a version: (550, 54) of "550.54-1"."""
    parts = []
    for part in text.split("+")[0].split("-")[0].split("."):
        if not part.isdigit():
            break
        parts.append(int(part))
    return tuple(parts)
