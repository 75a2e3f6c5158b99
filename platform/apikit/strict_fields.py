"""Serializers that never guess: a type is what it is, an unknown field is refused with the nearest known one.

They are the framework's fields (so that OpenAPI sees them) with our own reading. Every fault is collected, each with
its JSON pointer; `StrictSerializer.read(data)` returns the values or raises `apikit.errors.InvalidInput`.
"""

import re
import unicodedata
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from functools import cache
from typing import Any

from rest_framework import serializers
from rest_framework.exceptions import ValidationError
from rest_framework.fields import SkipField, empty

from apikit import display_text
from apikit.errors import InvalidInput, echoed
from apikit.money import Money, read_amount
from apikit.nearest import nearest
from apikit.strict_json import pointer_token

_INSTANT = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[Tt]([0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.[0-9]{1,9})?([Zz]|[+-][0-9]{2}:[0-9]{2})",
    re.ASCII,
)


class Faults(ValidationError):
    """Faults with pointers relative to where they were found; the serializer around adds its own step in front."""

    def __init__(self, faults: list[dict[str, Any]]) -> None:
        super().__init__("refused")
        self.faults = faults


def fault(code: str, detail: str, *, pointer: str = "", **facts: Any) -> Faults:
    """Return one fault to raise. `pointer`: relative to the value at hand, "" or "/name"."""
    return Faults([{"pointer": pointer, "code": code, "detail": detail, **facts}])


def _under(step: str, exc: ValidationError) -> list[dict[str, Any]]:
    if isinstance(exc, Faults):
        return [{**found, "pointer": f"/{step}{found['pointer']}"} for found in exc.faults]
    codes = exc.get_codes()
    code = codes[0] if isinstance(codes, list) and codes and isinstance(codes[0], str) else "bad_value"
    details = {"required": "This field is required.", "null": "null is not allowed here."}
    known = {"required": "required", "null": "wrong_type"}
    return [{"pointer": f"/{step}", "code": known.get(code, "bad_value"), "detail": details.get(code, "Not allowed.")}]


class _Strict(serializers.Field):  # type: ignore[type-arg]
    """Replaces the framework's conversion and validators by `read`."""

    def run_validation(self, data: Any = empty) -> Any:
        is_empty, data = self.validate_empty_values(data)
        return data if is_empty else self.read(data)

    def read(self, data: Any) -> Any:
        raise NotImplementedError


class Text(_Strict, serializers.CharField):
    """A string of `min_length` to `max_length` characters; `pattern` must match all of it (ASCII classes)."""

    def __init__(self, *, pattern: str | None = None, code: str = "bad_value", **options: Any) -> None:
        super().__init__(**options)
        self.pattern = re.compile(pattern, re.ASCII) if pattern else None
        self.code = code

    def read(self, data: Any) -> str:
        if not isinstance(data, str):
            raise fault("wrong_type", "A string is expected.")
        if self.max_length is not None and len(data) > self.max_length:
            raise fault("too_long", f"At most {self.max_length} characters.", position=self.max_length)
        if len(data) < (self.min_length or 0):
            raise fault("bad_value", f"At least {self.min_length} characters.")
        if self.pattern and not self.pattern.fullmatch(data):
            raise fault(self.code, f"“{echoed(data)}” is not of the expected form.")
        return data


class DisplayText(Text):
    """Text that people will see: NFC, no control or format characters (an emoji's joiner may stay)."""

    def read(self, data: Any) -> str:
        if not isinstance(data, str):
            raise fault("wrong_type", "A string is expected.")
        if self.max_length is not None and len(data) > 4 * self.max_length:
            raise fault("too_long", f"At most {self.max_length} characters.", position=self.max_length)
        text = super().read(unicodedata.normalize("NFC", data))
        found = display_text.first_fault(text)
        if found is not None:
            raise fault(found.code, found.detail, position=found.position)
        if text and not text.strip():
            raise fault("bad_value", "Spaces alone are no text.")
        return text


class Name(DisplayText):
    """A name that people give: 1 to 64 characters."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"min_length": 1, "max_length": 64, **options})


class Integer(_Strict, serializers.IntegerField):
    """A JSON integer within bounds: no digit string, no true, no 3600.0. Seconds and counts alike."""

    def read(self, data: Any) -> int:
        if not isinstance(data, int) or isinstance(data, bool):
            raise fault("wrong_type", "A whole number is expected.")
        if (self.min_value is not None and data < self.min_value) or (
            self.max_value is not None and data > self.max_value
        ):
            low = "" if self.min_value is None else f" from {self.min_value}"
            high = "" if self.max_value is None else f" to {self.max_value}"
            raise fault("out_of_range", f"A whole number{low}{high} is expected.")
        return data


class Boolean(_Strict, serializers.BooleanField):
    def read(self, data: Any) -> bool:
        if not isinstance(data, bool):
            raise fault("wrong_type", "true or false is expected.")
        return data


class Choice(_Strict, serializers.ChoiceField):
    """One of a few words."""

    def read(self, data: Any) -> Any:
        if not isinstance(data, (str, int)) or isinstance(data, bool):
            raise fault("wrong_type", "One of the listed values is expected.")
        if data not in self.choices or type(data) not in {type(choice) for choice in self.choices}:
            if isinstance(data, str) != isinstance(next(iter(self.choices)), str):
                raise fault("wrong_type", "One of the listed values is expected.")
            raise fault("bad_value", f"“{echoed(str(data))}” is not among them.", nearest=nearest(data, self.choices))
        return data


class Instant(_Strict, serializers.DateTimeField):
    """An RFC 3339 time with its zone, as a whole second in UTC."""

    def read(self, data: Any) -> datetime:
        if not isinstance(data, str):
            raise fault("wrong_type", "A time such as 2026-12-01T00:00:00Z is expected.")
        return read_instant(data)


def read_instant(text: str) -> datetime:
    """Return the whole UTC second, or raise the fault `bad_timestamp`; a time without a zone is none."""
    match = _INSTANT.fullmatch(text)
    if match is None:
        raise fault("bad_timestamp", "A time with its zone is expected, such as 2026-12-01T00:00:00Z.")
    zone = "+00:00" if match[3] in {"Z", "z"} else match[3]
    try:
        return datetime.fromisoformat(f"{match[1]}T{match[2]}{zone}").astimezone(UTC)
    except (ValueError, OverflowError):
        raise fault("bad_timestamp", "There is no such time.") from None


class PublicId(_Strict, serializers.CharField):
    """A typed id such as `lease_01k...`; its value is what `decode` makes of it (None there is refused here)."""

    def __init__(self, prefix: str, *, decode: Callable[[str, str], Any], **options: Any) -> None:
        super().__init__(**options)
        self.prefix = prefix
        self.decode = decode

    def read(self, data: Any) -> Any:
        if not isinstance(data, str):
            raise fault("wrong_type", f"An id such as {self.prefix}_… is expected.")
        value = self.decode(self.prefix, data)
        if value is None:
            raise fault("bad_value", f"“{echoed(data)}” is no id of the form {self.prefix}_….")
        return value


class ListOf(_Strict, serializers.ListField):
    """A list of at most `max_length` values, each read by `child`."""

    def read(self, data: Any) -> list[Any]:
        if not isinstance(data, list):
            raise fault("wrong_type", "A list is expected.")
        if self.max_length is not None and len(data) > self.max_length:
            raise fault("too_many", f"At most {self.max_length}.")
        if len(data) < (self.min_length or 0):
            raise fault("bad_value", f"At least {self.min_length}.")
        steps = ((str(index), item, self.child) for index, item in enumerate(data))
        return list(_read_all(steps).values())


class MapOf(_Strict, serializers.DictField):
    """An object with free names. `name`: what reads each name (a Text); `child`: what reads each value."""

    def __init__(self, *, name: Text, max_length: int, **options: Any) -> None:
        super().__init__(**options)
        self.name_field = name
        self.max_length = max_length

    def read(self, data: Any) -> dict[str, Any]:
        if not isinstance(data, dict):
            raise fault("wrong_type", "An object is expected.")
        if len(data) > self.max_length:
            raise fault("too_many", f"At most {self.max_length} names.")
        _read_all((pointer_token(name), name, self.name_field) for name in data)
        values = _read_all((pointer_token(name), item, self.child) for name, item in data.items())
        return dict(zip(data, values.values(), strict=True))


class Either(_Strict, serializers.Field):  # type: ignore[type-arg]
    """A text or an object: each read by its own field. For `request`, which is a line or a structure."""

    def __init__(self, *, text: Text, structure: "StrictSerializer", **options: Any) -> None:
        super().__init__(**options)
        self.text = text
        self.structure = structure

    def read(self, data: Any) -> Any:
        if isinstance(data, str):
            return self.text.run_validation(data)
        if isinstance(data, dict):
            return self.structure.run_validation(data)
        raise fault("wrong_type", "A text or an object is expected.")


def _read_all(steps: Iterable[tuple[str, Any, Any]]) -> dict[str, Any]:
    """Return {step: value} of (step, data, field), or raise all their faults together."""
    values: dict[str, Any] = {}
    faults: list[dict[str, Any]] = []
    for step, data, field in steps:
        try:
            values[step] = field.run_validation(data)
        except SkipField:
            continue
        except ValidationError as exc:
            faults += _under(step, exc)
    if faults:
        raise Faults(faults)
    return values


class StrictSerializer(serializers.Serializer[Any]):
    """An object with known fields. Override `validate(values)` for rules over several fields (raise `fault(...)`)."""

    @classmethod
    def read(cls, data: Any, **options: Any) -> dict[str, Any]:
        """Return the values, or raise InvalidInput with every fault."""
        reader = cls(**options) if options else _reader(cls)
        try:
            values: dict[str, Any] = reader.run_validation(data)
        except Faults as exc:
            raise InvalidInput.of(exc.faults) from None
        return values

    def run_validation(self, data: Any = empty) -> Any:
        if self.parent is None and not isinstance(data, dict):
            raise fault("not_an_object", "A JSON object is expected.")
        is_empty, data = self.validate_empty_values(data)
        if is_empty:
            return data
        if not isinstance(data, dict):
            raise fault("wrong_type", "An object is expected.")
        known = {name: field for name, field in self.fields.items() if not field.read_only}
        faults = [_unknown(name, known) for name in data if name not in known]
        values: dict[str, Any] = {}
        try:
            values = _read_all((name, data.get(name, empty), field) for name, field in known.items())
        except Faults as exc:
            faults += exc.faults
        if faults:
            raise Faults(faults)
        return self.validate(values)


@cache
def _reader(kind: type[StrictSerializer]) -> StrictSerializer:
    # Its fields are copied once and keep nothing of what they read, so that all requests may share them.
    return kind()


class MoneyField(StrictSerializer):
    """`{"amount": "1.999999", "currency": "CNY"}` as `Money`; never negative, nothing finer than a micro-unit."""

    amount = Text(max_length=32)
    currency = Text(pattern="[A-Z]{3}")

    def validate(self, values: dict[str, Any]) -> Any:
        amount_micros = read_amount(values["amount"])
        if amount_micros is None:
            raise fault("bad_decimal", "A decimal such as 12.34 is expected, with at most 6 places.", pointer="/amount")
        return Money(amount_micros, values["currency"])


def _unknown(name: str, known: Iterable[str]) -> dict[str, Any]:
    detail = f"There is no field “{echoed(name)}” here."
    found = {"pointer": f"/{pointer_token(name)}", "code": "unknown_field", "detail": detail}
    close = nearest(name, known)
    return {**found, "nearest": close} if close else found
