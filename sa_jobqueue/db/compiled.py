"""Statements of the hot path, compiled once a process instead of looked up and unpacked at each execution.

They go to the driver as the server takes them, with `$1` for parameters: psycopg looks for its own placeholders in a text of
more than 4096 characters at each execution, and SQLAlchemy makes a context, a cursor and rows around it: of an empty claim a
third to a half of the client's time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from functools import cached_property
from typing import Any, Final

import psycopg
from psycopg.pq import TransactionStatus
from sqlalchemy import Dialect, text
from sqlalchemy.dialects.postgresql.psycopg import PGDialectAsync_psycopg
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql import ClauseElement

from sa_jobqueue.models import JobClass

_DIALECT: Final[Dialect] = PGDialectAsync_psycopg()  # type: ignore[no-untyped-call]
"""Dialect of the connections that workers open."""
_compiled: dict[tuple[Any, ...], Compiled] = {}
"""Compiled statements by function, model and options, of which a process uses few."""


class Compiled:
    """A statement as text for psycopg, and what makes its parameters.

    For statements whose results psycopg reads without help.
    """

    def __init__(self, statement: ClauseElement) -> None:
        dialect = _DIALECT
        numbered = copy(dialect)
        numbered.paramstyle, numbered.positional = "numeric_dollar", True
        numbered.identifier_preparer = numbered.preparer(numbered)  # which doubles no percent sign of a name
        as_sent: Any = statement.compile(dialect=numbered)
        types = {name: bound.type.dialect_impl(dialect) for bound, name in as_sent.bind_names.items()}
        self._processors = {name: processor for name, type_ in types.items() if (processor := type_.bind_processor(dialect))}
        self._constants = {
            name: self._processors[name](value) if name in self._processors else value
            for name, value in as_sent.params.items()
            if value is not None
        }
        # Of an `onupdate` or a default of the application's: see `models.base.expressed`.
        default_makers = {name: bound.callable for bound, name in as_sent.bind_names.items() if bound.callable is not None}
        self._default_makers = [(name, make, self._processors.get(name)) for name, make in default_makers.items()]
        for name in default_makers:
            self._constants.pop(name, None)
        self._sent, self._order = str(as_sent), tuple(as_sent.positiontup)
        self._statement = statement

    @cached_property
    def _text(self) -> str:
        """The statement with psycopg's own placeholders."""
        return str(self._statement.compile(dialect=_DIALECT))

    async def execute(self, connection: AsyncConnection, parameters: Mapping[str, Any]) -> Sequence[Any]:
        """Run it and return its rows, if it has any; a failure is raised, and its connection dealt with, as of any other."""
        values = {**self._constants, **parameters}
        for name, make, processor in self._default_makers:
            values[name] = make() if processor is None else processor(make())
        for name, process in self._processors.items():
            if name in parameters:
                values[name] = process(values[name])
        driver = _driver(connection)
        if driver is None:
            result = await connection.exec_driver_sql(self._text, values)
            return result.all() if result.returns_rows else ()
        cursor = psycopg.AsyncRawCursor(driver)
        try:
            await cursor.execute(self._sent, [values[name] for name in self._order])
            return await cursor.fetchall() if cursor.description is not None else ()
        except psycopg.Error as error:
            if driver.closed:
                with suppress(DBAPIError):  # has SQLAlchemy find that out, which lets go of its pool's others too
                    await connection.exec_driver_sql("SELECT 1")
            raise DBAPIError.instance(
                self._sent,
                None,
                error,
                psycopg.Error,
                hide_parameters=True,
                connection_invalidated=driver.closed,
                dialect=_DIALECT,
            ) from error
        except BaseException as error:
            # A value that Python cannot convert was not sent. Cancelled while the server was executing, however, a later
            # statement could receive the answer.
            if not isinstance(error, Exception) or driver.pgconn.transaction_status != TransactionStatus.IDLE:
                await connection.invalidate()
            raise


def compiled(build: Callable[..., ClauseElement], model: JobClass, **options: Any) -> Compiled:
    """Return the statement that a function builds for a model, compiled for all workers of this process."""
    key = (build, model, *options.items())
    if key not in _compiled:
        _compiled[key] = Compiled(build(model, **options))
    return _compiled[key]


def plain(words: str) -> Compiled:
    """Return a statement without parameters, as it is."""
    return Compiled(text(words))


def _driver(connection: AsyncConnection) -> psycopg.AsyncConnection[Any] | None:
    """Return the connection beneath, where nothing is lost by going around SQLAlchemy.

    Not if its statements have listeners, as tracing does; nor if it begins transactions automatically, or where each
    statement is given its guards (`db.poolers`).
    """
    connected = connection.sync_connection
    if connected is None or connected.closed or connected.invalidated:
        return None
    dispatch = connected.dispatch
    if dispatch.before_cursor_execute or dispatch.after_cursor_execute:
        return None
    driver = connected.connection.driver_connection
    if isinstance(driver, psycopg.AsyncConnection) and driver.cursor_factory is psycopg.AsyncCursor and driver.autocommit:
        return driver
    return None
