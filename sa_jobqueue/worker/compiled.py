"""Statements of the hot path, compiled once a worker instead of looked up and unpacked at each execution."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Dialect
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql import ClauseElement


class Compiled:
    """A statement as text for psycopg, and what makes its parameters.

    For statements whose results psycopg reads without help, all of one connection's dialect.
    """

    def __init__(self, statement: ClauseElement, dialect: Dialect) -> None:
        compiled: Any = statement.compile(dialect=dialect)
        self._text = str(compiled)
        types = {name: bound.type.dialect_impl(dialect) for bound, name in compiled.bind_names.items()}
        self._processors = {name: made for name, type_ in types.items() if (made := type_.bind_processor(dialect))}
        self._constants = {name: value for name, value in compiled.params.items() if value is not None}

    async def execute(self, connection: AsyncConnection, parameters: Mapping[str, Any]) -> Sequence[Any]:
        """Run it and return its rows; a failure is raised, and its connection dealt with, as of any other statement."""
        given = {**self._constants, **parameters}
        for name, process in self._processors.items():
            if name in parameters:
                given[name] = process(given[name])
        return (await connection.exec_driver_sql(self._text, given)).all()
