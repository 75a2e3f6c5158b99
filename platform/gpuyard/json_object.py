"""An object over JSON: typed where its class says so, and open to fields that this version does not know.

An attribute that a class declares is converted to the declared type (instants, money, nested objects); any other member
of the JSON can be read as it is. A declared `X | None` that the server left out is None.
"""

from __future__ import annotations

import copy
import functools
import types
import typing
from collections.abc import Callable, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any, NoReturn

Reader = Callable[[Any], Any]


class Object:
    """A frozen view of one JSON object."""

    __slots__ = ("_etag", "_json")
    _json: dict[str, Any]
    _etag: str | None

    def __init__(self, json: Mapping[str, Any], etag: str | None = None) -> None:
        object.__setattr__(self, "_json", dict(json))
        object.__setattr__(self, "_etag", etag)

    @property
    def etag(self) -> str | None:
        """The version as `If-Match` wants it: the answer's own ETag, else made of `version`."""
        if self._etag is None and "version" in self._json:
            return f'"{self._json["version"]}"'
        return self._etag

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON as the server sent it."""
        return copy.deepcopy(self._json)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        member = name.removesuffix("_")  # `from_` reads "from", which Python keeps for itself
        reader, optional = _readers(type(self)).get(member, (_as_is, False))
        if member not in self._json:
            if optional:
                return None
            raise AttributeError(f"{type(self).__name__} has no {member!r}: {', '.join(sorted(self._json))}")
        value = self._json[member]
        return None if value is None else reader(value)

    def __getitem__(self, member: str) -> Any:
        return self._json[member]

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is frozen")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is frozen")

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._json})

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self._json == other._json

    def __hash__(self) -> int:
        return hash((type(self), self._json.get("id"), self._json.get("version")))

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={self._json[name]!r}" for name in _SHOWN if name in self._json)
        return f"{type(self).__name__}({shown})"

    def __reduce__(self) -> tuple[type[Object], tuple[dict[str, Any], str | None]]:
        return type(self), (self._json, self._etag)


_SHOWN = ("id", "state", "request", "name", "slug", "amount", "currency", "text")


def _as_is(value: Any) -> Any:
    return value


def _instant(value: Any) -> Any:
    return datetime.fromisoformat(value) if isinstance(value, str) else value


def _decimal(value: Any) -> Any:
    return Decimal(value) if isinstance(value, str) else value


_READERS: dict[type[Object], Mapping[str, tuple[Reader, bool]]] = {}


def _readers(kind: type[Object]) -> Mapping[str, tuple[Reader, bool]]:
    """Return per declared attribute how its JSON is read, and whether it may be absent."""
    if kind not in _READERS:
        hints = {name: hint for name, hint in typing.get_type_hints(kind).items() if not name.startswith("_")}
        _READERS[kind] = {
            name: (_reader(hint), types.NoneType in typing.get_args(hint)) for name, hint in hints.items()
        }
    return _READERS[kind]


def _reader(hint: Any) -> Reader:
    for choice in typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,):
        if choice is datetime:
            return _instant
        if choice is Decimal:
            return _decimal
        if isinstance(choice, type) and not typing.get_args(choice) and issubclass(choice, Object):
            return functools.partial(_nested, choice)
        if typing.get_origin(choice) is list:
            return functools.partial(_listed, _reader(typing.get_args(choice)[0]))
    return _as_is


def _nested(kind: type[Object], value: Any) -> Any:
    # A server that is newer may say more with another shape; then the plain value is better than an error.
    return kind(value) if isinstance(value, Mapping) else value


def _listed(reader: Reader, value: Any) -> Any:
    return [reader(item) for item in value] if isinstance(value, list) else value
