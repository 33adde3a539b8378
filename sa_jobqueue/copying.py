"""COPY: from the database to here as CSV, a block at a time, whatever is to come; and from here into a table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import psycopg
from sqlalchemy import Connection, event
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql.elements import ClauseElement
from sqlalchemy.util import await_only

from sa_jobqueue.errors import JobQueueError

BLOCK_BYTES: Final = 1024 * 1024
"""How much CSV is kept before it is decoded: with what it becomes, all that a reader needs of memory. A row that is larger
is a block by itself. Of 8 MiB, which no cache holds, decoding takes a quarter longer."""

_USES: Final = ("before_cursor_execute", "commit")
_DIALECT: Final = PGDialect_psycopg()  # type: ignore[no-untyped-call]


def copy_text(statement: ClauseElement) -> tuple[bytes, dict[str, Any]]:
    """Return the COPY of a SELECT, and its parameters for the driver to write in: the protocol has none for COPY."""
    compiled: Any = statement.compile(dialect=_DIALECT, compile_kwargs={"render_postcompile": True})
    processors = compiled._bind_processors
    parameters = {name: processors.get(name, lambda given: given)(given) for name, given in compiled.params.items()}
    return f"COPY ({compiled.string}) TO STDOUT (FORMAT csv)".encode(), parameters


def blocks(
    connection: Connection, query: bytes, parameters: Mapping[str, Any], *, size_bytes: int | None = None
) -> Iterator[bytes]:
    """Run a COPY, as `copy_text` gives it, and yield its CSV, whole lines, in blocks of about `size_bytes`.

    Locks: none. The connection is busy until the last block was taken, or the iterator is closed.
    """
    driver: Any = connection.connection  # not its `driver_connection`: one that is detached from its pool has none
    most = size_bytes or BLOCK_BYTES
    with driver.cursor() as cursor, cursor.copy(query, parameters) as copy:
        block: list[Any] = []
        size = 0
        for line in copy:  # one row each: the protocol's promise for COPY TO
            block.append(line)
            size += len(line)
            if size >= most:
                yield b"".join(block)
                block, size = [], 0
        if block:
            yield b"".join(block)


def copy_in(connection: Connection, statement: str, chunks: Iterable[str]) -> int:
    """Run a COPY from here, sending its text in chunks as they are made; return how many rows it took.

    The connection is busy until the last chunk is made; an error on the way takes all rows back. On an asynchronous
    connection it is to be called as SQLAlchemy's own calls are, under `run_sync`.
    Raises: what SQLAlchemy raises for the driver's errors, and what making a chunk raises; JobQueueError where that uses
    this very connection, which would wait for itself.
    """
    driver: Any = connection.connection.driver_connection
    try:
        with _refusing(connection):
            if connection.dialect.is_async:
                return int(await_only(_copy_in_async(driver, statement, chunks)))
            with driver.cursor() as cursor:
                with cursor.copy(statement) as copy:
                    for chunk in chunks:
                        copy.write(chunk)
                return int(cursor.rowcount)
    except psycopg.Error as error:
        if driver.closed:
            connection.invalidate(error)
        raise DBAPIError.instance(statement, None, error, psycopg.Error, dialect=connection.dialect) from error


async def _copy_in_async(driver: Any, statement: str, chunks: Iterable[str]) -> int:
    async with driver.cursor() as cursor:
        async with cursor.copy(statement) as copy:
            for chunk in chunks:
                await copy.write(chunk)
        return int(cursor.rowcount)


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
