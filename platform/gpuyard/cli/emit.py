"""Data as JSON, as YAML, or as bare names."""

import json
import re
from collections.abc import Iterator
from typing import Any

_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*", re.ASCII)
_NOT_PLAIN = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})  # YAML 1.1 reads other things


def as_json(data: Any) -> str:
    return json.dumps(data, ensure_ascii=False, indent=2) + "\n"


def as_yaml(data: Any) -> str:
    """Return block YAML whose scalars are JSON's: YAML takes them all, and no word is read as another type."""
    return "\n".join(_block(data, 0)) + "\n"


def name(row: dict[str, Any]) -> str:
    """Return what other verbs take to name this object."""
    return str(next((row[key] for key in ("id", "slug", "request", "name") if row.get(key)), ""))


def _block(data: Any, depth: int) -> Iterator[str]:
    pad = "  " * depth
    if isinstance(data, dict) and data:
        for key, value in data.items():
            yield from _entry(f"{pad}{_key(key)}:", value, depth)
    elif isinstance(data, list) and data:
        for value in data:
            yield from _item(pad, value, depth)
    else:
        yield pad + _scalar(data)


def _entry(head: str, value: Any, depth: int) -> Iterator[str]:
    if isinstance(value, dict | list) and value:
        yield head
        yield from _block(value, depth + 1)
    else:
        yield f"{head} {_scalar(value)}"


def _item(pad: str, value: Any, depth: int) -> Iterator[str]:
    first, *rest = _block(value, depth + 1)
    yield f"{pad}- {first.lstrip(' ')}"
    yield from rest


def _key(key: str) -> str:
    return key if _PLAIN_KEY.fullmatch(key) and key.lower() not in _NOT_PLAIN else _scalar(key)


def _scalar(value: Any) -> str:
    # Escaped but for plain text: YAML forbids some control characters that JSON lets stand, and breaks lines at others.
    plain = not isinstance(value, str) or value.isprintable()
    return json.dumps(value, ensure_ascii=not plain)
