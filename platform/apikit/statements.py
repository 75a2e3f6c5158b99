"""SQL without the query builder, for what is asked with every request: several statements in one round trip.

Each is planned and run by itself, one after the other (with its own snapshot, where the transaction is READ COMMITTED),
so a lock that one takes is held when the next looks.
"""

import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import cache, partial
from typing import Any, NamedTuple
from uuid import UUID

from django.db import InterfaceError, OperationalError, connection
from django.db.backends.postgresql.psycopg_any import Range
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
            result = cursor.pgresult  # `description` would describe every column to tell that there are any
            found.append(cursor.fetchall() if result is not None and result.nfields else [])
            cursor.nextset()
    return found


def run_first(*statements: Statement) -> list[list[tuple[Any, ...]]]:
    """As `run`, for what is asked first with a request: it tells by itself whether the connection still lives.

    A connection that was kept from the last request is otherwise asked for a sign of life before it is used.
    """
    if connection.in_atomic_block:
        return run(*statements)
    connection.health_check_done = True  # type: ignore[attr-defined]
    try:
        return run(*statements)
    except (OperationalError, InterfaceError):
        if connection.connection is None or not connection.connection.closed:
            raise
        connection.close()
    return run(*statements)


def insert(row: Model, *, on_conflict: str = "") -> Statement:
    """Return the statement that writes a new row as `save` would; what the row does not say, the table does."""
    _, fields = _columns(type(row))
    own = [field for field in fields if not _from_table(field, [row])]
    given = {field.column: field.pre_save(row, add=True) for field in own}
    return Statement(_insert(type(row), tuple(given), on_conflict), [_json(given)])


@cache
def _insert(model: type[Model], names: tuple[str, ...], on_conflict: str) -> str:
    """Return the statement that writes the columns of one row, which come as one value.

    One value is written and read sooner than one for each of sixty columns.
    """
    table, columns = model._meta.db_table, ", ".join(f'"{name}"' for name in names)
    source = f'json_populate_record(NULL::"{table}", %s::json)'
    return f'INSERT INTO "{table}" ({columns}) SELECT {columns} FROM {source} {on_conflict}'  # noqa: S608 -- names only


def _json(given: Any) -> str:
    return json.dumps(given, default=_text, ensure_ascii=False)


def insert_all[Row: Model](rows: Sequence[Row], *, on_conflict: str = "") -> list[Row]:
    """Write new rows of one model as `bulk_create` would, and return them: all of them are one value of the statement.

    For hundreds of rows: the query builder and the driver take longer over a list of VALUES than the database over its
    rows. With on_conflict what is there already stays as it is, and numbers that the table gives are not read back.
    """
    if not rows:
        return []
    table, fields = _columns(type(rows[0]))
    own = [field for field in fields if not _from_table(field, rows)]
    given = [[field.pre_save(row, add=True) for field in own] for row in rows]
    names = [field.column for field in own]
    text = _json([dict(zip(names, line, strict=True)) for line in given])
    primary = next(field for field in fields if field.primary_key)
    columns, numbered = ", ".join(f'"{name}"' for name in names), primary not in own and not on_conflict
    back = f'RETURNING "{primary.column}"' if numbered else ""
    source = f'json_populate_recordset(NULL::"{table}", %s::json)'
    with connection.cursor() as cursor:
        cursor.execute(f'INSERT INTO "{table}" ({columns}) SELECT {columns} FROM {source} {on_conflict} {back}', [text])  # noqa: S608 -- names only
        keys = [key for (key,) in cursor.fetchall()] if numbered else []
    for row, key in zip(rows, keys, strict=False):
        row.pk = key
    for row in rows:
        row._state.adding, row._state.db = False, "default"
    return list(rows)


def insert_lines(
    model: type[Model], names: Sequence[str], lines: Sequence[Sequence[Any]], *, on_conflict: str = ""
) -> None:
    """Write new rows of which nobody needs the objects: each line has the values of the named attributes, in order.

    What is not named has the model's default, or the table's. As `insert_all`, at a third of its time.
    """
    if not lines:
        return
    table, fields = _columns(model)
    column_of = {field.attname: field.column for field in fields}
    left = [field for field in fields if field.attname not in names and not _of_the_table(field)]
    columns = [*(column_of[name] for name in names), *(field.column for field in left)]
    defaults = [field.get_default if callable(field.default) else partial(_same, field.get_default()) for field in left]
    text = json.dumps(
        [dict(zip(columns, (*line, *(default() for default in defaults)), strict=True)) for line in lines],
        default=_text, ensure_ascii=False,
    )  # fmt: skip
    named, source = ", ".join(f'"{name}"' for name in columns), f'json_populate_recordset(NULL::"{table}", %s::json)'
    with connection.cursor() as cursor:
        cursor.execute(f'INSERT INTO "{table}" ({named}) SELECT {named} FROM {source} {on_conflict}', [text])  # noqa: S608 -- names only


def _same(value: Any) -> Any:
    return value


def _of_the_table(field: Any) -> bool:
    """Tell whether the table gives this column where nobody says it."""
    return bool(field.has_db_default() or (field.primary_key and not field.has_default()))


def uuids(values: Iterable[UUID]) -> str:
    """Return ids as one value for `= ANY(%s::uuid[])`: the driver takes longer over a list of them."""
    return f"{{{','.join(map(str, values))}}}"


def _from_table(field: Any, rows: Sequence[Model]) -> bool:
    """Tell whether the table gives this column: for all of the rows, or for none."""
    if not field.primary_key and not field.has_db_default():
        return False
    values = [getattr(row, field.attname) for row in rows]
    left = sum(isinstance(value, DatabaseDefault) or (value is None and field.primary_key) for value in values)
    if left not in (0, len(rows)):
        raise ValueError(f"some of the rows say their {field.name}, and some leave it to the table")
    return bool(left)


def _text(value: Any) -> str:
    """Return what PostgreSQL reads as this value of a column."""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, Range):
        if value.isempty:
            return "empty"
        lower, upper = ("" if end is None else _text(end) for end in (value.lower, value.upper))
        return f"{value.bounds[0]}{lower},{upper}{value.bounds[1]}"
    if isinstance(value, int):
        return str(value)
    raise TypeError(f"a {type(value).__name__} cannot be written so")


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
