"""JSON as the doors read it: what parsers of the trade let through silently is refused here, by name.

`loads` is for bytes from anywhere (the agents' door too); `StrictJSONParser` is the framework's form of it.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import IO, Any

from rest_framework.exceptions import UnsupportedMediaType
from rest_framework.parsers import BaseParser

from apikit.errors import DomainError, InvalidInput, echoed

BODY_LIMIT = 256 * 1024  # bytes
DEPTH_LIMIT = 32
DIGITS_LIMIT = 20  # of one number

# Whole strings (also one that is never closed) and whatever is no bracket: each character is looked at once.
_NO_BRACKET = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[^"\[\]{}]++', re.DOTALL)
_SUSPICIOUS_ESCAPE = re.compile(r"\\u(?:0000|[dD][89a-fA-F])", re.ASCII)


class MalformedJSON(DomainError):
    slug = "malformed-json"
    title = "The body cannot be read as JSON"
    status = 400


class DuplicateKey(DomainError):
    slug = "duplicate-key"
    title = "A name stands twice in one object"
    status = 400


class TooDeep(DomainError):
    slug = "json-too-deep"
    title = "The body is nested too deeply"
    status = 400


class PayloadTooLarge(DomainError):
    slug = "payload-too-large"
    title = "The body is too large"
    status = 413


class StrictJSONParser(BaseParser):
    """The only parser of the doors. Reads one byte more than the limit and no further."""

    media_type = "application/json"

    def parse(
        self, stream: IO[Any], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> Any:
        if media_type is not None and not _is_utf8_json(media_type):
            raise UnsupportedMediaType(echoed(media_type))
        return loads(stream.read(BODY_LIMIT + 1))


def loads(raw: bytes) -> Any:
    """Return the value of one JSON document, or raise one of the refusals above or InvalidInput (NUL, surrogates)."""
    if len(raw) > BODY_LIMIT:
        raise PayloadTooLarge(f"At most {BODY_LIMIT} bytes are read.", limit_bytes=BODY_LIMIT)
    text = _decoded(raw)
    _check_depth(text)
    try:
        value = _DECODER.decode(text)
    except json.JSONDecodeError as exc:
        raise _malformed("syntax", f"{exc.msg} at character {exc.pos}.", position=exc.pos) from None
    if _SUSPICIOUS_ESCAPE.search(text):
        _check_characters(value)
    return value


def _is_utf8_json(media_type: str) -> bool:
    kind, *parameters = [part.strip().lower() for part in media_type.split(";")]
    return kind == "application/json" and all(
        not p.startswith("charset=") or p.removeprefix("charset=").strip('"') in {"utf-8", "utf8"} for p in parameters
    )


def _decoded(raw: bytes) -> str:
    if raw.startswith((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")):
        raise _malformed("bom", "The body must be UTF-8 without a byte order mark.")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as exc:
        raise _malformed("not_utf8", f"Byte {exc.start} is not UTF-8.", position=exc.start) from None


def _check_depth(text: str) -> None:
    depth = 0
    for bracket in _NO_BRACKET.sub("", text):
        depth += 1 if bracket in "[{" else -1
        if depth > DEPTH_LIMIT:
            raise TooDeep(f"At most {DEPTH_LIMIT} levels are read.", limit=DEPTH_LIMIT)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise DuplicateKey(f"“{echoed(twice)}” stands twice in one object.", key=echoed(twice))
    return result


def _check_digits(literal: str) -> None:
    if len(literal) <= DIGITS_LIMIT:
        return
    # Zeros before the first other digit say only where the point is: the shortest text of a double may begin with five.
    told = literal.lstrip("-0.")[: 4 * DIGITS_LIMIT]
    if len(literal) > 4 * DIGITS_LIMIT or sum(character.isdigit() for character in told) > DIGITS_LIMIT:
        raise _malformed("number_too_long", f"A number has at most {DIGITS_LIMIT} digits.")


def _integer(literal: str) -> int:
    _check_digits(literal)
    return int(literal)


def _fraction(literal: str) -> float:
    _check_digits(literal)
    value = float(literal)
    if math.isinf(value):
        raise _malformed("non_finite_number", "A number is larger than can be held.")
    return value


def _constant(literal: str) -> float:
    raise _malformed("non_finite_number", f"{literal} is not JSON.")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_object, parse_int=_integer, parse_float=_fraction, parse_constant=_constant
)


def _malformed(code: str, detail: str, **facts: Any) -> MalformedJSON:
    return MalformedJSON(detail, errors=[{"pointer": "", "code": code, "detail": detail, **facts}])


def _check_characters(value: Any) -> None:
    faults = list(_bad_characters(value, ""))
    if faults:
        raise InvalidInput("The body holds characters that no text may have.", errors=faults)


def _bad_characters(value: Any, pointer: str) -> Iterator[dict[str, Any]]:
    """Yield a fault for each string or name with NUL or a lone surrogate. The depth is bounded by DEPTH_LIMIT."""
    if isinstance(value, str):
        if "\x00" in value:
            yield {"pointer": pointer, "code": "null_character", "detail": "U+0000 is not allowed in a text."}
        elif any("\ud800" <= character <= "\udfff" for character in value):
            yield {"pointer": pointer, "code": "lone_surrogate", "detail": "Half of a surrogate pair is no character."}
    elif isinstance(value, dict):
        for name, item in value.items():
            here = f"{pointer}/{pointer_token(name)}"
            yield from _bad_characters(name, here)
            yield from _bad_characters(item, here)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _bad_characters(item, f"{pointer}/{index}")


def pointer_token(name: str) -> str:
    """Return a name as one step of a JSON pointer (RFC 6901), cut and made printable."""
    return echoed(name).replace("~", "~0").replace("/", "~1")
