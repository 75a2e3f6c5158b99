"""Query parameters as the doors read them: each is known, given once, and of its form; anything else is refused."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.http import QueryDict

from apikit.errors import InvalidInput, echoed
from apikit.nearest import nearest
from apikit.strict_fields import Faults, fault, read_instant

type Reader = Callable[[str], Any]  # raises strict_fields.Faults


@dataclass(frozen=True)
class Described:
    """A reader that can say in JSON Schema what it reads, for the API's description."""

    read: Reader
    schema: Mapping[str, Any]

    def __call__(self, text: str) -> Any:
        return self.read(text)


def schema_of(reader: Reader) -> Mapping[str, Any]:
    return reader.schema if isinstance(reader, Described) else {"type": "string"}


_DIGITS = re.compile(r"0|[1-9][0-9]{0,17}", re.ASCII)


def integer(minimum: int, maximum: int) -> Reader:
    def read(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,40}", text, re.ASCII):
            raise fault("wrong_type", "A whole number is expected.")
        if not _DIGITS.fullmatch(text) or not minimum <= int(text) <= maximum:
            raise fault("out_of_range", f"A whole number from {minimum} to {maximum} is expected.")
        return int(text)

    return Described(read, {"type": "integer", "minimum": minimum, "maximum": maximum})


def choice(*values: str) -> Reader:
    def read(text: str) -> str:
        if text not in values:
            raise fault("bad_value", f"“{echoed(text)}” is not among them.", nearest=nearest(text, values))
        return text

    return Described(read, {"type": "string", "enum": [*values]})


def choices(*values: str) -> Reader:
    """Several of `values`, with commas between."""

    def read(text: str) -> list[str]:
        return [choice(*values)(word) for word in text.split(",")]

    word = "|".join(map(re.escape, values))
    return Described(read, {"type": "string", "pattern": f"^({word})(,({word}))*$"})


def _flag(text: str) -> bool:
    if text not in {"0", "1"}:
        raise fault("bad_value", "0 or 1 is expected.")
    return text == "1"


def _instant(text: str) -> datetime:
    return read_instant(text)


flag: Reader = Described(_flag, {"type": "string", "enum": ["0", "1"]})
instant: Reader = Described(_instant, {"type": "string", "format": "date-time"})


def text(max_length: int = 256, *, pattern: str | None = None) -> Reader:
    compiled = re.compile(pattern, re.ASCII) if pattern else None

    def read(value: str) -> str:
        if len(value) > max_length:
            raise fault("too_long", f"At most {max_length} characters.")
        if compiled and not compiled.fullmatch(value):
            raise fault("bad_value", f"“{echoed(value)}” is not of the expected form.")
        return value

    form = {"pattern": f"^(?:{pattern})$"} if pattern else {}
    return Described(read, {"type": "string", "maxLength": max_length, **form})


def public_id(prefix: str, *, decode: Callable[[str, str], Any]) -> Reader:
    def read(value: str) -> Any:
        found = decode(prefix, value)
        if found is None:
            raise fault("bad_value", f"“{echoed(value)}” is no id of the form {prefix}_….")
        return found

    return Described(read, {"type": "string", "pattern": f"^{prefix}_[0-9a-z]{{26}}$"})


def read(sent: QueryDict, readers: Mapping[str, Reader]) -> dict[str, Any]:
    """Return the values of those parameters that were sent, or raise InvalidInput with every fault."""
    values: dict[str, Any] = {}
    errors: list[dict[str, Any]] = []
    for name in sent:
        try:
            values[name] = _read_one(name, sent.getlist(name), readers)
        except Faults as exc:
            errors += [_about(name, found) for found in exc.faults]
    if errors:
        raise InvalidInput.of(errors)
    return values


def read_header(name: str, text: str, reader: Reader) -> Any:
    """Return the value of a header, or raise InvalidInput."""
    try:
        return reader(text)
    except Faults as exc:
        raise InvalidInput.of([_about(name, found) for found in exc.faults]) from None


def _read_one(name: str, sent: list[str], readers: Mapping[str, Reader]) -> Any:
    if name not in readers:
        close = nearest(name, readers)
        detail = f"There is no parameter “{echoed(name)}” here."
        raise fault("unknown_parameter", detail, nearest=close) if close else fault("unknown_parameter", detail)
    if len(sent) > 1:
        raise fault("bad_value", "It was given more than once.")
    if "\x00" in sent[0]:
        raise fault("null_character", "U+0000 is not allowed in a text.")
    return readers[name](sent[0])


def _about(name: str, found: dict[str, Any]) -> dict[str, Any]:
    rest = {member: value for member, value in found.items() if member != "pointer"}
    return {"parameter": echoed(name), **rest}
