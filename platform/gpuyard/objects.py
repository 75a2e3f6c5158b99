"""What the API answers, as typed objects over its JSON. Fields that this version does not know stay reachable.

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


class Money(Object):
    amount: Decimal
    currency: str
    per: str | None  # "gpu_hour" if it is a price

    def __str__(self) -> str:
        return f"{self._json['amount']} {self.currency}" + (f" per {self.per.replace('_', ' ')}" if self.per else "")


class WhyWaiting(Object):
    text: str | None
    counts: dict[str, int] | None


class Eta(Object):
    at: datetime | None
    certainty: str | None


class Cost(Object):
    billable_seconds: int
    charged: Money
    running: bool | None


class Member(Object):
    """One host's part of a lease."""

    rank: int
    host: str | None
    region: str | None
    zone: str | None
    state: str | None
    detail: str | None
    gpus: list[Any] | None
    container: Object | None
    exit_code: int | None


class Lease(Object):
    id: str
    version: int
    state: str
    request: str
    image: str | None
    term: Object | None
    name: str | None
    labels: dict[str, str] | None
    created_at: datetime
    state_since: datetime | None
    ended_at: datetime | None
    end_reason: str | None
    exit_code: int | None
    actions: list[str]
    why_waiting: WhyWaiting | None
    queue_place: int | None
    eta: Eta | None
    price: Money | None
    cost: Cost | None
    members: list[Member] | None
    simulated: bool | None
    on_interrupt: str | None


class Plan(Object):
    """The answer of a dry run: what would happen, and nothing promised."""

    plan: Object | None


class LeaseEvent(Object):
    seq: int
    at: datetime
    from_state: str | None
    to_state: str | None
    reason: str | None
    detail: Any


class EventPage(Object):
    items: list[LeaseEvent]


class LogPiece(Object):
    """A stretch of output as it was printed, line breaks included."""

    offset: int  # in bytes, of its beginning
    text: str
    stream: str | None  # "stdout" or "stderr" where the two are told apart


class LogPage(Object):
    items: list[LogPiece]
    next_offset: int
    end: bool | None  # nothing will follow


class ChargeLine(Object):
    member: int
    use: str
    seconds: int | None
    price: Money | None
    charged: Money | None


class Charges(Object):
    lines: list[ChargeLine]
    billable_seconds: int
    charged: Money


class Offer(Object):
    model: str | None
    region: str | None
    tier: str | None
    price: Money | None
    simulated: bool | None


class Quote(Object):
    id: str
    request: str | None
    price: Money | None
    expires_at: datetime | None
    simulated: bool | None


class Image(Object):
    id: str | None
    slug: str | None
    reference: str | None


class GpuModel(Object):
    slug: str
    vendor: str | None
    memory_gib: int | None
    simulated: bool | None


class Region(Object):
    slug: str
    name: str | None
    currency: str | None
    simulated: bool | None


class Wallet(Object):
    currency: str
    balance: Money | None
    held: Money | None
    accrued: Money | None
    available: Money | None
    exhausts_at: datetime | None


class Host(Object):
    id: str
    version: int
    name: str | None
    state: str | None
    region: str | None
    tier: str | None
    actions: list[str] | None
    simulated: bool | None


class ApiKey(Object):
    id: str
    name: str | None
    scopes: list[str] | None
    created_at: datetime | None
    expires_at: datetime | None
    secret: str | None  # only in the answer that made it


class Enrolment(Object):
    id: str
    token: str | None  # only in the answer that made it
    expires_at: datetime | None


class Webhook(Object):
    id: str
    url: str | None
    secret: str | None  # only in the answer that made it


class LedgerEntry(Object):
    id: str | None
    at: datetime | None
    amount: Money | None


class Invoice(Object):
    id: str
    total: Money | None


class MarketPrice(Object):
    model: str | None
    region: str | None
    price: Money | None
    simulated: bool | None
