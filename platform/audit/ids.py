"""Typed, opaque ids: `lease_` and 26 characters, a UUIDv7 in Crockford's base 32 (API.md section 1)."""

import secrets
import time
from functools import lru_cache
from uuid import UUID

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_VALUE = {character: value for value, character in enumerate(_ALPHABET)}
_LENGTH = 26  # 26 x 5 bits hold the 128 bits


def new() -> UUID:
    """Return a UUIDv7 (RFC 9562 section 5.7): milliseconds since 1970, then 74 random bits."""
    milliseconds = time.time_ns() // 1_000_000
    random = secrets.randbits(74)
    return UUID(int=milliseconds << 80 | 0x7 << 76 | (random >> 62) << 64 | 0b10 << 62 | (random & ((1 << 62) - 1)))


@lru_cache(maxsize=8192)  # the same few are spelled again and again while one thing happens to them
def encode(prefix: str, value: UUID) -> str:
    """Return the public spelling, e.g. `lease_01k...`."""
    digits = "".join(_ALPHABET[value.int >> shift & 31] for shift in range(5 * (_LENGTH - 1), -1, -5))
    return f"{prefix}_{digits}"


def decode(prefix: str, text: str) -> UUID | None:
    """Return the id that `encode` spelled so, or None: any other spelling (also upper case) is no id."""
    head, separator, digits = text.rpartition("_")
    if head != prefix or not separator or len(digits) != _LENGTH or not set(digits) <= _VALUE.keys():
        return None
    value = 0
    for digit in digits:
        value = value << 5 | _VALUE[digit]
    return UUID(int=value) if value < 1 << 128 else None
