"""Indexes of a new version on tables that are full: built before the migration, while the queue goes on working."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from sqlalchemy import Connection, text
from sqlalchemy.exc import ProgrammingError

from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.models.base import verbatim

_CREATE: Final = re.compile(r"CREATE (UNIQUE )?INDEX (\w+) ON ((?:\"\w+\"\.)?\w+) ")
_STATE = text(
    """
    SELECT i.indisvalid FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
    WHERE i.indrelid = to_regclass(:table) AND c.relname = :index
    """
)
_PRESENT = text("SELECT to_regclass(:table) IS NOT NULL")
_MISSING = {"42703", "42704", "42883"}
"""SQLSTATEs of a column, a type or a function that is not there yet."""


def is_built(connection: Connection, statement: str) -> bool:
    """Say whether a statement makes an index that is there already, whole, on the table it names."""
    found = _CREATE.match(statement)
    return found is not None and _is_valid(connection, found[3], found[2]) is True


def build_ahead(connection: Connection, planned: Sequence[str]) -> list[str]:
    """Build those indexes of planned DDL whose tables and columns are there, concurrently; return their names.

    Locks: none that readers or writers wait for. Obliges: a connection in AUTOCOMMIT.
    Raises: InvalidOptionError when the connection is not in AUTOCOMMIT.
    """
    driver = connection.connection.dbapi_connection
    if driver is None or not connection.dialect.detect_autocommit_setting(driver):
        raise InvalidOptionError("connection", "must be in AUTOCOMMIT: indexes are built outside of transactions")
    built = []
    for statement in planned:
        found = _CREATE.match(statement)
        if found is None or not connection.scalar(_PRESENT, {"table": found[3]}):
            continue
        unique, index, table = found.groups()
        valid = _is_valid(connection, table, index)
        if valid:
            continue
        if valid is False:
            schema = table.rpartition(".")[0]
            connection.execute(verbatim(f"DROP INDEX CONCURRENTLY {f'{schema}.' if schema else ''}{index}"))
        try:
            rest = statement[found.end() :]
            connection.execute(verbatim(f"CREATE {unique or ''}INDEX CONCURRENTLY {index} ON {table} {rest}"))
        except ProgrammingError as error:
            if getattr(error.orig, "sqlstate", None) not in _MISSING:
                raise
        else:
            built.append(index)
    return built


def _is_valid(connection: Connection, table: str, index: str) -> bool | None:
    row = connection.execute(_STATE, {"table": table, "index": index}).one_or_none()
    return None if row is None else bool(row[0])
