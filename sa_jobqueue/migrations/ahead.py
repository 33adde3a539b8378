"""Online DDL: creates columns and indexes of a new version ahead of its migration, while the queue is in use.

A column that is null everywhere is added in a moment, and older code is not affected. An index is built concurrently.
The migration itself then finds both done, and is short.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Final

from sqlalchemy import Connection, text
from sqlalchemy.exc import ProgrammingError

from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.errors.drivers import diagnose
from sa_jobqueue.layout import Layout
from sa_jobqueue.migrations.locking import PATIENCE, in_transaction, with_short_locks
from sa_jobqueue.models.base import verbatim

_TABLE: Final = r"((?:\"(?:[^\"]|\"\")+\"\.)?\w+)"
_INDEX: Final = re.compile(rf"CREATE (UNIQUE )?INDEX (\w+) ON {_TABLE} ")
_COLUMNS: Final = re.compile(rf"ALTER TABLE {_TABLE} ((?:ADD COLUMN \w+ [a-z0-9]+(?:, )?)+)")
_COLUMN: Final = re.compile(r"ADD COLUMN (\w+) (\w+)")
_VALIDITY = text(
    """
    SELECT i.indisvalid FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
    WHERE i.indrelid = to_regclass(:table) AND c.relname = :name
    """
)
_EMPTY_COLUMN = text(
    """
    SELECT count(*) FROM pg_attribute WHERE attrelid = to_regclass(:table) AND attname = :name
      AND atttypid = to_regtype(:type) AND NOT attnotnull AND NOT atthasdef AND NOT attisdropped
    """
)
_PRESENT = text("SELECT to_regclass(:table) IS NOT NULL")
_MISSING: Final = {"42703", "42704", "42883"}
"""SQLSTATEs of a column, a type or a function that is not there yet."""


def is_done(connection: Connection, statement: str) -> bool:
    """Return whether the object that a statement creates exists: an index that is whole, or columns of their types."""
    if definition := _INDEX.match(statement):
        return _is_valid(connection, definition[3], definition[2]) is True
    if definition := _COLUMNS.fullmatch(statement):
        return all(_has_column(connection, definition[1], *column) for column in _COLUMN.findall(statement))
    return False


def do_ahead(connection: Connection, layout: Layout, planned: Sequence[str], *, patience: timedelta = PATIENCE) -> list[str]:
    """Execute the part of planned DDL that can be done online; return the names of the columns and indexes created.

    Locks: ACCESS EXCLUSIVE for a moment, by `with_short_locks`, where a column is added; none that readers or
    writers wait for, where an index is built. Obliges: a connection in AUTOCOMMIT.
    Raises: InvalidOptionError when the connection is not in AUTOCOMMIT; SchemaBusyError.
    """
    driver = connection.connection.dbapi_connection
    if driver is None or not driver.autocommit:
        raise InvalidOptionError("connection", "must be in AUTOCOMMIT: indexes are built outside of transactions")
    created_names: list[str] = []
    for statement in planned:
        index, columns = _INDEX.match(statement), _COLUMNS.fullmatch(statement)
        table = index[3] if index else columns[1] if columns else None
        if table is None or is_done(connection, statement) or not connection.scalar(_PRESENT, {"table": table}):
            continue
        if index is None:
            with in_transaction(connection):
                with_short_locks(connection, layout, partial(connection.execute, verbatim(statement)), patience=patience)
            created_names += [name for name, _ in _COLUMN.findall(statement)]
        elif _build(connection, index, statement):
            created_names.append(index[2])
    return created_names


def _build(connection: Connection, definition: re.Match[str], statement: str) -> bool:
    unique, index, table = definition.groups()
    if _is_valid(connection, table, index) is False:  # left behind by a build that was interrupted
        schema, dot, _ = table.rpartition(".")
        connection.execute(verbatim(f"DROP INDEX CONCURRENTLY {schema}{dot}{index}"))
    try:
        connection.execute(
            verbatim(f"CREATE {unique or ''}INDEX CONCURRENTLY {index} ON {table} {statement[definition.end() :]}")
        )
    except ProgrammingError as error:
        if diagnose(error).sqlstate not in _MISSING:
            raise
        return False  # on what only the migration itself makes
    return True


def _is_valid(connection: Connection, table: str, index: str) -> bool | None:
    row = connection.execute(_VALIDITY, {"table": table, "name": index}).one_or_none()
    return None if row is None else bool(row[0])


def _has_column(connection: Connection, table: str, name: str, kind: str) -> bool:
    return bool(connection.scalar(_EMPTY_COLUMN, {"table": table, "name": name, "type": kind}))
