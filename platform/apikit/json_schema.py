"""What the strict fields accept, as JSON Schema: for the API's description, which must not promise more or less.

Rules over several fields, and of meaning (a grammar, a registry), are not in it: they are refusals of their own (422).
"""

from collections.abc import Callable
from typing import Any

from rest_framework import serializers

from apikit.strict_fields import (
    Boolean,
    Choice,
    Either,
    Instant,
    Integer,
    ListOf,
    MapOf,
    PublicId,
    StrictSerializer,
    Text,
)

type Schema = dict[str, Any]
type Refer = Callable[[type[StrictSerializer]], Schema]  # how a schema names that of another object


def of_object(kind: type[StrictSerializer], refer: Refer) -> Schema:
    """Return the schema of an object with known fields. refer: called for every object within."""
    fields = {name: field for name, field in kind().fields.items() if not field.read_only}
    schema: Schema = {
        "type": "object",
        "properties": {name: of_field(field, refer) for name, field in fields.items()},
        "additionalProperties": False,
    }
    required = [name for name, field in fields.items() if field.required]
    return schema | ({"required": required} if required else {})


def of_field(field: serializers.Field[Any, Any, Any, Any], refer: Refer) -> Schema:
    """Return the schema of one field. Raises TypeError for a kind that is not described here."""
    schema = _of_kind(field, refer)
    return {"anyOf": [schema, {"type": "null"}]} if field.allow_null else schema


def _of_kind(field: Any, refer: Refer) -> Schema:
    if isinstance(field, StrictSerializer):
        return refer(type(field))
    if isinstance(field, Either):
        return {"anyOf": [of_field(field.text, refer), of_field(field.structure, refer)]}
    if isinstance(field, MapOf):
        names, values = of_field(field.name_field, refer), of_field(field.child, refer)
        return {
            "type": "object", "propertyNames": names, "additionalProperties": values, "maxProperties": field.max_length,
        }  # fmt: skip
    if isinstance(field, ListOf):
        limits = _present(minItems=field.min_length, maxItems=field.max_length)
        return {"type": "array", "items": of_field(field.child, refer), **limits}
    return _of_value(field)


def _of_value(field: Any) -> Schema:
    if isinstance(field, Text):
        pattern = f"^(?:{field.pattern.pattern})$" if field.pattern else None
        return {
            "type": "string",
            **_present(minLength=field.min_length, maxLength=field.max_length, pattern=pattern),
        }
    if isinstance(field, Integer):
        return {"type": "integer", **_present(minimum=field.min_value, maximum=field.max_value)}
    if isinstance(field, Choice):
        return {"enum": list(field.choices)}
    if isinstance(field, Boolean):
        return {"type": "boolean"}
    if isinstance(field, Instant):
        return {"type": "string", "format": "date-time"}
    if isinstance(field, PublicId):
        return {"type": "string", "pattern": f"^{field.prefix}_[0-9a-z]{{26}}$"}
    raise TypeError(f"{type(field).__name__} has no schema")


def _present(**members: Any) -> Schema:
    return {name: value for name, value in members.items() if value is not None}
