"""Durations as people write them: 90s, 30m, 2h, 7d, 1h30m, PT2H. A bare number has no unit and is refused."""

import re

_UNIT_S = {"w": 604_800, "d": 86_400, "h": 3_600, "m": 60, "s": 1}
_SHORT = re.compile("".join(rf"(?:(?P<{unit}>[0-9]{{1,9}}){unit})?" for unit in _UNIT_S), re.ASCII)
_ISO = re.compile(
    r"P(?:(?P<w>[0-9]{1,9})W|(?:(?P<d>[0-9]{1,9})D)?"
    r"(?:T(?=[0-9])(?:(?P<h>[0-9]{1,9})H)?(?:(?P<m>[0-9]{1,9})M)?(?:(?P<s>[0-9]{1,9})S)?)?)",
    re.ASCII,
)


def parse_s(text: str) -> int:
    """Return the seconds that `text` says; months and years have no fixed length. Raises ValueError."""
    found = _SHORT.fullmatch(text.lower()) or _ISO.fullmatch(text.upper())
    parts = {unit: int(digits) for unit, digits in found.groupdict().items() if digits} if found else {}
    if not parts:
        raise ValueError(f"{text!r} is no duration: write it as 90s, 30m, 2h, 7d or PT2H.")
    return sum(_UNIT_S[unit] * count for unit, count in parts.items())


def show(seconds: float) -> str:
    """Return a short form with at most two units, e.g. 2h5m, 45s, 3d4h."""
    left = max(0, int(seconds))
    parts = []
    for unit in ("d", "h", "m", "s"):
        count, left = divmod(left, _UNIT_S[unit])
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts[:2]) or "0s"
