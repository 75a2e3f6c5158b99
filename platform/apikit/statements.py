"""SQL without the query builder, for what is asked with every request: several statements in one round trip.

Each is planned and run by itself, one after the other (with its own snapshot, where the transaction is READ COMMITTED),
so a lock that one takes is held when the next looks.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

from django.db import connection
from django.db.models import Model
from django.db.models.expressions import DatabaseDefault


class Statement(NamedTuple):
    """One statement with a %s for each of its values."""

    sql: str
    values: Sequence[Any] = ()


def run(*statements: Statement) -> list[list[tuple[Any, ...]]]:
    """Send the statements together and return the rows of each; those of one without any are []."""
    found = []
    with connection.cursor() as cursor:
        cursor.execute(
            ";".join(statement.sql for statement in statements),
            [v for statement in statements for v in statement.values],
        )
        for _ in statements:
            found.append(cursor.fetchall() if cursor.description else [])
            cursor.nextset()
    return found


def insert(row: Model, *, on_conflict: str = "") -> Statement:
    """Return the statement that writes a new row as `save` would; what the row does not say, the table does."""
    table, fields = _columns(type(row))
    marks, values = [], []
    for field in fields:
        value = field.pre_save(row, add=True)
        if isinstance(value, DatabaseDefault) or (value is None and field.primary_key):
            marks.append("DEFAULT")
        else:
            marks.append("%s")
            values.append(field.get_db_prep_save(value, connection))
    names = ", ".join(f'"{field.column}"' for field in fields)
    return Statement(f'INSERT INTO "{table}" ({names}) VALUES ({", ".join(marks)}) {on_conflict}', values)  # noqa: S608 -- names only


@cache
def _columns(model: type[Model]) -> tuple[str, list[Any]]:
    return model._meta.db_table, list(model._meta.local_concrete_fields)


class Columns[Row: Model]:
    """The columns of a model in a SELECT under an alias, and how an instance is made of their values."""

    def __init__(self, model: type[Row], alias: str) -> None:
        _, fields = _columns(model)
        self.model = model
        self.sql = ", ".join(f'{alias}."{field.column}"' for field in fields)
        self.width = len(fields)
        self._names = [field.attname for field in fields]
        self._primary = next(i for i, field in enumerate(fields) if field.primary_key)
        self._converters = [(i, found, f) for i, f in enumerate(fields) if (found := f.get_db_converters(connection))]

    def read(self, values: Sequence[Any]) -> Row | None:
        """Return the instance, or None where an outer join has found no row."""
        if values[self._primary] is None:
            return None
        read = list(values)
        for index, converters, field in self._converters:
            for convert in converters:
                read[index] = convert(read[index], field, connection)
        return self.model.from_db("default", self._names, read)


@cache
def columns_of[Row: Model](model: type[Row], alias: str) -> Columns[Row]:
    return Columns(model, alias)
