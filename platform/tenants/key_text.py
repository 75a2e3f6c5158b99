"""API keys: `gy_live_` + 8 public characters + `_` + 32 base62 + 6 base62 of the CRC-32 of all before.

The check digits catch a mistyped or cut key without a database read, and let scanners of leaked secrets be exact.
"""

import hashlib
import re
import secrets
import zlib

_BASE62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_FORM = re.compile(r"gy_(?:live|test)_([0-9A-Za-z]{8})_[0-9A-Za-z]{38}", re.ASCII)
_CHECK_LENGTH = 6  # 62 ** 6 > 2 ** 32


def make(*, live: bool) -> tuple[str, str]:
    """Return (public characters, whole text) of a new key."""
    public = _random(8)
    body = f"gy_{'live' if live else 'test'}_{public}_{_random(32)}"
    return public, body + _check(body)


def public_part(text: str) -> str | None:
    """Return the 8 public characters of a well-formed key with right check digits, or None."""
    match = _FORM.fullmatch(text)
    if match is None or _check(text[:-_CHECK_LENGTH]) != text[-_CHECK_LENGTH:]:
        return None
    return match[1]


def digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("ascii")).digest()


def _random(length: int) -> str:
    return "".join(secrets.choice(_BASE62) for _ in range(length))


def _check(text: str) -> str:
    number = zlib.crc32(text.encode("ascii"))
    digits = ""
    for _ in range(_CHECK_LENGTH):
        number, digit = divmod(number, 62)
        digits = _BASE62[digit] + digits
    return digits
