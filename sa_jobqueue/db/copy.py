"""COPY: from the database to here as CSV, a block at a time, whatever is to come; and from here into a table."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, event
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql.elements import ClauseElement
from sqlalchemy.util import await_only

from sa_jobqueue.errors import JobQueueError

BLOCK_BYTES: Final = 1024 * 1024
"""Bytes of CSV that are buffered before they are decoded, which bounds a reader's memory. A larger row is a separate
block. With 8 MiB, more than a cache holds, decoding takes a quarter longer."""

_USES: Final = ("before_cursor_execute", "commit")
_DIALECT: Final = PGDialect_psycopg()  # type: ignore[no-untyped-call]


def copy_text(statement: ClauseElement) -> tuple[bytes, dict[str, Any]]:
    """Return the COPY of a SELECT, and its parameters for the driver to write in: the protocol has none for COPY."""
    compiled: Any = statement.compile(dialect=_DIALECT, compile_kwargs={"render_postcompile": True})
    processors = compiled._bind_processors
    parameters = {name: processors.get(name, lambda value: value)(parameter) for name, parameter in compiled.params.items()}
    # psycopg halves doubled percent signs only where it writes parameters in.
    query = compiled.string if parameters else compiled.string.replace("%%", "%")
    return f"COPY ({query}) TO STDOUT (FORMAT csv)".encode(), parameters


def blocks(
    connection: Connection, query: bytes, parameters: Mapping[str, Any], *, size_bytes: int | None = None
) -> Iterator[bytearray]:
    """Run a COPY, as `copy_text` gives it, and yield its CSV, whole lines, in blocks of about `size_bytes`.

    Locks: none. The connection is busy until the last block was taken, or the iterator is closed.
    """
    driver: Any = connection.connection  # not its `driver_connection`: one that is detached from its pool has none
    most = size_bytes or BLOCK_BYTES
    with driver.cursor() as cursor, cursor.copy(query, parameters) as copy:
        # Not a list of lines: each is a memoryview, which the garbage collector tracks, and traverses the whole process for.
        block = bytearray()
        for line in copy:  # one row each: the protocol's promise for COPY TO
            block += line
            if len(block) >= most:
                yield block
                block = bytearray()
        if block:
            yield block


@dataclass(frozen=True, slots=True)
class CopyTarget:
    """A table, and the columns of it that a COPY fills from text."""

    schema: str | None
    table: str
    columns: tuple[str, ...]

    @property
    def statement(self) -> str:
        """The COPY as SQL."""
        table = ".".join(quote(name) for name in (self.schema, self.table) if name)
        return f"COPY {table} ({', '.join(quote(name) for name in self.columns)}) FROM STDIN"


def copy_in(connection: Connection, target: CopyTarget, chunks: Iterable[str]) -> int:
    """Run a COPY from here, sending its text in chunks as they are made; return how many rows it took.

    The driver is psycopg, psycopg2 or asyncpg. The connection is busy until the last chunk is made; an error on the way
    takes all rows back. On an asynchronous connection it is to be called as SQLAlchemy's own calls are, under `run_sync`.
    Raises: what SQLAlchemy raises for the driver's errors, and what making a chunk raises; JobQueueError where that uses
    this very connection, which would wait for itself, and for any other driver.
    """
    driver: Any = connection.connection.driver_connection
    name = connection.dialect.driver
    if name == "asyncpg" and not driver.is_in_transaction():
        connection.exec_driver_sql("SELECT 1")  # SQLAlchemy begins the transaction with its first statement
    source = _Source(chunks)
    driver_errors: Any = _driver_errors(connection)
    try:
        with _refusing(connection):
            return _send(connection, driver, target, source)
    except (_ChunkError, *driver_errors) as caught:
        error: Exception = caught
    if driver.is_closed() if name == "asyncpg" else driver.closed:
        connection.invalidate(error)
    if source.error is not None:
        raise source.error  # here, not while another is handled: its cause and its context stay
    raise DBAPIError.instance(target.statement, None, error, driver_errors, dialect=connection.dialect) from error


def _send(connection: Connection, driver: Any, target: CopyTarget, source: _Source) -> int:
    match connection.dialect.driver:
        case "asyncpg":
            return int(await_only(_send_by_asyncpg(driver, target, source)))
        case "psycopg2":
            with driver.cursor() as cursor:
                cursor.copy_expert(target.statement, source)
                return int(cursor.rowcount)
        case "psycopg" if connection.dialect.is_async:
            return int(await_only(_send_async(driver, target.statement, source)))
        case "psycopg":
            with driver.cursor() as cursor:
                with cursor.copy(target.statement) as copy:
                    for chunk in source:
                        copy.write(chunk)
                return int(cursor.rowcount)
        case name:
            raise JobQueueError(f"the driver {name!r} has no COPY here; use psycopg, psycopg2 or asyncpg")


def _driver_errors(connection: Connection) -> tuple[type[Exception], ...]:
    if connection.dialect.driver != "asyncpg":
        return (connection.dialect.loaded_dbapi.Error,)
    from asyncpg import InterfaceError, PostgresError

    return (PostgresError, InterfaceError)


async def _send_async(driver: Any, statement: str, source: _Source) -> int:
    async with driver.cursor() as cursor:
        async with cursor.copy(statement) as copy:
            for chunk in source:
                await copy.write(chunk)
        return int(cursor.rowcount)


async def _send_by_asyncpg(driver: Any, target: CopyTarget, source: _Source) -> int:
    async def encoded() -> AsyncIterator[bytes]:
        for chunk in source:
            yield chunk.encode()  # asyncpg sets no other client_encoding

    status: str = await driver.copy_to_table(
        target.table, schema_name=target.schema, columns=target.columns, source=encoded(), format="text"
    )
    return int(status.removeprefix("COPY "))


class _ChunkError(Exception):
    """Making a chunk failed: `_Source.error` has the error."""


class _Source:
    """Chunks of text, as an iterator and as the file that psycopg2 reads from. It keeps the error of making one.

    Drivers send the text of an error to the server, which accepts 10,000 bytes and closes the connection on more.
    """

    def __init__(self, chunks: Iterable[str]) -> None:
        self._chunks = iter(chunks)
        self._buffer = ""
        self.error: BaseException | None = None

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        try:
            return next(self._chunks)
        except StopIteration:
            raise
        except BaseException as error:
            self.error = error
            raise _ChunkError("the rows could not be made") from None

    def read(self, size: int) -> str:
        """Return up to `size` characters; none at the end."""
        if not self._buffer:
            self._buffer = next(self, "")
        text, self._buffer = self._buffer[:size], self._buffer[size:]
        return text


@contextmanager
def _refusing(connection: Connection) -> Iterator[None]:
    def refuse(*_: Any) -> None:
        raise JobQueueError(
            "this connection is busy sending rows: what makes them must not use it; read before, or in another session"
        )

    for name in _USES:
        event.listen(connection, name, refuse)
    try:
        yield
    finally:
        for name in _USES:
            event.remove(connection, name, refuse)


def quote(name: str) -> str:
    """Return an identifier as SQL text for a statement without parameters, in which no percent sign is doubled."""
    return _DIALECT.identifier_preparer.quote(name).replace("%%", "%")
